"""Measures how good a choice for an objective is, on points that the estimates have not seen.

    python -m benchmarks.objectives [--check] [--json] [--write]

Every model, GPU, engine and workload with measurements of at least two layouts makes three
objectives: the time between tokens at the 25, 50 and 75 % quantile of the measurements, the time to
the first token at its 80 % quantile. Candidates are the measured points whose requests fit into the
memory. Each is estimated without its whole curve, all loads of its layout at these lengths: the
curve is neither among the rows nor among the errors that give the widths of intervals. Factors and
scales are fitted to the other half of the runs. Two lines use limits (width of an interval, margin
of the conservative bound, gain from which a likely point is measured first) that were picked on the
runs of one half, the ones that choose most often and keep enough objectives, and checked on the
other. The chooser takes the candidate with the most tokens/s per GPU whose conservative bounds keep
the objective, unless one whose values alone keep it is worth 1.5 times as much, like
`builder choose`; the other lines show what that is worth. `--check` fails if a bound is missed,
`--write` stores the figures in `benchmarks/objectives.json` and the table in `docs/choosing.md`.
Takes some minutes.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import figures, halves
from benchmarks.estimates import question_of
from builder.choice.selection import WORTH_MEASURING
from builder.estimates import Estimate, Estimator, Refusal, fits, measurements
from builder.estimates.cells import is_held
from builder.estimates.intervals import MOST_HALF_WIDTH, MOST_PROMISED_MARGIN
from builder.estimates.measurements import Row
from maintenance.calibration import Errors
from maintenance.left_out import curve_of, shape

PAGE = figures.Page(
    Path(__file__).with_suffix(".json"),
    Path(__file__).parent.parent / "docs" / "choosing.md",
    "objectives",
)
ITL_QUANTILES, TTFT_QUANTILE = (0.25, 0.5, 0.75), 0.8
LEAST_KEPT_PERCENT, LEAST_RATIO, LEAST_CHOSEN = 96.0, 0.9, 0.5
THUMB_LOAD = 64  # streams of the rule of thumb: all GPUs, so many at a time


@dataclass(frozen=True, slots=True)
class Point:
    """A measured point, and its answers from the rows without its curve."""

    row: Row
    found: Estimate | Refusal
    promised: Estimate | Refusal

    @property
    def ttft_ms(self) -> float:
        assert self.row.ttft_ms is not None
        return self.row.ttft_ms

    @property
    def told_tok_s(self) -> float:
        """Output tokens/s per GPU at the conservative bound."""
        assert isinstance(self.promised, Estimate)
        return self.promised.tok_s_per_gpu.value

    @property
    def tok_s_per_gpu(self) -> float:
        """Measured output tokens/s per GPU."""
        row = self.row
        e2e_ms = self.ttft_ms + (row.osl - 1) * row.tpot_ms
        return row.concurrency * row.osl * 1000 / e2e_ms / row.num_gpus


@dataclass(frozen=True, slots=True)
class Objective:
    """Latencies to keep, and the points to choose from."""

    points: Sequence[Point]
    itl_ms: float
    ttft_ms: float

    def is_kept(self, point: Point) -> bool:
        """Whether the measured point kept it."""
        return point.row.tpot_ms <= self.itl_ms and point.ttft_ms <= self.ttft_ms

    def is_below(self, found: Estimate, end: str) -> bool:
        """Whether the values, or the upper ends, of an estimate keep it."""
        tpot_ms, ttft_ms = getattr(found.tpot_ms, end), getattr(found.ttft_ms, end)
        return bool(tpot_ms <= self.itl_ms and ttft_ms <= self.ttft_ms)

    @property
    def best(self) -> float:
        """The most tokens/s per GPU of a point that kept it; 0 if none did."""
        return max((p.tok_s_per_gpu for p in self.points if self.is_kept(p)), default=0.0)


Chooser = Callable[[Objective], Point | None]


class Limits(NamedTuple):
    """Of the half width of an interval and of a promised end above the time per token, as shares;
    and from how many times the speed on a likely point is to be measured first."""

    half_width: float
    promised_margin: float
    worth: float


OWN_LIMITS = Limits(MOST_HALF_WIDTH, MOST_PROMISED_MARGIN, WORTH_MEASURING)
TRIED = tuple(
    Limits(*limits)
    for limits in product(
        (0.13, 0.17, 0.2, 0.25), (0.06, 0.08, 0.1, 0.12, 0.15, 0.2), (1.2, 1.5, 2, 4)
    )
)
LOOSEST = 0.5


def limited(point: Point, limits: Limits) -> Point:
    """The point as an estimator with these limits answers it."""
    found, promised = point.found, point.promised
    if isinstance(found, Estimate) and found.e2e_ms.half_width > limits.half_width:
        found = promised = Refusal(found.question, "wide", "", ())
    return replace(point, found=found, promised=promised)


def by_promise(
    objective: Objective,
    worth: float = WORTH_MEASURING,
    margin: float = MOST_PROMISED_MARGIN,
) -> Point | None:
    """The choice of `builder choose`: none if a likely point is worth so much more. A promise
    beyond the margin counts only where it keeps the objective."""
    told = [
        (point, point.promised)
        for point in objective.points
        if isinstance(point.promised, Estimate)
    ]
    surely = [pair for pair in told if objective.is_below(pair[1], "high")]
    within = [pair for pair in told if pair[1].tpot_ms.high <= (1 + margin) * pair[1].tpot_ms.value]
    sure = _fastest(surely)
    likely = _fastest([*surely, *(pair for pair in within if objective.is_below(pair[1], "value"))])
    if sure is None or likely is None:
        return None
    return sure if likely.told_tok_s <= worth * sure.told_tok_s else None


def by_interval(objective: Objective) -> Point | None:
    """By the upper end of the 80 % interval."""
    return _by_estimate(objective, "high")


def by_value(objective: Objective) -> Point | None:
    """Without an interval."""
    return _by_estimate(objective, "value")


def _by_estimate(objective: Objective, end: str) -> Point | None:
    return _fastest(
        (point, point.found)
        for point in objective.points
        if isinstance(point.found, Estimate) and objective.is_below(point.found, end)
    )


def by_thumb(objective: Objective) -> Point | None:
    """All GPUs, and a usual load, whatever the objective is."""
    most = max(point.row.num_gpus for point in objective.points)
    largest = [point for point in objective.points if point.row.num_gpus == most]
    return min(largest, key=lambda point: abs(point.row.concurrency - THUMB_LOAD))


CHOOSERS: Mapping[str, Chooser] = {
    "the promised end must keep it, as `choose` does": by_promise,
    "the upper end of the 80 % interval must keep it": by_interval,
    "the value must keep it": by_value,
    f"rule of thumb: all GPUs, {THUMB_LOAD} streams": by_thumb,
}
OWN = next(iter(CHOOSERS))


def _fastest(points: Iterable[tuple[Point, Estimate]]) -> Point | None:
    ranked = max(points, key=lambda pair: pair[1].tok_s_per_gpu.value, default=None)
    return ranked[0] if ranked else None


def points(rows: Sequence[Row], fitted: Sequence[fits.Fits]) -> Iterator[Point]:
    """Every row with both times, estimated without its curve by what its half was not fitted to,
    however wide the interval is."""
    rows = [row for row in rows if row.ttft_ms is not None]
    curves: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    of_model: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        of_model[row.model].append(row)
        if is_held(row, shape(row.model)):
            curves[(*curve_of(row), halves.half(row))].append(row)
    errors = [Errors(rows, one) for one in fitted]
    for held in curves.values():
        own, curve = halves.half(held[0]), curve_of(held[0])
        others = [row for row in of_model[held[0].model] if curve_of(row) != curve]
        known = errors[own].with_model(held[0].model, others)
        ends = replace(fitted[own], intervals=known.intervals(), promises=known.promises())
        estimator = Estimator(others, ends)
        estimator.half_width = estimator.promised_margin = LOOSEST
        for row in held:
            question = replace(question_of(row), release=row.release or None)
            yield Point(row, estimator.estimate(question), estimator.promise(question))


def objectives(found: Iterable[Point]) -> list[Objective]:
    """Three for each workload that was measured in at least two layouts."""
    workloads: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in found:
        row = point.row
        workloads[(row.model, row.gpu, row.engine, row.isl, row.osl)].append(point)
    wanted: list[Objective] = []
    for part in workloads.values():
        if len({point.row.layout for point in part}) < 2:
            continue
        tpots_ms = [point.row.tpot_ms for point in part]
        ttft_ms = quantile([point.ttft_ms for point in part], TTFT_QUANTILE)
        wanted += [Objective(part, quantile(tpots_ms, share), ttft_ms) for share in ITL_QUANTILES]
    return wanted


def quantile(values: Sequence[float], share: float) -> float:
    """Between the two nearest values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def outcome(asked: Sequence[Objective], choose: Chooser) -> dict[str, float]:
    """How often the chosen point kept the objective, and its speed over that of the best.

    Objectives of a workload fall together, so the runs are counted that the chosen are of, and
    those of them that missed any.
    """
    chosen = [(objective, choose(objective)) for objective in asked]
    named = [(objective, point) for objective, point in chosen if point is not None]
    ratios = [
        point.tok_s_per_gpu / objective.best
        for objective, point in named
        if objective.is_kept(point)
    ]
    missed = {halves.run_of(point.row) for one, point in named if not one.is_kept(point)}
    return {
        "objectives": len(asked),
        "chosen": len(named),
        "runs": len({halves.run_of(point.row) for _, point in named}),
        "runs_missed": len(missed),
        "kept_percent": 100 * len(ratios) / len(named) if named else 0.0,
        "ratio_median": median(ratios) if ratios else 0.0,
        "ratio_p10": quantile(ratios, 0.1) if ratios else 0.0,
    }


