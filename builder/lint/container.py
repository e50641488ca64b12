"""Containers of a manifest: the server commands and scripts that they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..diagnostics import Diagnostic, Location
from ..documents import Yaml
from . import script
from .script import Script, Word
from .section import below


@dataclass(frozen=True, slots=True)
class Run:
    """What one container runs: a script, and its `path` in the manifest.

    Places in the script count from `start`, or are the manifest's own where that is `None`. Unless
    `lines_kept`, the manifest writes the text on other lines, and all of it is at `start`.
    """

    path: str
    script: Script
    text: str = ""
    start: Location | None = None
    lines_kept: bool = False

    def move(self, fault: Diagnostic) -> Diagnostic:
        """A fault of the script at its place in the manifest."""
        if self.start is None:
            place = fault.location
        elif self.lines_kept and fault.location.line:
            row, column = fault.location
            place = Location(self.start.line + row - 1, self.start.column + column - 1)
        else:
            place = self.start
        within = ": ".join(filter(None, (self.path, fault.within)))
        return replace(fault, location=place, within=within)


def runs(document: Yaml) -> Iterator[Run]:
    """What the containers of a document run, as far as it starts a server or writes files."""
    for path, container in _containers(document.data, ""):
        words = [*_words(document, container, path, "command")]
        words += _words(document, container, path, "args")
        for index, (where, word) in enumerate(words):
            if script.is_server(word.text):
                rest = [later for _, later in words[index + 1 :]]
                yield Run(below(path, "args" if "args" in container else "command"), Script([rest]))
                break
            if script.mentions_server(word.text) or "<<" in word.text:
                block = document.blocks.get(where)
                start = block or document.locate(where)
                yield Run(where, script.read(word.text), word.text, start, block is not None)


def _containers(data: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(data, Mapping):
        if isinstance(data.get("command"), list) or isinstance(data.get("args"), list):
            yield path, data
        for key, value in data.items():
            yield from _containers(value, below(path, str(key)))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _containers(value, below(path, str(index)))


def _words(
    document: Yaml, container: Mapping[str, Any], path: str, key: str
) -> Iterator[tuple[str, Word]]:
    """The words of a list, each with its path. Kubernetes itself puts values in for `$(NAME)`."""
    values = container.get(key)
    for index, value in enumerate(values if isinstance(values, list) else ()):
        where = below(path, f"{key}.{index}")
        yield where, Word(str(value), document.locate(where), "$" not in str(value))
