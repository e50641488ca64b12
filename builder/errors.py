"""Every error that a user can cause or meet, as a tree with one exit code per kind.

ToolkitError
├── BadInput       2  the user wrote something wrong
├── BadFacts       3  a checkpoint or a data file is missing, truncated or contradicts itself
├── DamagedBundle  4  a bundle is not what its manifest says
├── NotReady       5  a server died or did not become ready in time
└── ChecksFailed   6  a smoke suite or a benchmark found faults

An error carries all independent problems of one run, one line each.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault: where it is, what is wrong there, and what to do about it.

    `rule` is the id of the rule that is broken, where there is one. A problem of severity
    `warning` is reported and stops nothing. `path` is the dotted path of the value to blame where
    `where` says more than that, for a reader: file and line.
    """

    where: str
    what: str
    remedy: str = ""
    rule: str = ""
    severity: Literal["error", "warning"] = "error"
    path: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}; {self.remedy}" if self.remedy else text


class ToolkitError(Exception):
    """The base of all errors that are reported without a traceback."""

    exit_code: ClassVar[int] = 1

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__("\n".join(map(str, self.problems)))


class BadInput(ToolkitError):
    exit_code = 2


class BadFacts(ToolkitError):
    exit_code = 3


class DamagedBundle(ToolkitError):
    exit_code = 4


class NotReady(ToolkitError):
    exit_code = 5


class ChecksFailed(ToolkitError):
    exit_code = 6


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