def picked(found: Sequence[Point]) -> Limits:
    """The limits that choose most often and keep enough objectives among these points; if none do,
    the limits that keep most."""
    outcomes = {limits: outcome_of(found, limits) for limits in TRIED}

    def worth(limits: Limits) -> tuple[bool, float]:
        told = outcomes[limits]
        enough = told["kept_percent"] >= LEAST_KEPT_PERCENT and told["ratio_median"] >= LEAST_RATIO
        return enough, told["chosen"] if enough else told["kept_percent"]

    return max(outcomes, key=worth)


def outcome_of(found: Sequence[Point], limits: Limits) -> dict[str, float]:
    """The outcome of the conservative bound with other limits."""
    asked = objectives(limited(point, limits) for point in found)
    choose = partial(by_promise, worth=limits.worth, margin=limits.promised_margin)
    return outcome(asked, choose)


def refusals(asked: Sequence[Objective]) -> dict[str, int]:
    """The reasons for no choice, with their counts."""
    found: Counter[str] = Counter()
    for objective in asked:
        if by_promise(objective) is not None:
            continue
        if not objective.best:
            found["no measured point kept it"] += 1
            continue
        if _has_promise(objective):
            found["a likely point is worth much more than a promised one"] += 1
            continue
        kept = [point.promised for point in objective.points if objective.is_kept(point)]
        kinds = {one.kind for one in kept if isinstance(one, Refusal)}
        if any(isinstance(one, Estimate) for one in kept):
            found["no promised end keeps it"] += 1
        else:
            found[f"points that kept it have no estimate ({', '.join(sorted(kinds))})"] += 1
    return dict(sorted(found.items()))


