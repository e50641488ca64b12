"""What the launcher prints: results and summaries as text that fits 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .rehearsal import Rehearsed
    from .smoke.result import Result

COLUMNS = 80
INDENT = " " * 12
WORDS = {"passed": "pass", "failed": "FAIL", "warned": "warn", "skipped": "-"}


def check(results: Sequence[Result]) -> str:
    """A line per check, or one for each way in which it went over different transports.

    What was seen follows in full where the check did not pass.
    """
    ways = dict.fromkeys(one.outcome for one in results)
    return "\n".join(_line([one for one in results if one.outcome == way]) for way in ways)


def _line(same: Sequence[Result]) -> str:
    first = same[0]
    where = "both" if len(same) > 1 else first.transport
    line = f"{WORDS[first.outcome]:<6}{where:<6}{first.id:<11}{first.title:<20}"
    if first.outcome in ("passed", "skipped"):
        room = COLUMNS - len(line)
        return f"{line}{textwrap.shorten(first.evidence, room, placeholder='...')}"
    seen = dict.fromkeys(one.evidence for one in same)
    return "\n".join([line.rstrip(), *map(_wrapped, seen)])


def smoke(summary: Mapping[str, Any]) -> str:
    """The numbers of a suite by transport, and in all."""
    rows = [*summary["transports"].items()]
    if len(rows) > 1:
        rows.append(("all", summary))
    header = f"{'TRANSPORT':<11}{'CHECKS':>6}{'PASSED':>8}{'FAILED':>8}{'WARNED':>8}"
    lines = [f"{header}{'SKIPPED':>9}{'TIME':>9}"]
    for name, row in rows:
        passed, failed = f"{row['passed']:>8}", f"{row['failed']:>8}"
        lines.append(
            f"{name:<11}{row['checks']:>6}{passed}{failed}{row['warnings']:>8}"
            f"{row['skipped']:>9}{row['seconds']:>7.1f} s"
        )
    return "\n".join(lines)


def rehearsal(row: Rehearsed) -> dict[str, Any]:
    """One target of a rehearsal as JSON."""
    return {
        "target": row.target,
        "passed": row.passed,
        "folder": str(row.folder),
        "ready_after_s": row.ready_after_s,
        "smoke": row.smoke,
    }


def rehearsals(rows: Sequence[Rehearsed]) -> str:
    """A table with one row per target and transport, and where its evidence is."""
    header = f"{'TARGET':<14}{'READY':>8}  {'TRANSPORT':<9}{'CHECKS':>7}{'FAILED':>7}{'WARNED':>7}"
    lines = [f"{header}{'SKIPPED':>8}  RESULT"]
    for row in rows:
        lines += _rows(row)
    lines.append("")
    for row in rows:
        results = "smoke.json, smoke.xml, " if row.smoke else ""
        lines += [f"{row.target}: stopped; {results}server.log and run.json in", f"  {row.folder}"]
    return "\n".join(lines)


def _rows(row: Rehearsed) -> Iterable[str]:
    if row.smoke is None or row.ready_after_s is None:
        yield f"{row.target:<14}{'-':>8}  {'-':<9}{'-':>7}{'-':>7}{'-':>7}{'-':>8}  not ready"
        return
    start = f"{row.target:<14}{row.ready_after_s:>6.1f} s"
    for transport, found in row.smoke["transports"].items():
        counts = f"{found['checks']:>7}{found['failed']:>7}{found['warnings']:>7}"
        word = "failed" if found["failed"] else "passed"
        yield f"{start}  {transport:<9}{counts}{found['skipped']:>8}  {word}"
        start = " " * len(start)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, COLUMNS, initial_indent=INDENT, subsequent_indent=INDENT)
