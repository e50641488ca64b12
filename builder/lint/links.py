"""Links option files to the commands that read them.

An option file alone names neither a release nor a model; the script, the job or the manifest
next to it that starts a server with it does.
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
    """Whether a text can hold a server's command with an option file."""
    starts = any(name in text for name in (COMMAND, WORKER, *TOOLS))
    return starts and any(flag in text for flag in FILE_FLAGS)


def option_files(worker: Server, folder: Path) -> Iterator[Path]:
    """Where the option file of a command may lie that stands in a folder: where it says, or, as it
    may be mounted elsewhere, in the folder itself."""
    if worker.file and not is_open(worker.file_path):
        yield Path(os.path.normpath(folder / worker.file_path))
    if worker.file and not is_open(worker.file):
        yield folder / worker.file


def on_disk(servers: Iterable[Server], folder: Path) -> dict[str, Mapping[str, Any]]:
    """The options of each file in or below a folder that servers read, by its name."""
    read_files = {row.file: read_option_file(row.file_path, folder) for row in servers if row.file}
    return {name: options for name, options in read_files.items() if options}


def by_file(sections: Iterable[Section]) -> dict[str, Mapping[str, Any]]:
    """The options of sections by the name of the file that each is in; of files of one name in
    several config maps by `map/name`."""
    rows = [(section, file_name(section)) for section in sections]
    names = Counter(name for _, name in rows)
    return {
        f"{row.config_map}/{name}" if row.config_map and names[name] > 1 else name: row.options
        for row, name in rows
    }


def file_name(section: Section) -> str:
    """The name of the file that a section is in, inside of another one."""
    return section.file.rpartition("/")[2] or file_in(section.within)


def file_in(within: str) -> str:
    """The name of a file inside another one: of a config map, or one that a script writes."""
    return within.partition("data.")[2] or within.rpartition("/")[2]


def of_file(workers: Sequence[Server], section: Section) -> Server | None:
    """The server that reads an option file, if all that read it serve one model."""
    name = file_name(section).rpartition("/")[2]
    users = [row for row in workers if row.file and row.file == name]
    if section.config_map:
        users = [row for row in users if row.config_map in ("", section.config_map)]
    models = {row.model.name for row in users if row.model}
    return users[0] if users and len(models) <= 1 else None


def by_path(servers: Iterable[Server]) -> dict[str, list[Server]]:
    """The servers at each path of one document."""
    found: dict[str, list[Server]] = {}
    for row in servers:
        found.setdefault(row.path, []).append(row)
    return found


def other_starters(paths: Collection[Path], isolated: Isolated) -> Mapping[Path, OtherStarter]:
    """The command that reads each option file, for those that others of `paths` start and that all
    of these read by one release and for one model."""
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
    """The flags of these engines that name option files."""
    rows = map(engines.load, engines.names())
    return tuple(f"--{row.option_file_flag}" for row in rows if not row.default)


def _other_in_file(path: Path) -> Iterator[tuple[str, OtherStarter]]:
    try:
        text = read_text(path)
        if not any(flag in text for flag in _flags()):
            return  # before it is parsed, which takes most of the time
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
    """A server's command, the release that counts for it in its file, and which words name it."""

    worker: Server
    named: PinnedTables | None
    words: tuple[str, ...]


Isolated = Callable[[str], AbstractContextManager[None]]
"""Reports a fault of ours for a file, by its name, and lets the others be checked."""


def starters(paths: Collection[Path], isolated: Isolated) -> Mapping[Path, Starter]:
    """The one server that reads each option file, for those that others of `paths` start.

    Of several commands with one file the first counts, unless they differ in model or release.
    """
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
            return  # before it is parsed, which takes most of the time
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
    from .read import commands, containers  # option files alone need neither

    if source.documents:
        return containers.in_documents(source.documents)
    return commands.in_script(source.text)


def _agree(rows: Sequence[Starter]) -> bool:
    models = {row.worker.model.name for row in rows if row.worker.model}
    releases = {row.named.releases for row in rows if row.named}
    return len(models) <= 1 and len(releases) <= 1
