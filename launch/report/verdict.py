"""The first screen of a report: notices, the verdict in sentences, and headline figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from builder.facts.published_results import SHORT_NAMES
from builder.number_format import SPACE, UNKNOWN, milliseconds, number, percent, quantity, usd

from ..smoke.results import count, totals
from .comparison import is_same_workload
from .evidence import RunEvidence
from .results import BenchResults, LoadPoint

REHEARSAL = "a miniature on CPU, not a measurement of the GPU"

Tone = Literal["good", "note", "warning", "bad"]
WORST_FIRST: tuple[Tone, ...] = ("bad", "warning", "note", "good")


@dataclass(frozen=True, slots=True)
class Tile:
    """A headline figure: what it is, the figure, and under which conditions."""

    name: str
    value: str
    condition: str

    @property
    def figure(self) -> str:
        return self.value.partition(SPACE)[0]

    @property
    def unit(self) -> str:
        return self.value.partition(SPACE)[2]


@dataclass(frozen=True, slots=True)
class Notice:
    """A statement with its tone: the verdict, or a limitation of the figures."""

    tone: Tone
    title: str
    text: str


def verdict(runs: Sequence[RunEvidence]) -> Notice:
    worst: Tone = "good"
    if len(runs) == 1 and (_misses_slo(one := runs[0].bench) or (one.points and not one.headline)):
        worst = "warning"
    for notice in notices(runs):
        worst = min(worst, notice.tone, key=WORST_FIRST.index)
    if not any(run.bench.points for run in runs):
        if worst == "good" and not any(run.smoke for run in runs):
            worst = "warning"
        return Notice(worst, "Nothing was measured", " ".join(_smoke(runs)))
    if len(runs) == 1:
        title, sentences = _single(runs[0])
    else:
        title, sentences = _several(runs)
    return Notice(worst, title, " ".join(filter(None, (*sentences, *_smoke(runs)))))


def _single(run: RunEvidence) -> tuple[str, list[str]]:
    result = run.bench
    best = result.headline
    if found := _found_failures(run):
        title = f"The rehearsal found failures: {found}" if run.rehearsal else found
        most = "No load was served without a failed request."
        if best:
            most = (
                f"Without a failed request it delivers up to {_output(best)}, at {best.load_text}."
            )
        return title, [most]
    if best is None:
        return "No output was measured", [_failures(result)]
    if run.rehearsal:
        title = "The deployment works end to end; its speed says nothing about the GPU"
        first = ""
    elif result.slo and result.largest_concurrency_within_slo:
        largest = result.largest_concurrency_within_slo
        title = f"Within the SLO with up to {number(largest)} concurrent requests"
        point = next((p for p in result.points if p.concurrency == largest), best)
        first = f"There, within {_slo(result)}, it delivers {_output(point)}."
    elif _misses_slo(result):
        title = "No load met the service level"
        first = (
            f"{_slo(result)} was asked for; the smallest load came to {_latency(result.points[0])}."
        )
    else:
        title = f"{_output(best)} at {best.load_text}"
        first = f"There a median request takes {_median(best)}."
    return title, [first, _failures(result)]


def _found_failures(run: RunEvidence) -> str:
    failed, sent, smoke = run.bench.failed, run.bench.sent, totals(run.smoke)
    requests = f"{number(failed)} of {number(sent)} requests failed"
    checks = f"{smoke['failed']} of {smoke['checks']} smoke checks failed"
    ended = "The run ended by a failure"
    found = (
        ended if run.bench.outcome == "failed" else "",
        requests if failed else "",
        checks if smoke["failed"] else "",
    )
    return ", ".join(filter(None, found))


def _misses_slo(run: BenchResults) -> bool:
    """Whether no concurrency met the service level; open loops have none."""
    closed = bool(run.points) and all(point.concurrency for point in run.points)
    return bool(run.slo) and closed and not run.largest_concurrency_within_slo


def _several(runs: Sequence[RunEvidence]) -> tuple[str, list[str]]:
    """Only runs without failures can win; failures are reported first."""
    sent = ok = failed = 0
    failing: dict[str, str] = {}
    real: list[RunEvidence] = []
    for run in runs:
        sent, ok, failed = sent + run.bench.sent, ok + run.bench.ok, failed + run.bench.failed
        if found := _found_failures(run):
            failing[run.title] = found
        elif not run.rehearsal:
            real.append(run)
    title, sentences = _winner(real)
    if all(run.rehearsal for run in runs):
        title = "Side by side on CPU; the speed says nothing about the GPU"
    if len(failing) > 1:
        title = f"{len(failing)} of {len(runs)} runs have failures"
        sentences = [*(f"{name}: {found}." for name, found in failing.items()), *sentences]
    elif failing:
        title = ": ".join(*failing.items())
    return title, [*sentences, _failed(sent, ok, failed)]


def _winner(runs: Sequence[RunEvidence]) -> tuple[str, list[str]]:
    """The run with the highest output, and the one with the shortest median latency."""
    tops = [(run, point) for run in runs if (point := run.bench.headline)]
    if not tops:
        return "No run is without failures", []
    if not all(is_same_workload(tops[0][0].bench, run.bench) for run, _ in tops):
        return "Runs of different workloads side by side", ["Their speeds cannot be compared."]
    run, point = max(tops, key=lambda pair: pair[1].rate("output_tokens_per_s") or 0)
    sentences = [
        f"The highest output is that of {run.title}: {_output(point)} at {point.load_text}."
    ]
    return f"{run.title} delivers most", [*sentences, *_shortest(runs)]


def _shortest(runs: Sequence[RunEvidence]) -> Iterator[str]:
    medians = []
    for run in runs:
        for point in run.bench.clean_points:
            if (median := point.stats("e2e_ms").p50) is not None:
                medians.append((median, run.title, point.load_text))
    if medians:
        median, title, label = min(medians)
        yield f"The shortest median latency is that of {title}: {milliseconds(median)} at {label}."


def tiles(evidence: RunEvidence) -> list[Tile]:
    run = evidence.bench
    best = run.headline
    if best is None:
        return []
    quick = min(run.clean_points, key=lambda p: p.stats("e2e_ms").p50 or float("inf"))
    quick_ttft = quick.stats("ttft_ms")
    per_gpu = None if evidence.rehearsal else best.rate("output_tokens_per_s_per_gpu")
    rows = [
        Tile("Highest output", quantity(best.rate("output_tokens_per_s"), "tokens/s"),
             f"at {best.load_text}" + (f", {number(per_gpu)} from each GPU" if per_gpu else "")),
        Tile("For one user", quantity(quick.rate("output_tokens_per_s_per_user"), "tokens/s"),
             f"at {quick.load_text}, TPOT {milliseconds(quick.stats('tpot_ms').mean)}"),
        Tile("First token", milliseconds(quick_ttft.p50),
             f"median at {quick.load_text}, p99 {milliseconds(quick_ttft.p99)}"),
        Tile("Whole request", _median(quick),
             f"median at {quick.load_text}, {number(quick.stats('output_tokens').mean)} tokens"),
    ]  # fmt: skip
    if not evidence.rehearsal:
        rows += _costs(run, best)
    return [row for row in rows if row.value != UNKNOWN]


def _costs(run: BenchResults, best: LoadPoint) -> Iterator[Tile]:
    """Costs; not for rehearsals."""
    at = f"at {best.load_text} and {usd(run.price_per_gpu_hour_usd)} per GPU hour"
    if (cost := best.usd_per_million_output_tokens) is not None:
        yield Tile("Cost", usd(cost), f"per million output tokens, {at}")
    if (cost := best.usd_per_task) is not None:
        yield Tile("Cost of a task", usd(cost), at)


def notices(runs: Sequence[RunEvidence]) -> list[Notice]:
    """Limitations of the figures; a notice of several runs is shown once."""
    shared: dict[Notice, list[str]] = {}
    for run in runs:
        for notice in _notices(run):
            shared.setdefault(notice, []).append(run.title)
    if len(runs) == 1:
        return list(shared)
    found = []
    for notice, titles in shared.items():
        some = f": {'; '.join(titles)}" if len(titles) < len(runs) else ""
        found.append(replace(notice, title=notice.title + some))
    return found


def _notices(run: RunEvidence) -> Iterator[Notice]:
    result = run.bench
    if run.rehearsal:
        text = f"This is {REHEARSAL}. Files, server, protocol and client are the real ones."
        yield Notice("warning", "Rehearsal", text)
    if run.start and run.start.failed:
        text = "The cause is unknown; the first error is below."
        for cause in run.start.causes[:1]:
            text = f"{cause.title}: {cause.cause}" if cause.otherwise else cause.cause
        yield Notice("bad", f"The server {run.start.failed}", text)
    if result.interrupted:
        text = "Stopped before its end. What was measured until then is kept."
        yield Notice("warning", "Interrupted", text)
    if result.outcome == "failed":
        reason = result.failure or "The run did not keep why"
        yield Notice("bad", "Ended by a failure", f"{reason}. Loads after it are missing.")
    if result.near_limit:
        limited = ", ".join(point.load_text for point in result.points if point.client_limited)
        text = f"The client ran at {percent(result.share_of_limit)} of its own limit"
        text += f" at {limited}" if limited else ""
        text += "; from 70 % on the client may limit the figures, so they may be too low."
        yield Notice("warning", "Near the client's limit", text)
    if result.failed:
        text = f"{_failures(result)} They count in no latency."
        served = any(point.ok for point in result.points)
        yield Notice("warning" if served else "bad", "Failed requests", text)
    if run.bench.imported:
        text = f"Measured with {result.tool}; see what is known to mislead in its numbers."
        yield Notice("note", "Imported", text)
    if failed := count(run.smoke, "failed"):
        yield Notice("bad", "Smoke", f"{failed} smoke checks failed.")


def _output(point: LoadPoint) -> str:
    return quantity(point.rate("output_tokens_per_s"), "output tokens/s")


def _latency(point: LoadPoint) -> str:
    return ", ".join(
        f"{name} p99 {milliseconds(point.stats(key).p99)}" for key, name in SHORT_NAMES.items()
    )


def _slo(run: BenchResults) -> str:
    return ", ".join(f"{SHORT_NAMES[key]} {milliseconds(value)}" for key, value in run.slo.items())


def _median(point: LoadPoint) -> str:
    return milliseconds(point.stats("e2e_ms").p50)


def _failures(run: BenchResults) -> str:
    kinds: dict[str, int] = {}
    for point in run.points:
        for error in point.errors:
            kinds[error.kind] = kinds.get(error.kind, 0) + error.count
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return _failed(run.sent, run.ok, run.failed, named)


def _failed(sent: int, ok: int, failed: int, kinds: str = "") -> str:
    if not sent:
        return ""
    if not failed:
        return f"All {number(sent)} requests succeeded." if ok == sent else ""
    details = f": {kinds}" if kinds else ""
    return (
        f"{number(failed)} of {number(sent)} requests failed ({percent(failed / sent)}){details}."
    )


def _smoke(runs: Sequence[RunEvidence]) -> Iterator[str]:
    for run in runs:
        if run.smoke and len(runs) == 1:
            found = totals(run.smoke)
            more = f", {found['warnings']} with a warning" if found["warnings"] else ""
            yield f"{found['passed']} of {found['checks']} smoke checks passed{more}."
