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
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..facts import engines
from ..facts.engines import Engine
from ..files import read_text
from .engine import default_formats, every, formats, mentions_holder, recorded
from .model import OptionsBlock, Server, is_open
from .read.file import PROSE, Text, may_hold, read_file
from .read.option_file import read_option_file
from .releases import PinnedTables, Pins


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


def by_file(sections: Iterable[OptionsBlock]) -> dict[str, Mapping[str, Any]]:
    """Returns the options blocks by file name. If several config maps have files of the same name,
    the key is `map/name`."""
    rows = [(section, file_name(section)) for section in sections]
    names = Counter(name for _, name in rows)
    return {
        f"{row.config_map}/{name}" if row.config_map and names[name] > 1 else name: row.options
        for row, name in rows
    }


def file_name(section: OptionsBlock) -> str:
    """Returns the name of the embedded file that contains an options block."""
    return section.file.rpartition("/")[2] or file_in(section.within)


def file_in(within: str) -> str:
    """Returns the name of an embedded file: in a config map, or written by a script."""
    return within.partition("data.")[2] or within.rpartition("/")[2]


def of_file(workers: Sequence[Server], section: OptionsBlock) -> Server | None:
    """Returns a server that reads an option file, if all its readers serve the same model."""
    name = file_name(section).rpartition("/")[2]
    users = [row for row in workers if row.file and row.file == name]
    if section.config_map:
        users = [row for row in users if row.config_map in ("", section.config_map)]
    models = {row.model.name for row in users if row.model}
    return users[0] if users and len(models) <= 1 else None


Isolated = Callable[[str], AbstractContextManager[None]]
"""Reports a bug of the toolkit for a file name and lets the check of other files continue."""


@dataclass(frozen=True, slots=True)
class Starter:
    """A server command with the tables of its pinned release and the words that pin it."""

    server: Server
    named: PinnedTables | None
    words: tuple[str, ...]


def starters(paths: Collection[Path], isolated: Isolated) -> Mapping[tuple[str, Path], Starter]:
    """Maps option files, by engine, to the commands in `paths` that read them. The first of several
    commands is used; a file is left out if they differ in model or release."""
    found: dict[tuple[str, Path], list[Starter]] = {}
    for path in paths:
        rows: list[tuple[Iterable[Path], Starter]] = []
        with isolated(str(path)):
            rows += _in_file(path)
        for files, starter in rows:
            if file := next((row for row in files if row in paths and row != path), None):
                found.setdefault((starter.server.engine, file), []).append(starter)
    return {key: rows[0] for key, rows in found.items() if _agree(rows)}


def _in_file(path: Path) -> Iterator[tuple[Iterable[Path], Starter]]:
    """Yields the server commands of a file that read option files, with the paths of these."""
    try:
        text = read_text(path)
        if not any(flag in text for flag in every("file_flags")):
            return  # parsing would take most of the time
        source = read_file(path)
    except BadInput:
        return  # reported with the file itself
    for engine in map(engines.load, recorded()):
        pins = None
        for server, files in _servers(source, engine, path.parent):
            pins = pins or Pins(source.text, source.documents, engine)
            named = pins.tables(server.texts[-1][1].line)
            words = tuple(f"{path}, {row}" for row in pins.words) if named else ()
            yield files, Starter(server, named, words)


def _servers(source: Text, engine: Engine, folder: Path) -> Iterator[tuple[Server, Iterable[Path]]]:
    """Yields the servers of an engine that read option files, with the paths of these."""
    if formats(engine.name).dialect == "click":
        known, text = default_formats(), source.text
        starts = known.program in text or mentions_holder(text)
        if not starts or not any(flag in text for flag in known.file_flags):
            return
        from .read import commands, containers  # not needed for option files

        is_yaml = bool(source.documents)
        in_script = [] if is_yaml else commands.in_script(source.script, engine.name)
        servers = containers.in_documents(source.documents) if is_yaml else in_script
        yield from ((row, option_files(row, folder)) for row in servers if row.file)
        return
    if source.form != PROSE and may_hold(engine.name, source):
        from .read import engine_options

        for file, model in engine_options.option_files(source, engine):
            paths = (Path(os.path.normpath(folder / file.text)), folder / Path(file.text).name)
            yield Server((file,), engine=engine.name, named=model), paths


def _agree(rows: Sequence[Starter]) -> bool:
    models = {row.server.model.name for row in rows if row.server.model}
    releases = {row.named.releases for row in rows if row.named}
    return len(models) <= 1 and len(releases) <= 1
