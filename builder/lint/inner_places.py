"""Places in texts, and in those that are values of a document: scripts and option files in
manifests."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache

from ..diagnostics import NOWHERE, Location
from ..documents import START, Yaml

# What stands in a quoted or folded text as it does in the text that it means.
_WORD = re.compile(r"[\w./:=-]{3,}")


def places(text: str, start: Location = START) -> Callable[[int], Location]:
    """The place of each position in a text that begins at `start`."""
    begins = [0] + [match.end() for match in re.finditer("\n", text)]

    def place(position: int) -> Location:
        row = bisect_right(begins, position) - 1
        column = position - begins[row] + (start.column if row == 0 else 1)
        return Location(start.line + row, column)

    return place


def inside(document: Yaml, path: str, text: str, place: Location) -> Location:
    """The place in a document of one in the text at a path, which counts from its own beginning.

    A text that is not written as it is read is found again by its words, one after the other.
    """
    if place == NOWHERE:
        return document.locate(path)
    if block := document.blocks.get(path):
        return Location(block.line + place.line - 1, block.column + place.column - 1)
    if path not in document.folded:
        return document.locate(path)
    start, written = document.folded[path]
    offsets, lines = _lines(text, written)
    before = text.splitlines(keepends=True)[: max(place.line - 1, 0)]
    at = bisect_right(offsets, sum(map(len, before)) + max(place.column - 1, 0)) - 1
    return Location(start.line + lines[at], start.column) if at >= 0 and lines[at] else start


@lru_cache(maxsize=4)
def _lines(text: str, written: str) -> tuple[list[int], list[int]]:
    """Where the words of a text begin, and in which line of what is written each stands."""
    offsets, lines, at, line = [], [], 0, 0
    for word in _WORD.finditer(text):
        found = written.find(word.group(), at)
        if found >= 0:
            line += written.count("\n", at, found)
            at = found
        offsets.append(word.start())
        lines.append(line)
    return offsets, lines