def _has_promise(objective: Objective) -> bool:
    return any(
        isinstance(point.promised, Estimate) and objective.is_below(point.promised, "high")
        for point in objective.points
    )


def report() -> dict[str, Any]:
    rows, digest = measurements.read()
    loose = list(points(rows, halves.fitted(rows)))
    found = [limited(point, OWN_LIMITS) for point in loose]
    asked = objectives(found)
    choosers = {name: outcome(asked, choose) for name, choose in CHOOSERS.items()}
    of_halves = [[p for p in loose if halves.half(p.row) == own] for own in halves.HALVES]
    for number, part in enumerate(of_halves, 1):
        name = f"by the promised end, among runs of half {number} only"
        choosers[name] = outcome_of(part, OWN_LIMITS)
    limits = {"own": OWN_LIMITS._asdict()}
    for number, (one, other) in enumerate((of_halves, of_halves[::-1]), 1):
        limits[f"picked on half {number}"] = (chosen := picked(one))._asdict()
        name = f"with limits picked on half {number}, among runs of half {3 - number} only"
        choosers[name] = outcome_of(other, chosen)
    return {
        "rows_sha256": digest,
        "choosers": choosers,
        "limits": limits,
        "refused": refusals(asked),
    }


def misses(document: Mapping[str, Any]) -> Iterator[str]:
    """Every bound that is missed, as text."""
    own = document["choosers"][OWN]
    if own["kept_percent"] < LEAST_KEPT_PERCENT:
        yield f"{own['kept_percent']:.1f} % of the objectives were kept, not {LEAST_KEPT_PERCENT:g}"
    if (share := own["chosen"] / own["objectives"]) < LEAST_CHOSEN:
        yield f"{share:.0%} of the objectives get a choice, not {LEAST_CHOSEN:.0%}"
    if own["ratio_median"] < LEAST_RATIO:
        yield f"the chosen has {own['ratio_median']:.2f} of the best, not {LEAST_RATIO:g}"


def table(document: Mapping[str, Any]) -> str:
    """Markdown, as the documentation has it."""
    lines = [
        "| chosen so | objectives | chosen | kept | runs that missed "
        "| tokens/s/GPU over the best (median, p10) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in document["choosers"].items():
        ratios = f"{row['ratio_median']:.2f}, {row['ratio_p10']:.2f}"
        lines.append(
            f"| {name} | {row['objectives']} | {row['chosen']} | {row['kept_percent']:.1f} % "
            f"| {row['runs_missed']} of {row['runs']} | {ratios} |"
        )
    reasons = (f"{why}: {count}" for why, count in document["refused"].items())
    limits = (
        f"{name}: {row['half_width']:.0%}, {row['promised_margin']:.0%}, {row['worth']:g}"
        for name, row in document["limits"].items()
    )
    return "\n".join(
        [
            *(*lines, "", f"Refused: {'; '.join(reasons)}."),
            *("", f"Limits (half width, promised margin, worth measuring): {'; '.join(limits)}."),
        ]
    )


if __name__ == "__main__":
    sys.exit(figures.main(sys.argv[1:], __doc__, PAGE, report, table, misses))
