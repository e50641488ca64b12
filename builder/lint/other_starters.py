"""The command of another engine that reads an option file, in another of the checked files.

Such a file alone names no engine, often no release and no model either.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

from ..errors import BadInput
from ..facts import engines
from ..files import read_text
from . import other_engines
from .other_engines import Starter
from .starters import Isolated
from .stated import Stated
from .validate import read


def starters(paths: Collection[Path], isolated: Isolated) -> Mapping[Path, Starter]:
    """The command that reads each option file, for those that others of `paths` start and that all
    of these read by one release and for one model."""
    found: dict[Path, list[Starter]] = {}
    for path in paths:
        commands: list[tuple[str, Starter]] = []
        with isolated(str(path)):
            commands += _in_file(path)
        for file, starter in commands:
            rows = (Path(os.path.normpath(path.parent / file)), path.parent / Path(file).name)
            if target := next((row for row in rows if row in paths and row != path), None):
                found.setdefault(target, []).append(starter)
    return {file: rows[0] for file, rows in found.items() if _agree(rows)}


@cache
def _flags() -> tuple[str, ...]:
    """The flags of these engines that name option files."""
    rows = map(engines.load, engines.names())
    return tuple(f"--{row.option_file_flag}" for row in rows if not row.default)


def _in_file(path: Path) -> Iterator[tuple[str, Starter]]:
    try:
        text = read_text(path)
        if not any(flag in text for flag in _flags()):
            return  # before it is parsed, which takes most of the time
        source = read(path)
    except BadInput:
        return  # reported with the file itself
    for engine, reader in other_engines.readers(source, ()):
        stated = Stated(reader.stating(source.text), source.documents, reader.naming())
        for file, model in reader.option_files(source):
            named = stated.tables(file.location.line)
            words = tuple(f"{path}, {row}" for row in stated.words) if named else ()
            yield file.text, Starter(engine.name, named, words, model)


def _agree(rows: list[Starter]) -> bool:
    engines = {row.engine for row in rows}
    models = {row.model.name for row in rows if row.model}
    releases = {row.named.releases for row in rows if row.named}
    return len(engines) == 1 and len(models) <= 1 and len(releases) <= 1
