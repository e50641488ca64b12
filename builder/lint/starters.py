"""The server that reads an option file, as another of the files that are checked starts it.

An option file alone names neither a release nor a model; the script, the job or the manifest that
lies beside it and hands it to a server does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from ..files import read_text
from . import containers, script_workers, workers
from .stated import Named, Stated
from .validate import Text, read
from .workers import Worker


@dataclass(frozen=True, slots=True)
class Starter:
    """A server's command, the release that counts for it in its file, and which words name it."""

    worker: Worker
    named: Named | None
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
            for file in workers.option_files(starter.worker, path.parent):
                if file.parent in folders and file in paths and file != path:
                    found.setdefault(file, []).append(starter)
                    break
    return {file: rows[0] for file, rows in found.items() if _agree(rows)}


def _in_file(path: Path) -> Iterator[Starter]:
    try:
        if not workers.may_name_a_file(read_text(path)):
            return  # before it is parsed, which takes most of the time
        source = read(path)
    except BadInput:
        return  # reported with the file itself
    stated = Stated(source.text, source.documents)
    for worker in _workers(source):
        if worker.file:
            line = worker.words[-1][1].line
            named = stated.tables(line)
            words = tuple(f"{path}, {row}" for row in stated.words) if named else ()
            yield Starter(worker, named, words)


def _workers(source: Text) -> Sequence[Worker]:
    if source.documents:
        return containers.in_documents(source.documents)
    return script_workers.in_script(source.text)


def _agree(rows: Sequence[Starter]) -> bool:
    models = {row.worker.model.name for row in rows if row.worker.model}
    releases = {row.named.releases for row in rows if row.named}
    return len(models) <= 1 and len(releases) <= 1
