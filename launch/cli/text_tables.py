"""The launcher's results as text tables of at most 80 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from builder.number_format import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..bench.diff import PointDifference
    from ..rehearsal import RehearsalResult
    from ..report.published import PublishedFigure
    from ..smoke.results import CheckResult

# How results call the stand-in, and what its version ends with.
REFERENCE = "reference"
COLUMNS = 80
INDENT = " " * 12
OUTCOMES = {"passed": "pass", "failed": "FAIL", "warned": "warn", "skipped": "-"}


def check_lines(results: Sequence[CheckResult]) -> str:
    """A line per check, or one for each outcome if the transports differ.

    The evidence is in full where the check did not pass.
    """
    outcomes = dict.fromkeys(one.outcome for one in results)
    return "\n".join(_line([one for one in results if one.outcome == each]) for each in outcomes)


def _line(same: Sequence[CheckResult]) -> str:
    first = same[0]
    where = "both" if len(same) > 1 else first.transport
    line = f"{OUTCOMES[first.outcome]:<6}{where:<6}{first.id:<11}{first.title:<20}"
    evidence = dict.fromkeys(one.evidence for one in same)
    fits = len(evidence) == 1 and len(line) + len(first.evidence) <= COLUMNS
    if first.outcome == "passed" or fits:
        room = COLUMNS - len(line)
        shortened = textwrap.shorten(first.evidence, room, placeholder="...")
        return line + (shortened if shortened != "..." else f"{first.evidence[: room - 3]}...")
    return "\n".join([line.rstrip(), *map(_wrapped, evidence)])


def smoke_table(summary: Mapping[str, Any]) -> str:
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
    version = str(summary["engine"]["version"])
    if version.endswith(REFERENCE):
        lines.append(f"a rehearsal: {version} is the reference engine")
    elif summary["engine"]["rehearsal"]:
        lines.append(f"a rehearsal: {version} serves random weights")
    return "\n".join(lines)


def rehearsal_document(row: RehearsalResult) -> dict[str, Any]:
    return {
        "target": row.target,
        "passed": row.passed,
        "folder": str(row.folder),
        "ready_after_s": row.ready_after_s,
        "smoke": row.smoke,
        "bench": row.bench,
    }


def rehearsals_table(rows: Sequence[RehearsalResult]) -> str:
    header = f"{'TARGET':<14}{'READY':>8}  {'TRANSPORT':<9}{'CHECKS':>7}{'FAILED':>7}{'WARNED':>7}"
    lines = [f"{header}{'SKIPPED':>8}  RESULT"]
    for row in rows:
        lines += _rows(row)
    lines.append("")
    for row in rows:
        results = "smoke.json, smoke.xml, " if row.smoke else ""
        results += "bench.json, " if row.bench else ""
        lines += [f"{row.target}: stopped; {results}server.log and run.json in", f"  {row.folder}"]
    return "\n".join(lines)


def _rows(row: RehearsalResult) -> Iterable[str]:
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


def bench_table(document: Mapping[str, Any]) -> str:
    """A line per point, and what else a reader has to know of the whole."""
    header = f"{'LOAD':<9}{'OK':>6}{'FAILED':>7}{'TOK/S':>10}{'/USER':>8}"
    header += f"{'TTFT p50':>10}{'p99':>8}{'TPOT':>7}{'E2E p50':>9} ms"
    lines = [header, *map(_point, document["points"])] if document["points"] else []
    for one in document["points"]:
        lines += _failures(one)
    if document["outcome"] == "interrupted":
        text = "interrupted: the last point here may have fewer requests, later ones are missing"
        lines.append(text if document["points"] else "interrupted before the first point")
    if document["outcome"] == "failed" and document["points"]:
        lines.append("ended by a failure: later points are missing")
    if (engine := document["subject"]["engine"])["rehearsal"]:
        what = "the reference engine" if engine["used"] == REFERENCE else "the engine's CPU build"
        lines.append(f"rehearsal: {what} on a miniature; this says nothing about GPUs")
    if limited := [one["label"] for one in document["points"] if one.get("client_limited")]:
        share = document["client"]["share_of_limit"]
        text = f"warning: the client was the limit at {', '.join(limited)}: a load process used "
        text += f"{share:.0%} of its CPU time; give it more --processes or another machine"
        lines.append(textwrap.fill(text, COLUMNS))
    if document["slo"] and (largest := document["largest_concurrency_within_slo"]):
        lines.append(f"the largest concurrency within the SLO is {largest}")
    for one in (document["quality"] or {}).get("tasks", ()):
        interval = f"{one['low']:.3f} to {one['high']:.3f} of {one['items']} items"
        verdict = f", {one['verdict']} {one['reference']:.3f}" if one["verdict"] else ""
        lines.append(f"{one['task']}: {one['metric']} {one['score']:.3f}, {interval}{verdict}")
    return "\n".join(lines)


def _point(one: Mapping[str, Any]) -> str:
    def number(value: float | None, width: int, digits: int = 0) -> str:
        return f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"

    def of(name: str, key: str) -> float | None:
        return (one[name] or {}).get(key)

    counts = f"{one['requests']['ok']:>6}{one['requests']['failed']:>7}"
    speed = number(one["output_tokens_per_s"], 10, 1)
    speed += number(one["output_tokens_per_s_per_user"], 8, 1)
    times = number(of("ttft_ms", "p50"), 10, 1) + number(of("ttft_ms", "p99"), 8, 1)
    times += number(of("tpot_ms", "mean"), 7, 2) + number(of("e2e_ms", "p50"), 9)
    return f"{one['label']:<9}{counts}{speed}{times}"


def _failures(one: Mapping[str, Any]) -> Iterable[str]:
    for kind, found in one["errors"].items():
        text = f"{one['label']}: {found['count']} of {one['requests']['sent']} requests failed, "
        yield textwrap.fill(f"{text}{kind}: {found['example']}", COLUMNS, subsequent_indent="  ")


def paragraph(text: str) -> str:
    return textwrap.fill(plain(text), COLUMNS)


def causes_table(one: PublishedFigure) -> str:
    """How a run compares with a published figure, and what was not the same."""
    lines = [one.source, *textwrap.wrap(plain(one.summary), COLUMNS)]
    if one.causes:
        lines.append(f"{'CONDITION':<28}{'PUBLISHED':<26}{'HERE':<18}{'SPEED':>6}")
    for cause in one.causes:
        effect = plain(cause.effect)
        name, published, here = (
            textwrap.shorten(text, room, placeholder="...")
            for text, room in ((cause.name, 27), (cause.published, 25), (cause.here, 17))
        )
        lines.append(f"{name:<28}{published:<26}{here:<18}{effect:>6}".rstrip())
        lines += textwrap.wrap(cause.how, COLUMNS, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines)


def differences_table(found: Sequence[PointDifference], word: str) -> str:
    """A line per point and measure, then the verdict over all."""
    header = f"{'POINT':<8}{'MEASURE':<32}{'A':>10}{'B':>10}{'CHANGE':>9}"
    lines = [f"{header}  VERDICT"]
    for one in found:
        numbers = f"{one.a:>10.4g}{one.b:>10.4g}{one.percent:>+8.1f}%"
        lines.append(f"{one.point:<8}{one.measure:<32}{numbers}  {one.verdict}")
    more = ": measure more requests" if word == "unsure" else ""
    return "\n".join([*lines, f"B is {word}{more}"])
