"""What the launcher prints: results and summaries as text that fits 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .rehearsal import Rehearsed
    from .smoke.suite import Result

COLUMNS = 80


def result(one: Result) -> str:
    """A line per check; what was seen follows in full where the check did not pass."""
    word = "pass" if one.passed else "FAIL" if one.failed else "warn"
    line = f"{word}  {one.transport:<4}  {one.title:<24} {one.seconds:6.2f} s"
    if one.passed:
        return f"{line}  {textwrap.shorten(one.detail, COLUMNS - len(line) - 2, placeholder='...')}"
    indent = " " * 6
    detail = textwrap.fill(one.detail, COLUMNS, initial_indent=indent, subsequent_indent=indent)
    return f"{line}\n{detail}"


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
    """A table with one row per target, and where its evidence is."""
    lines = [f"{'TARGET':<14}{'READY':>9}  {'CHECKS':>6}  {'FAILED':>6}  {'WARNED':>6}  RESULT"]
    for row in rows:
        if row.smoke is None or row.ready_after_s is None:
            lines.append(f"{row.target:<14}{'-':>9}  {'-':>6}  {'-':>6}  {'-':>6}  not ready")
        else:
            smoke = row.smoke
            numbers = f"{smoke['checks']:>6}  {smoke['failed']:>6}  {smoke['warnings']:>6}"
            word = "passed" if row.passed else "failed"
            lines.append(f"{row.target:<14}{row.ready_after_s:>7.1f} s  {numbers}  {word}")
    lines.append("")
    for row in rows:
        results = "smoke.json, " if row.smoke else ""
        lines += [f"{row.target}: stopped; {results}server.log and run.json in", f"  {row.folder}"]
    return "\n".join(lines)
