"""Places for labels beside the marks of a chart, over nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

LETTER, LINE = 7.8, 13  # what a letter of a label takes
PHONE = 1.45  # how much larger labels are drawn on a phone
MARK = 6  # from the middle of a mark to its edge
STEP = 5  # between the pieces of a line that are looked at

Spot = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom


class Place(NamedTuple):
    """Where a label starts, on its base line; `tight` if there is no room for it on a phone."""

    x: float
    y: float
    tight: bool


class Labels:
    """A label stands beside its mark, off the lines where it can. One without room is left out."""

    def __init__(self, frame: Box, marks: Iterable[Spot], lines: Iterable[Sequence[Spot]]) -> None:
        self._frame = frame
        self._taken = [(a - MARK, b - MARK, a + MARK, b + MARK) for a, b in marks]
        self._lines = [(a, b, a, b) for line in lines for a, b in _along(line)]
        self._taken_on_phones: list[Box] = []

    def place(self, text: str, a: float, b: float) -> Place | None:
        """A place for the label of the mark at `a`, `b`."""
        width = len(text) * LETTER
        left, below = a - 9 - width, b + 18
        spots = (
            (a + 9, b - 8),
            (left, b - 8),
            (a + 9, below),
            (left, below),
            (a - width / 2, b - 13),
        )
        for others in ([*self._taken, *self._lines], self._taken):
            for x, y in spots:
                box = _box(x, y, width)
                if text and self._inside(box) and not _overlaps(box, others):
                    self._taken.append(box)
                    return Place(x, y, self._is_tight(_box(x, y, width, PHONE)))
        return None

    def _is_tight(self, box: Box) -> bool:
        tight = not self._inside(box) or _overlaps(box, self._taken_on_phones)
        if not tight:
            self._taken_on_phones.append(box)
        return tight

    def _inside(self, box: Box) -> bool:
        left, top, right, bottom = self._frame
        return box[0] > left and box[1] > top and box[2] < right and box[3] < bottom


def _along(line: Sequence[Spot]) -> Iterator[Spot]:
    """Places on a line, close to each other."""
    for (a, b), (c, d) in pairwise(line):
        pieces = math.ceil(math.hypot(c - a, d - b) / STEP) or 1
        for piece in range(pieces + 1):
            share = piece / pieces
            yield a + (c - a) * share, b + (d - b) * share


def _box(x: float, y: float, width: float, factor: float = 1.0) -> Box:
    return (x, y - LINE * factor, x + width * factor, y + 2)


def _overlaps(one: Box, others: Iterable[Box]) -> bool:
    return any(
        one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
        for other in others
    )
