"""Links option files to the commands that read them.

An option file alone has neither a release nor a model. They come from the script, the job or the
manifest next to it that starts a server with the file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..facts import engines
from ..files import read_text
from .engine import COMMAND, FILE_FLAGS, TOOLS, WORKER
from .model import Section, Server, is_open
from .other_engines import OtherStarter, readers
from .read.file import Text, read_file
from .read.option_file import read_option_file
from .releases import PinnedTables, Pins


def may_name_a_file(text: str) -> bool:
    """Returns whether a text can contain a server command with an option file."""
    starts = any(name in text for name in (COMMAND, WORKER, *TOOLS))
    return starts and any(flag in text for flag in FILE_FLAGS)


def option_files(worker: Server, folder: Path) -> Iterator[Path]:
    """Yields the paths that the option file of a command may have. The first is the path in the
    command. If that exists only in a container, the file may be in `folder` itself."""
    if worker.file and not is_open(worker.file_path):
        yield Path(os.path.normpath(folder / worker.file_path))
    if worker.file and not is_open(worker.file):
        yield folder / worker.file


def on_disk(servers: Iterable[Server], folder: Path) -> dict[str, Mapping[str, Any]]:
    """Returns the options of each file on disk that the servers read, by file name."""
    read_files = {row.file: read_option_file(row.file_path, folder) for row in servers if row.file}
    return {name: options for name, options in read_files.items() if options}


def by_file(sections: Iterable[Section]) -> dict[str, Mapping[str, Any]]:
    """Returns the options blocks by file name. If several config maps have files of the same name,
    the key is `map/name`."""
    rows = [(section, file_name(section)) for section in sections]
    names = Counter(name for _, name in rows)
    return {
        f"{row.config_map}/{name}" if row.config_map and names[name] > 1 else name: row.options
        for row, name in rows
    }


def file_name(section: Section) -> str:
    """Returns the name of the embedded file that contains an options block."""
    return section.file.rpartition("/")[2] or file_in(section.within)


def file_in(within: str) -> str:
    """Returns the name of an embedded file: in a config map, or written by a script."""
    return within.partition("data.")[2] or within.rpartition("/")[2]


def of_file(workers: Sequence[Server], section: Section) -> Server | None:
    """Returns a server that reads an option file, if all its readers serve the same model."""
    name = file_name(section).rpartition("/")[2]
    users = [row for row in workers if row.file and row.file == name]
    if section.config_map:
        users = [row for row in users if row.config_map in ("", section.config_map)]
    models = {row.model.name for row in users if row.model}
    return users[0] if users and len(models) <= 1 else None


def by_path(servers: Iterable[Server]) -> dict[str, list[Server]]:
    """Returns the servers of a document by path."""
    found: dict[str, list[Server]] = {}
    for row in servers:
        found.setdefault(row.path, []).append(row)
    return found


def other_starters(paths: Collection[Path], isolated: Isolated) -> Mapping[Path, OtherStarter]:
    """Maps option files to the commands of other engines in `paths` that read them. A file is left
    out if its commands differ in engine, model or release."""
    found: dict[Path, list[OtherStarter]] = {}
    for path in paths:
        commands: list[tuple[str, OtherStarter]] = []
        with isolated(str(path)):
            commands += _other_in_file(path)
        for file, starter in commands:
            rows = (Path(os.path.normpath(path.parent / file)), path.parent / Path(file).name)
            if target := next((row for row in rows if row in paths and row != path), None):
                found.setdefault(target, []).append(starter)
    return {file: rows[0] for file, rows in found.items() if _others_agree(rows)}


@cache
def _flags() -> tuple[str, ...]:
    """Returns the flags of these engines that name option files."""
    rows = map(engines.load, engines.names())
    return tuple(f"--{row.option_file_flag}" for row in rows if not row.default)


def _other_in_file(path: Path) -> Iterator[tuple[str, OtherStarter]]:
    try:
        text = read_text(path)
        if not any(flag in text for flag in _flags()):
            return  # parsing would take most of the time
        source = read_file(path)
    except BadInput:
        return  # reported with the file itself
    for engine, reader in readers(source, ()):
        stated = Pins(reader.stating(source.text), source.documents, reader.naming())
        for file, model in reader.option_files(source):
            named = stated.tables(file.location.line)
            words = tuple(f"{path}, {row}" for row in stated.words) if named else ()
            yield file.text, OtherStarter(engine.name, named, words, model)


def _others_agree(rows: list[OtherStarter]) -> bool:
    engines = {row.engine for row in rows}
    models = {row.model.name for row in rows if row.model}
    releases = {row.named.releases for row in rows if row.named}
    return len(engines) == 1 and len(models) <= 1 and len(releases) <= 1


@dataclass(frozen=True, slots=True)
class Starter:
    """A server command with the tables of its pinned release and the words that pin it."""

    worker: Server
    named: PinnedTables | None
    words: tuple[str, ...]


Isolated = Callable[[str], AbstractContextManager[None]]
"""Reports a bug of the toolkit for a file name and lets the check of other files continue."""


def starters(paths: Collection[Path], isolated: Isolated) -> Mapping[Path, Starter]:
    """Maps option files to the server commands in `paths` that read them. The first of several
    commands is used; a file is left out if they differ in model or release."""
    folders = {path.parent for path in paths}
    found: dict[Path, list[Starter]] = {}
    for path in paths:
        rows: list[Starter] = []
        with isolated(str(path)):
            rows += _in_file(path)
        for starter in rows:
            for file in option_files(starter.worker, path.parent):
                if file.parent in folders and file in paths and file != path:
                    found.setdefault(file, []).append(starter)
                    break
    return {file: rows[0] for file, rows in found.items() if _agree(rows)}


def _in_file(path: Path) -> Iterator[Starter]:
    try:
        if not may_name_a_file(read_text(path)):
            return  # parsing would take most of the time
        source = read_file(path)
    except BadInput:
        return  # reported with the file itself
    stated = Pins(source.text, source.documents)
    for worker in _workers(source):
        if worker.file:
            line = worker.words[-1][1].line
            named = stated.tables(line)
            words = tuple(f"{path}, {row}" for row in stated.words) if named else ()
            yield Starter(worker, named, words)


def _workers(source: Text) -> Sequence[Server]:
    from .read import commands, containers  # not needed for option files

    if source.documents:
        return containers.in_documents(source.documents)
    return commands.in_script(source.text)


def _agree(rows: Sequence[Starter]) -> bool:
    models = {row.worker.model.name for row in rows if row.worker.model}
    releases = {row.named.releases for row in rows if row.named}
    return len(models) <= 1 and len(releases) <= 1
