"""The one form in which anything is said to be wrong, and the spelling help that its fixes give."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault: where it is, what is wrong there, and what to do about it.

    `rule` is the id of the rule that is broken, where there is one. A problem of severity
    `warning` is reported and stops nothing. `path` is the dotted path of the value to blame where
    `where` says more than that, for a reader: file and line.
    """

    where: str
    message: str
    fix: str = ""
    rule: str = ""
    severity: Severity = "error"
    path: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}; {self.fix}" if self.fix else text


def nearest(name: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the nearest known one, or all of them.

    >>> nearest("gb20", ["gb200", "h200"])
    'did you mean gb200? Known: gb200, h200'
    """
    names = sorted(known)
    listing = f"Known: {', '.join(names)}"
    if close := closest(name, names):
        return f"did you mean {close}? {listing if len(names) <= 8 else ''}".rstrip()
    return listing if len(names) <= 16 else f"one of {len(names)} known names is expected"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was meant: at most two letters away, else one that looks alike.

    Of names equally far, the one with the same first letter and length is meant.
    """
    names, given = list(known), name.lower()
    ranked = sorted(
        (edits, other[:1].lower() != given[:1], abs(len(other) - len(name)), other)
        for other in names
        if (edits := _edits(given, other.lower())) is not None and edits < len(other)
    )
    if ranked:
        return ranked[0][-1]
    alike = difflib.get_close_matches(name, names, n=1)
    return alike[0] if alike else None


def _edits(a: str, b: str, limit: int = 2) -> int | None:
    """Letters to insert, delete, replace or swap with a neighbour; `None` if more than `limit`."""
    if abs(len(a) - len(b)) > limit:
        return None
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        older, before, row = before, row, [i]
        for j, other in enumerate(b, 1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        if min(row) > limit and min(before) > limit:
            return None
    return row[-1] if row[-1] <= limit else None
