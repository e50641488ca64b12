"""One file by several release tables: those beside its release, and those that its lines name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..diagnostics import Diagnostic
from ..facts.release import Release
from ..rules.judgement import agreed
from .coverage import Verdict
from .stated import Named, Stated

Judge = Callable[[Release], Verdict]
"""What one table has against the file."""


def by_neighbours(known: Release, judge: Judge) -> Verdict:
    """A file by one release, or by those beside it."""
    verdicts = {table.name: judge(table) for table in known.judges}
    found = agreed({name: verdict.diagnostics for name, verdict in verdicts.items()})
    *_, newest = verdicts.values()
    return replace(newest, diagnostics=found)


def by_statement(stated: Stated, assumed: Release, judge: Judge) -> Verdict:
    """A file of which each line is judged by the release that counts for it.

    Where the nearest words do not tell a release, that is the one that is assumed.
    """
    used = dict.fromkeys(table for each in stated.named for table in each.judges)
    unknown = any(not row.releases for row in stated.statements)
    found = {table: judge(table) for table in (*used, *([assumed] if unknown else ()))}
    lines = {row.location.line for verdict in found.values() for row in verdict.diagnostics}
    governed: dict[tuple[tuple[Release, ...], bool], set[int]] = {}
    for line in sorted(lines):
        named = stated.tables(line)
        key = (named.judges, named.too_old) if named else ((assumed,), False)
        governed.setdefault(key, set()).add(line)
    rows: list[Diagnostic] = []
    for (judges, doubtful), here in governed.items():
        agreed_on = agreed(
            {
                table.name: [row for row in found[table].diagnostics if row.location.line in here]
                for table in judges
            }
        )
        rows += (replace(row, severity="warning") if doubtful else row for row in agreed_on)
    *_, last = found.values()
    return replace(last, diagnostics=rows)


def of_old(named: Named) -> str:
    """That a file names a release of which nothing is known; empty for any other."""
    if not named.too_old:
        return ""
    return (
        f"a release older than {named.judges[0].name}, the oldest table, is named: "
        "what that table refuses is only warned of"
    )
