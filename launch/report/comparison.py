"""The comparison of runs: their settings, and their results at the same load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from builder.number_format import milliseconds, number, signed_percent, usd, value_text

from .evidence import RunEvidence, every_point
from .results import BenchResults, LoadPoint
from .tables import LOAD, PageTable, numeric, texts

SYSTEM_SETTINGS = ("model", "precision", "gpu", "num_gpus", "engine", "release", "target")
BENCH_SETTINGS = ("tool", "api", "workload", "isl", "osl", "slo", "price_per_gpu_hour_usd", "seed")
# Some tools report the requested lengths, others the mean.
LENGTHS_DIFFER = 1.15
# title, the measure of a point
MEASURES: tuple[tuple[str, Callable[[LoadPoint], float | None]], ...] = (
    ("output tokens/s", lambda point: point.rate("output_tokens_per_s")),
    ("tokens/s/user", lambda point: point.rate("output_tokens_per_s_per_user")),
    ("tokens/s/GPU", lambda point: point.rate("output_tokens_per_s_per_gpu")),
    ("TTFT p50", lambda point: point.stats("ttft_ms").p50),
    ("TTFT p99", lambda point: point.stats("ttft_ms").p99),
    ("TPOT p50", lambda point: point.stats("tpot_ms").p50),
    ("e2e p50", lambda point: point.stats("e2e_ms").p50),
)


def differences(runs: Sequence[RunEvidence]) -> list[dict[str, Any]]:
    """Each run against the first one, at each load: each measure with its change as a share.

    Rehearsals, other workloads and loads with failed requests are left out: their speed says
    nothing.
    """
    if not (real := _comparable(runs)):
        return []
    base = {point.label: point for point in real[0].bench.clean_points}
    found = []
    for run in real[1:]:
        for point in run.bench.clean_points:
            if point.label in base:
                found.append(_difference(run, point, base[point.label]))
    return found


def _comparable(runs: Sequence[RunEvidence]) -> list[RunEvidence]:
    """The first run that is no rehearsal, and those of the same workload."""
    real = [run for run in runs if not run.rehearsal]
    return [run for run in real if is_same_workload(real[0].bench, run.bench)]


def is_same_workload(one: BenchResults, other: BenchResults) -> bool:
    """Whether two runs had the same workload, as far as both record it; tools round lengths."""
    kinds = {one.kind, other.kind} - {None, "unknown"}
    for a, b in ((one.isl, other.isl), (one.osl, other.osl)):
        if a and b and not 1 / LENGTHS_DIFFER < a / b < LENGTHS_DIFFER:
            return False
    return len(kinds) < 2


def _difference(run: RunEvidence, point: LoadPoint, base: LoadPoint) -> dict[str, Any]:
    values: dict[str, float | None] = {}
    changes: dict[str, float | None] = {}
    for title, measure in MEASURES:
        value, was = measure(point), measure(base)
        values[title] = value
        changes[title] = value / was - 1 if value is not None and was else None
    return {"run": run.title, "load": point.label, "values": values, "changes": changes}


def overview(runs: Sequence[RunEvidence]) -> PageTable:
    titles = ("failed", "most tokens/s", "per GPU", "best for a user", "shortest TTFT p50",
              "shortest e2e p50", "within SLO", "million tokens")  # fmt: skip
    table = PageTable("The runs at a glance", [("run", "text"), *numeric(*titles)])
    for run in runs:
        table.add(*_overview(run))
    return table.without_empty_columns()


def _overview(run: RunEvidence) -> tuple[object, ...]:
    result, best = run.bench, run.bench.headline
    failed = f"{number(result.failed)} of {number(result.sent)}" if result.sent else number(None)
    if best is None:
        return (run.title, failed, *[number(None)] * 7)

    def of_all(read: Callable[[LoadPoint], float | None]) -> list[float]:
        return [value for point in result.clean_points if (value := read(point)) is not None]

    return (
        run.title,
        failed,
        f"{number(best.rate('output_tokens_per_s'))} at {best.load}",
        number(None if run.rehearsal else best.rate("output_tokens_per_s_per_gpu")),
        number(max(of_all(lambda p: p.rate("output_tokens_per_s_per_user")), default=None)),
        milliseconds(min(of_all(lambda p: p.stats("ttft_ms").p50), default=None)),
        milliseconds(min(of_all(lambda p: p.stats("e2e_ms").p50), default=None)),
        number(result.largest_concurrency_within_slo),
        usd(None if run.rehearsal else best.usd_per_million_output_tokens),
    )


def settings(runs: Sequence[RunEvidence]) -> PageTable:
    """Settings that differ: a row per setting, a column per run."""
    titles = [run.title for run in runs]
    table = PageTable("What differs between the runs", texts("setting", *titles))
    for name, values in _settings(runs):
        shown = list(map(_text, values))
        if len(set(shown)) > 1:
            table.add(name, *shown)
    return table


def _settings(runs: Sequence[RunEvidence]) -> Iterator[tuple[str, list[object]]]:
    for name in (*SYSTEM_SETTINGS, "rehearsal"):
        yield name, [getattr(run.bench.subject, name) for run in runs]
    for name in BENCH_SETTINGS:
        yield name, [getattr(run.bench, name) for run in runs]
    decisions = [run.decisions for run in runs]
    if all(decisions):
        paths: dict[str, Any] = {}
        for one in decisions:
            paths |= one
        for path in paths:
            yield path, [one.get(path) for one in decisions]


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {number(one)}" for key, one in value.items()) or number(None)
    return value_text(value)


def changes(runs: Sequence[RunEvidence]) -> PageTable:
    base = next(iter(_comparable(runs)), runs[0]).title
    left_out = "rehearsals, other workloads and loads with failed requests are left out"
    columns = [("run", "text"), LOAD, *numeric(*(title for title, _ in MEASURES))]
    table = PageTable(f"Changes against {base}; {left_out}", columns)
    words = {point.label: point.load for _, point in every_point(runs)}
    for row in differences(runs):
        table.add(row["run"], words[row["load"]], *map(signed_percent, row["changes"].values()))
    return table
