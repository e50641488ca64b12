"""The comparison of runs: their settings, and their results at the same load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .evidence import RunEvidence
from .number_format import milliseconds, number, signed_percent, unit, usd
from .results import BenchResults, LoadPoint
from .tables import NUMERIC, PageTable, make_table, without_empty_columns

SYSTEM_SETTINGS = ("model", "precision", "gpu", "num_gpus", "engine", "release", "target")
BENCH_SETTINGS = ("tool", "api", "workload", "isl", "osl", "slo", "price_per_gpu_hour_usd", "seed")
# By so many times: some tools tell the lengths that they asked for, others their mean.
LENGTHS_DIFFER = 1.15
# title, the measure of a point
MEASURES: tuple[tuple[str, Callable[[LoadPoint], float | None]], ...] = (
    ("output tokens/s", lambda point: point.rate("output_tokens_per_s")),
    ("tokens/s/user", lambda point: point.rate("output_tokens_per_s_per_user")),
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
    return [
        _difference(run, point, base[point.label])
        for run in real[1:]
        for point in run.bench.clean_points
        if point.label in base
    ]


def _comparable(runs: Sequence[RunEvidence]) -> list[RunEvidence]:
    """The first run that is no rehearsal, and those of the same workload."""
    real = [run for run in runs if not run.rehearsal]
    return [run for run in real if is_same_workload(real[0].bench, run.bench)]


def is_same_workload(one: BenchResults, other: BenchResults) -> bool:
    """Whether two runs had the same workload, by what both record; tools round lengths."""
    kinds = {one.kind, other.kind} - {None, "unknown"}
    lengths = ((one.isl, other.isl), (one.osl, other.osl))
    return len(kinds) < 2 and all(
        1 / LENGTHS_DIFFER < a / b < LENGTHS_DIFFER for a, b in lengths if a and b
    )


def _difference(run: RunEvidence, point: LoadPoint, base: LoadPoint) -> dict[str, Any]:
    values = {title: measure(point) for title, measure in MEASURES}
    bases = {title: measure(base) for title, measure in MEASURES}
    changes = {
        title: value / was - 1 if value is not None and (was := bases[title]) else None
        for title, value in values.items()
    }
    return {"run": run.title, "load": point.label, "values": values, "changes": changes}


def overview(runs: Sequence[RunEvidence]) -> PageTable:
    """A row per run with its headline figures."""
    titles = ("failed", "highest output", "per GPU", "best for a user", "shortest TTFT p50",
              "shortest e2e p50", "within SLO", "million tokens")  # fmt: skip
    columns = [("run", "text"), *((title, NUMERIC) for title in titles)]
    rows = [_overview(run) for run in runs]
    return without_empty_columns(make_table("The runs at a glance", columns, rows))


def _overview(run: RunEvidence) -> tuple[object, ...]:
    result, best = run.bench, run.bench.headline
    failed = f"{number(result.failed)} of {number(result.sent)}" if result.sent else number(None)
    if best is None:
        return (run.title, failed, *[number(None)] * 7)
    users = [p.rate("output_tokens_per_s_per_user") for p in result.clean_points]
    ttfts = [p.stats("ttft_ms").p50 for p in result.clean_points]
    medians = [p.stats("e2e_ms").p50 for p in result.clean_points]
    return (
        run.title,
        failed,
        f"{unit(best.rate('output_tokens_per_s'), 'tokens/s')} at {best.label}",
        number(None if run.rehearsal else best.rate("output_tokens_per_s_per_gpu")),
        number(max((u for u in users if u is not None), default=None)),
        milliseconds(min((t for t in ttfts if t is not None), default=None)),
        milliseconds(min((m for m in medians if m is not None), default=None)),
        number(result.largest_concurrency_within_slo),
        usd(None if run.rehearsal else best.usd_per_million_output_tokens),
    )


def settings(runs: Sequence[RunEvidence]) -> PageTable:
    """What was not the same: a row per setting, a column per run."""
    rows = [(name, *values) for name, values in _settings(runs) if len(set(values)) > 1]
    columns = [("setting", "text"), *((run.title, "text") for run in runs)]
    return make_table("What differs between the runs", columns, rows)


def _settings(runs: Sequence[RunEvidence]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name in (*SYSTEM_SETTINGS, "rehearsal"):
        yield name, tuple(_text(getattr(run.bench.subject, name)) for run in runs)
    for name in BENCH_SETTINGS:
        yield name, tuple(_text(getattr(run.bench, name)) for run in runs)
    decisions = [_decisions(run) for run in runs]
    if all(decisions):
        for path in dict.fromkeys(path for one in decisions for path in one):
            yield path, tuple(_text(one.get(path)) for one in decisions)


def _decisions(run: RunEvidence) -> dict[str, Any]:
    return {row["path"]: row["value"] for row in (run.manifest or {}).get("decisions", ())}


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {number(one)}" for key, one in value.items()) or number(None)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    return number(None) if value is None else str(value)


def changes(runs: Sequence[RunEvidence]) -> PageTable:
    """Every measured run against the first one, load by load."""
    rows = [
        (row["run"], row["load"], *map(signed_percent, row["changes"].values()))
        for row in differences(runs)
    ]
    columns = [("run", "text"), ("load", "code"), *((title, NUMERIC) for title, _ in MEASURES)]
    base = next(iter(_comparable(runs)), runs[0]).title
    left_out = "rehearsals, other workloads and loads with failed requests are left out"
    return make_table(f"Changes against {base}; {left_out}", columns, rows)
