"""Merges the findings of several release tables for the same options.

A release without a table is checked against its neighbours: what only one of them refuses may be
right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ..diagnostics import Diagnostic
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
    doubtful: list[Diagnostic] = []
    said: dict[tuple[object, ...], tuple[str, list[Diagnostic]]] = {}
    for name, diagnostics in found.items():
        for row in diagnostics:
            accepting = [other for other in found if not refuses(found[other], row)]
            if row.severity == "error" and accepting:
                what = f"{name} refuses it, {' and '.join(accepting)} not: {row.message}"
                doubtful.append(replace(row, message=what, severity="warning"))
                continue
            if row.severity == "warning" and (silent := _silent(found, row)):
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


def _silent(found: Mapping[str, Sequence[Diagnostic]], row: Diagnostic) -> list[str]:
    """The releases that have nothing at the place of a finding."""
    return [
        name
        for name, rows in found.items()
        if not any(_place(other) == _place(row) for other in rows)
    ]


def refuses(diagnostics: Iterable[Diagnostic], row: Diagnostic) -> bool:
    """Whether there is an error at the place of a finding, or for a group around it."""
    name = _name(row)
    return any(
        other.severity == "error"
        and other.within == row.within
        and (
            (_name(other) == name and other.location == row.location)
            or name.startswith(f"{_name(other)}." if _name(other) else "\0")
        )
        for other in diagnostics
    )


def _place(row: Diagnostic) -> tuple[object, ...]:
    return row.within, _name(row), row.location


def _name(row: Diagnostic) -> str:
    return row.path or row.where
