"""Merges the findings of several release tables for the same options.

A release without a table is checked against its neighbours: what only one of them refuses may be
right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ..diagnostics import Diagnostic
from ..documents import groups_of
from ..facts.release import Release


def judged(release: Release, find: Callable[[Release], Iterable[Diagnostic]]) -> list[Diagnostic]:
    """The findings of `find` with the table of a release, or with its neighbours' tables."""
    return agreed({table.name: list(find(table)) for table in release.judges})


def agreed(found: Mapping[str, Sequence[Diagnostic]]) -> list[Diagnostic]:
    """One list of what each release found, oldest release first.

    An error stays one where all releases have one at its place or above it. Where only some have,
    it is a warning that names them, as are warnings of some.
    """
    if len(found) == 1:
        return list(*found.values())
    verdicts = {name: Refusals(rows) for name, rows in found.items()}
    doubtful: list[Diagnostic] = []
    said: dict[tuple[object, ...], tuple[str, list[Diagnostic]]] = {}
    for name, diagnostics in found.items():
        for row in diagnostics:
            accepting = [other for other in found if not verdicts[other].refuses(row)]
            if row.severity == "error" and accepting:
                what = f"{name} refuses it, {' and '.join(accepting)} not: {row.message}"
                doubtful.append(replace(row, message=what, severity="warning"))
                continue
            silent = [other for other in found if not verdicts[other].has(row)]
            if row.severity == "warning" and silent:
                what = f"{name} warns of it, {' and '.join(silent)} not: {row.message}"
                doubtful.append(replace(row, message=what))
                continue
            key = (*_place(row), row.rule, row.severity)
            if key not in said or said[key][0] != name:  # said once, in the newest one's words
                said[key] = name, []
            said[key][1].append(row)
    rows = [*(row for _, rows in said.values() for row in rows), *doubtful]
    wrong = {_place(row) for row in rows if row.severity == "error"}
    return [row for row in rows if row.severity == "error" or _place(row) not in wrong]


class Refusals:
    """What one release found, to be compared with single findings of others."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        errors = [row for row in diagnostics if row.severity == "error"]
        self._places = {_place(row) for row in diagnostics}
        self._paths = {(row.within, row.path) for row in diagnostics}
        self._wrong = {_place(row) for row in errors}
        self._groups = {(row.within, _name(row)) for row in errors}

    def has(self, row: Diagnostic) -> bool:
        """Whether anything was found at the place of a finding."""
        return _place(row) in self._places

    def refuses(self, row: Diagnostic) -> bool:
        """Whether an error was found at the place of a finding, or for a group that it is in."""
        return _place(row) in self._wrong or any(
            (row.within, group) in self._groups for group in groups_of(_name(row))
        )

    def takes(self, row: Diagnostic) -> bool:
        """Whether nothing was found against the path of a finding, nor an error for its group."""
        return (row.within, row.path) not in self._paths and not self.refuses(row)


def _place(row: Diagnostic) -> tuple[object, ...]:
    return row.within, _name(row), row.location


def _name(row: Diagnostic) -> str:
    return row.path or row.where
