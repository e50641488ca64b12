"""How runs differ: in what was measured, and in what came out at the same load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import table
from .evidence import Evidence
from .figures import headline
from .measured import Point
from .numerals import milliseconds, number, ratio, unit, usd
from .table import NUMERIC, Table

# title, the measure of a point
MEASURES: tuple[tuple[str, Callable[[Point], float | None]], ...] = (
    ("output tokens/s", lambda point: point.rate("output_tokens_per_s")),
    ("tokens/s/user", lambda point: point.rate("output_tokens_per_s_per_user")),
    ("TTFT p50", lambda point: point.spread("ttft_ms").p50),
    ("TTFT p99", lambda point: point.spread("ttft_ms").p99),
    ("TPOT p50", lambda point: point.spread("tpot_ms").p50),
    ("e2e p50", lambda point: point.spread("e2e_ms").p50),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A run against the first one at one load: each measure with its change as a share."""

    run: str
    load: str
    values: Mapping[str, float | None]
    changes: Mapping[str, float | None]


def differences(runs: Sequence[Evidence]) -> list[Difference]:
    if not runs:
        return []
    base = {point.label: point for point in runs[0].measured.points}
    return [
        _difference(run, point, base[point.label])
        for run in runs[1:]
        for point in run.measured.points
        if point.label in base
    ]


def _difference(run: Evidence, point: Point, base: Point) -> Difference:
    values = {title: measure(point) for title, measure in MEASURES}
    bases = {title: measure(base) for title, measure in MEASURES}
    changes = {
        title: value / was - 1 if value is not None and (was := bases[title]) else None
        for title, value in values.items()
    }
    return Difference(run.title, point.label, values, changes)


def overview(runs: Sequence[Evidence]) -> Table:
    """A row per run with its headline figures."""
    columns = [("run", "text"), ("highest output", NUMERIC), ("at", "code"), ("per GPU", NUMERIC),
               ("best for a user", NUMERIC), ("shortest TTFT p50", NUMERIC),
               ("shortest e2e p50", NUMERIC), ("within SLO", NUMERIC), ("million tokens", NUMERIC),
               ("failed", NUMERIC)]  # fmt: skip
    rows = [_overview(run) for run in runs]
    return table.dense(table.make("The runs at a glance", columns, rows))


def _overview(run: Evidence) -> tuple[object, ...]:
    result, best = run.measured, headline(run.measured)
    if best is None:
        return (run.title, *[number(None)] * (9))
    users = [p.rate("output_tokens_per_s_per_user") for p in result.points]
    ttfts = [p.spread("ttft_ms").p50 for p in result.points]
    medians = [p.spread("e2e_ms").p50 for p in result.points]
    return (
        run.title,
        unit(best.rate("output_tokens_per_s"), "tokens/s"),
        best.label,
        number(None if run.rehearsal else best.rate("output_tokens_per_s_per_gpu")),
        number(max((u for u in users if u is not None), default=None)),
        milliseconds(min((t for t in ttfts if t is not None), default=None)),
        milliseconds(min((m for m in medians if m is not None), default=None)),
        number(result.largest_concurrency_within_slo),
        usd(None if run.rehearsal else best.usd_per_million_output_tokens),
        f"{number(result.failed)} of {number(result.sent)}" if result.sent else number(None),
    )


def settings(runs: Sequence[Evidence]) -> Table:
    """What was not the same: a row per setting, a column per run."""
    rows = [(name, *values) for name, values in _settings(runs) if len(set(values)) > 1]
    columns = [("setting", "text"), *((run.title, "text") for run in runs)]
    return table.make("What differs between the runs", columns, rows)


def _settings(runs: Sequence[Evidence]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name in (
        "model",
        "precision",
        "gpu",
        "num_gpus",
        "engine",
        "release",
        "target",
        "rehearsal",
    ):
        yield name, tuple(_word(getattr(run.measured.subject, name)) for run in runs)
    for name in ("tool", "api", "workload", "isl", "osl", "slo", "price_per_gpu_hour_usd", "seed"):
        yield name, tuple(_word(getattr(run.measured, name)) for run in runs)
    decisions = [_decisions(run) for run in runs]
    if all(decisions):
        for path in dict.fromkeys(path for one in decisions for path in one):
            yield path, tuple(_word(one.get(path)) for one in decisions)


def _decisions(run: Evidence) -> dict[str, Any]:
    return {row["path"]: row["value"] for row in (run.manifest or {}).get("decisions", ())}


def _word(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {number(one)}" for key, one in value.items()) or number(None)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    return number(None) if value is None else str(value)


def changes(runs: Sequence[Evidence]) -> Table:
    """Every run against the first one, load by load."""
    base = {point.label: point for point in runs[0].measured.points}
    rows = []
    for row in differences(runs):
        was = {title: measure(base[row.load]) for title, measure in MEASURES}
        cells = [ratio(row.values[title], was[title]) for title, _ in MEASURES]
        rows.append((row.run, row.load, *cells))
    columns = [("run", "text"), ("load", "code"), *((title, NUMERIC) for title, _ in MEASURES)]
    return table.make(f"Changes against {runs[0].title}", columns, rows)
