"""Measures estimates and choices of prefill and decode servers on measurements not seen.

    python -m benchmarks.pools [--check] [--json] [--write]

Measurements with known servers and known drafting, each once. `rows` leaves out a tenth of them at
a time, `layouts` a tenth of all layouts of both sides, `models` one model after another. A choice
is asked for TPOT within a quartile of a cell's measurements of one pair of lengths and for TTFT
within their 80th percentile: the most tokens/s per GPU of the measured servers whose TPOT meets
the limit at the promised end and whose TTFT likely does. `--check` fails if a bound is missed,
`--write` stores the figures in `benchmarks/pools.json` and the table in `docs/estimates.md`.
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any, NamedTuple

from benchmarks import figures
from builder.estimates import Question, pools
from builder.estimates.cells import Key, key_of
from builder.estimates.intervals import MOST_HALF_WIDTH
from builder.estimates.measurements import (
    DISAGGREGATED,
    DisaggregatedRow,
    digest,
    read_disaggregated,
)
from builder.estimates.pools import PoolCell, PoolEstimate, Pools

PAGE = figures.Page(
    Path(__file__).with_suffix(".json"),
    Path(__file__).parent.parent / "docs" / "estimates.md",
    "pools",
)
FOLDS = 10
QUARTILES = (0.25, 0.5, 0.75)
TTFT_SHARE = 0.8
FEWEST_LAYOUTS = 4  # of a cell and a pair of lengths that is worth a choice
BOUNDS = {
    ("rows", "e2e_median_percent"): (0.0, 5.0),
    ("rows", "e2e_p90_percent"): (0.0, 20.0),
    ("rows", "covered_percent"): (75.0, 88.0),
    ("layouts", "e2e_median_percent"): (0.0, 8.0),
    ("layouts", "e2e_p90_percent"): (0.0, 22.0),
    ("layouts", "covered_percent"): (75.0, 88.0),
    ("choice", "kept_percent"): (92.0, 100.0),
    ("choice", "score"): (0.7, 1.0),
    ("models", "answers"): (0.0, 0.0),
}


class Asked(NamedTuple):
    """A measurement and its estimate without it."""

    row: DisaggregatedRow
    found: PoolEstimate

    @property
    def error(self) -> float:
        return abs(self.found.e2e_ms.value / e2e_ms(self.row) - 1)

    @property
    def covered(self) -> bool:
        return self.found.e2e_ms.low <= e2e_ms(self.row) <= self.found.e2e_ms.high


def e2e_ms(row: DisaggregatedRow) -> float:
    assert row.server.ttft_ms is not None
    return row.server.ttft_ms + (row.server.osl - 1) * row.server.tpot_ms


def tok_s_per_gpu(row: DisaggregatedRow) -> float:
    tokens = row.server.concurrency * row.server.osl * 1000
    return tokens / pools.num_gpus(row) / e2e_ms(row)


def rows_once() -> list[DisaggregatedRow]:
    """The measurements that count, of equal ones the first."""
    found: dict[Hashable, DisaggregatedRow] = {}
    for row in filter(pools.is_known, read_disaggregated()):
        one = row.server
        point = (*key_of(one), one.layout, one.isl, one.osl, one.concurrency, pools.drafts(row))
        found.setdefault((*point, *row.servers, round(one.tpot_ms, 2)), row)
    return list(found.values())


def question_of(row: DisaggregatedRow) -> Pools:
    one = row.server
    drafted = {"on": 3, "off": 0}[pools.drafts(row)]
    sizes = one.tp, one.ep, one.attention_dp, one.isl, one.osl, one.concurrency
    server = Question(*key_of(one), *sizes, mtp=drafted)
    assert row.decode_workers and row.prefill_workers
    return Pools(server, row.decode_workers, row.prefill_workers, *row.prefill_layout)


def held_out(
    rows: Sequence[DisaggregatedRow], group: Callable[[DisaggregatedRow], str]
) -> list[Asked]:
    """Every row, asked of the other folds; a group is in one fold. Rows whose cell has no other
    are refused, and left out."""
    folds: dict[int, list[DisaggregatedRow]] = defaultdict(list)
    for row in rows:
        folds[int(hashlib.sha256(group(row).encode()).hexdigest(), 16) % FOLDS].append(row)
    found = []
    for _, held in sorted(folds.items()):
        left = {row.server.id for row in held}
        kept = [row for row in rows if row.server.id not in left]
        cells: dict[Key, PoolCell] = {}
        for row in held:
            key = key_of(row.server)
            if key not in cells:
                cells[key] = PoolCell(key, kept)
            if cells[key].own:
                found.append(Asked(row, cells[key].estimate(question_of(row))))
    return found


def accuracy(asked: Sequence[Asked]) -> dict[str, float]:
    errors = [one.error for one in asked]
    narrow = [one for one in asked if one.found.e2e_ms.half_width <= MOST_HALF_WIDTH]
    first = [abs(a.found.ttft_ms.value / (a.row.server.ttft_ms or 1) - 1) for a in asked]
    each = [abs(a.found.tpot_ms.value / a.row.server.tpot_ms - 1) for a in asked]
    return {
        "rows": len(asked),
        "e2e_median_percent": 100 * median(errors),
        "e2e_p90_percent": 100 * _p90(errors),
        "covered_percent": 100 * mean(one.covered for one in asked),
        "tpot_median_percent": 100 * median(each),
        "ttft_median_percent": 100 * median(first),
        "answered_percent": 100 * len(narrow) / len(asked),
        "answered_p90_percent": 100 * _p90([one.error for one in narrow]),
    }


def _p90(values: Sequence[float]) -> float:
    return quantiles(values, n=10, method="inclusive")[-1]


def _at(values: Sequence[float], share: float) -> float:
    return quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


def choice(asked: Sequence[Asked]) -> dict[str, float]:
    """How often a choice keeps its limits, and its mean share of the best, 0 where it misses."""
    cells: dict[Hashable, list[Asked]] = defaultdict(list)
    for one in asked:
        row = one.row.server
        cells[key_of(row), row.isl, row.osl].append(one)
    kept, scores = [], []
    for found in cells.values():
        if len({(one.row.server.layout, one.row.servers) for one in found}) < FEWEST_LAYOUTS:
            continue
        ttft_ms = _at([one.row.server.ttft_ms or 0.0 for one in found], TTFT_SHARE)
        for share in QUARTILES:
            tpot_ms = _at([one.row.server.tpot_ms for one in found], share)
            able = [one for one in found if _keeps(one.row, tpot_ms, ttft_ms)]
            if not able:
                continue
            best = max(tok_s_per_gpu(one.row) for one in able)
            likely = [one for one in found if pools.likely(one.found, tpot_ms, ttft_ms)]
            scores.append(0.0)
            if not likely:
                continue
            chosen = max(likely, key=lambda one: one.found.tok_s_per_gpu.value).row
            kept.append(_keeps(chosen, tpot_ms, ttft_ms))
            scores[-1] = kept[-1] * min(1.0, tok_s_per_gpu(chosen) / best)
    return {
        "objectives": len(scores),
        "chosen": len(kept),
        "kept_percent": 100 * mean(kept),
        "score": mean(scores),
    }


def _keeps(row: DisaggregatedRow, tpot_ms: float, ttft_ms: float) -> bool:
    return row.server.tpot_ms <= tpot_ms and (row.server.ttft_ms or 0.0) <= ttft_ms


def models(rows: Sequence[DisaggregatedRow]) -> dict[str, float]:
    """Answers about models whose measurements are left out."""
    answers = 0
    for model in sorted({row.server.model for row in rows}):
        kept = [row for row in rows if row.server.model != model]
        for row in rows:
            if row.server.model == model:
                answers += pools.cell_of(key_of(row.server), kept) is not None
    return {"answers": answers}


def report() -> dict[str, Any]:
    rows = rows_once()
    layouts = held_out(rows, lambda row: f"{key_of(row.server)}{row.server.layout}{row.servers}")
    return {
        "rows_sha256": digest(DISAGGREGATED.read_text(encoding="utf-8")),
        "rows": accuracy(held_out(rows, lambda row: row.server.id)),
        "layouts": accuracy(layouts),
        "choice": choice(layouts),
        "models": models(rows),
    }


def misses(document: Mapping[str, Any]) -> Iterator[str]:
    """Every bound that is missed, as text."""
    for (part, name), (low, high) in BOUNDS.items():
        if not low <= (value := document[part][name]) <= high:
            yield f"{part}: {name} is {value:.3g}, not {low:g} to {high:g}"


def table(document: Mapping[str, Any]) -> str:
    """Markdown, as the documentation has it."""
    lines = [
        "| left out | measurements | E2E error (median, P90) | inside the interval "
        "| TPOT, TTFT (median) | answered, and its P90 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in ("rows", "layouts"):
        row = document[name]
        lines.append(
            f"| {name} | {row['rows']} | {row['e2e_median_percent']:.1f} %, "
            f"{row['e2e_p90_percent']:.0f} % | {row['covered_percent']:.0f} % "
            f"| {row['tpot_median_percent']:.1f} %, {row['ttft_median_percent']:.0f} % "
            f"| {row['answered_percent']:.0f} %, {row['answered_p90_percent']:.0f} % |"
        )
    found = document["choice"]
    return "\n".join(
        [
            *(*lines, ""),
            f"Choices among layouts left out: {found['chosen']} for {found['objectives']} "
            f"objectives, {found['kept_percent']:.0f} % kept, {found['score']:.2f} of the best "
            "tokens/s per GPU in the mean (0 where an objective was missed).",
        ]
    )


if __name__ == "__main__":
    sys.exit(figures.main(sys.argv[1:], __doc__, PAGE, report, table, misses))
