"""Measures the error of estimates on rows that they have not seen.

    python -m benchmarks.estimates [--check] [--json] [--write]

Every row is asked about once, without the rows of its fold: a tenth of all, with all measurements
of the same point on the same day. The question has neither the day, the image nor the release of
the row. It has the drafting (MTP) if a source or other runs tell it, as users know that of their
deployment; `mtp not said` is without it. Factors and scales are fitted to the half of the runs
without the row, and the widths of intervals to the rows of the other folds. `own runs alone` are
loads between a few runs of one curve that serve as the only measurements of a model, one question
for every pair of runs around it; the factors have seen other runs of these models. `--check` fails
if a bound is missed, `--write` stores the figures in `benchmarks/estimates.json` and the table in
`docs/estimates.md`.
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks import figures, halves
from builder.estimates import Estimate, Estimator, Question, fits, measurements
from builder.estimates.cells import key_of
from builder.estimates.measurements import Row
from maintenance import few_runs
from maintenance.calibration import Errors

PAGE = figures.Page(
    Path(__file__).with_suffix(".json"),
    Path(__file__).parent.parent / "docs" / "estimates.md",
    "accuracy",
)
FOLDS = 10
# Bounds of the acceptance: what is measured, and whether it must be at most or at least.
BOUNDS = {
    ("between", "e2e_median_percent"): (0.0, 2.0),
    ("between", "e2e_p90_percent"): (0.0, 9.0),
    ("answered", "e2e_median_percent"): (0.0, 2.5),
    ("answered", "e2e_p90_percent"): (0.0, 10.0),
    ("answered", "answered_percent"): (80.0, 100.0),
    ("answered", "covered_percent"): (75.0, 90.0),
}
SHIPPED = ("between", "answered")  # shown also as the factors that ship answer them
LEAST_COVERED_PERCENT = 72.0  # by engine and by precision
LEAST_GROUP = 30  # answers; fewer say little of a share


@dataclass(frozen=True, slots=True)
class Asked:
    """A row that was asked about, its place relative to the others, and the answer."""

    row: Row
    place: str
    found: Estimate | None

    @property
    def truth_e2e_ms(self) -> float:
        return (self.row.ttft_ms or 0.0) + (self.row.osl - 1) * self.row.tpot_ms

    @property
    def covered(self) -> bool:
        assert self.found is not None
        return self.found.e2e_ms.low <= self.truth_e2e_ms <= self.found.e2e_ms.high


def question_of(row: Row, with_drafting: bool = True) -> Question:
    """The question of a user with such a deployment."""
    drafts = {"on": 3, "off": 0}.get(row.drafting) if with_drafting else None
    return Question(
        model=row.model,
        gpu=row.gpu,
        precision=row.precision,
        engine=row.engine,
        tp=row.tp,
        ep=row.ep,
        attention_dp=row.attention_dp,
        isl=row.isl,
        osl=row.osl,
        concurrency=row.concurrency,
        mtp=drafts if row.mtp is None else row.mtp,
    )


def cross_validate(
    rows: Sequence[Row], fitted: Sequence[fits.Fits], asks: Sequence[Callable[[Row], Question]]
) -> tuple[list[Asked], ...]:
    """Every row with both times, asked of the rows of the other folds, in each way of asking.

    `fitted` has for each half of the runs what answers its questions.
    """
    folds: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        folds[_fold(row)].append(row)
    found: tuple[list[Asked], ...] = tuple([] for _ in asks)
    for _, held in sorted(folds.items()):
        left_out = {row.id for row in held}
        kept = [row for row in rows if row.id not in left_out]
        places = _Places(kept)
        # The widths of intervals come from the rows that are left, as from the shipped ones.
        ends = [Errors(kept, one).intervals() for one in fitted]
        estimators = [
            Estimator(kept, replace(one, intervals=own))
            for one, own in zip(fitted, ends, strict=True)
        ]
        for row in held:
            if not row.ttft_ms:
                continue
            for ask, answers in zip(asks, found, strict=True):
                answer = estimators[halves.half(row)].estimate(ask(row))
                outcome = answer if isinstance(answer, Estimate) else None
                answers.append(Asked(row, places.of(row), outcome))
    return found


def _fold(row: Row) -> int:
    """Measurements of one point and day stay together."""
    point = (*key_of(row), *row.layout, row.isl, row.osl, row.concurrency, row.date)
    return int(hashlib.sha256(repr(point).encode()).hexdigest(), 16) % FOLDS


class _Places:
    """The place of a row relative to the rows that are left."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._loads: dict[tuple[object, ...], set[int]] = defaultdict(set)
        self._cells = set()
        for row in rows:
            self._loads[_curve(row)].add(row.concurrency)
            self._cells.add(key_of(row))

    def of(self, row: Row) -> str:
        loads = self._loads.get(_curve(row), set())
        if key_of(row) not in self._cells:
            return "alone"
        if row.concurrency in loads:
            return "another day"
        if loads and min(loads) < row.concurrency < max(loads):
            return "between"
        return "end" if loads else "other curve"


def _curve(row: Row) -> tuple[object, ...]:
    return (*key_of(row), *row.layout, row.isl, row.osl, row.drafting == "on")


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Absolute errors of answers in percent, and how often the interval contained the value."""

    asked: int
    answered_percent: float
    e2e_median_percent: float
    e2e_p90_percent: float
    tpot_median_percent: float
    tpot_p90_percent: float
    ttft_median_percent: float
    ttft_p90_percent: float
    covered_percent: float


def accuracy(asked: Sequence[Asked]) -> Accuracy | None:
    answered = [one for one in asked if one.found]
    if not answered:
        return None
    (e2e, e2e_p90), (tpot, tpot_p90), (ttft, ttft_p90) = (
        _errors(map(measure, answered)) for measure in (_e2e, _tpot, _ttft)
    )
    share = 100 * len(answered) / len(asked)
    covered = 100 * sum(one.covered for one in answered) / len(answered)
    times = (e2e, e2e_p90, tpot, tpot_p90, ttft, ttft_p90)
    return Accuracy(len(asked), share, *times, covered)


def _errors(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The median and the 90th percentile of errors, in percent."""
    found = sorted(abs(estimate / truth - 1) * 100 for truth, estimate in pairs)
    return median(found), found[round(0.9 * (len(found) - 1))]


def _e2e(one: Asked) -> tuple[float, float]:
    assert one.found is not None
    return one.truth_e2e_ms, one.found.e2e_ms.value


def _tpot(one: Asked) -> tuple[float, float]:
    assert one.found is not None
    return one.row.tpot_ms, one.found.tpot_ms.value


def _ttft(one: Asked) -> tuple[float, float]:
    assert one.found is not None
    return one.row.ttft_ms or 0.0, one.found.ttft_ms.value


def groups(asked: Sequence[Asked]) -> Iterator[tuple[str, list[Asked]]]:
    """What was asked by where it lies, and all with rows of its cell by engine and precision."""
    for place in ("between", "end", "another day", "other curve"):
        yield place, [one for one in asked if one.place == place]
    rest = [one for one in asked if one.place != "alone"]
    yield "answered", rest
    for name in sorted({one.row.engine for one in rest}):
        yield name, [one for one in rest if one.row.engine == name]
    for name in sorted({one.row.precision for one in rest}):
        yield name, [one for one in rest if one.row.precision == name]


def left_out(rows: Sequence[Row], fitted: fits.Fits) -> tuple[int, int]:
    """Questions, and answers, when all rows of a model, or of a GPU of a model, are left out."""
    questions = answers = 0
    for names in (("model",), ("model", "gpu")):
        parts: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for row in rows:
            parts[tuple(getattr(row, name) for name in names)].append(row)
        for part in parts.values():
            held = {row.id for row in part}
            estimator = Estimator([row for row in rows if row.id not in held], fitted)
            found = [estimator.estimate(question_of(row)) for row in part[::20]]
            questions += len(found)
            answers += sum(isinstance(one, Estimate) for one in found)
    return questions, answers


def _of_own_runs(rows: Sequence[Row], fitted: Sequence[fits.Fits]) -> Iterator[Asked]:
    for half, one in enumerate(fitted):
        for row, found in few_runs.asked([r for r in rows if halves.half(r) == half], one):
            yield Asked(row, "own runs", found if isinstance(found, Estimate) else None)


def report() -> dict[str, object]:
    rows, digest = measurements.read()
    fitted = fits.load()
    asks = (
        question_of,
        lambda row: question_of(row, with_drafting=False),
    )
    both = halves.fitted(rows)
    asked, silent = cross_validate(rows, both, asks)
    (shipped,) = cross_validate(rows, [fitted] * len(halves.HALVES), asks[:1])
    questions, answers = left_out(rows, fitted)
    found = {name: accuracy(part) for name, part in groups(asked)}
    found["mtp not said"] = accuracy([one for one in silent if one.place != "alone"])
    for half in halves.HALVES:
        part = [one for one in asked if one.place != "alone" and halves.half(one.row) == half]
        found[f"runs of half {half + 1}"] = accuracy(part)
    found["own runs alone"] = accuracy(list(_of_own_runs(rows, both)))
    for name, part in groups(shipped):
        if name in SHIPPED:
            found[f"{name}, fitted to all runs"] = accuracy(part)
    return {
        "rows_sha256": digest,
        "factors_sha256": measurements.digest(fits.FACTORS.read_text(encoding="utf-8")),
        "rows": len(rows),
        "folds": FOLDS,
        "accuracy": {name: asdict(row) for name, row in found.items() if row},
        "left_out": {"questions": questions, "answers": answers},
    }


def misses(document: Mapping[str, object]) -> Iterator[str]:
    """Every bound that is missed, as text."""
    found: Mapping[str, Mapping[str, float]] = document["accuracy"]  # type: ignore[assignment]
    for (group, measure), (low, high) in BOUNDS.items():
        if not low <= (value := found[group][measure]) <= high:
            yield f"{group}: {measure} is {value:.1f}, not {low:g} to {high:g}"
    names = {*measurements.ENGINES, *measurements.PRECISIONS}
    for group, row in found.items():
        few = row["asked"] * row["answered_percent"] / 100 < LEAST_GROUP
        if group in names and not few and row["covered_percent"] < LEAST_COVERED_PERCENT:
            yield f"{group}: {row['covered_percent']:.0f} % covered, not {LEAST_COVERED_PERCENT:g}"
    out: Mapping[str, int] = document["left_out"]  # type: ignore[assignment]
    if out["answers"]:
        yield f"{out['answers']} answers about a model or GPU that was left out"


def table(document: Mapping[str, object]) -> str:
    """Markdown, as `docs/estimates.md` has it."""
    found: Mapping[str, Mapping[str, float]] = document["accuracy"]  # type: ignore[assignment]
    lines = [
        "| rows asked about | n | answered | E2E | TPOT | TTFT | covered |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in found.items():
        pairs = (
            f"{row[f'{time}_median_percent']:.1f} / {row[f'{time}_p90_percent']:.0f}"
            for time in ("e2e", "tpot", "ttft")
        )
        share, covered = row["answered_percent"], row["covered_percent"]
        cells = (name, f"{row['asked']:,.0f}", f"{share:.0f} %", *pairs, f"{covered:.0f} %")
        lines.append(f"| {' | '.join(cells)} |")
    out: Mapping[str, int] = document["left_out"]  # type: ignore[assignment]
    lines.append("")
    lines.append(
        f"A model or a GPU left out: {out['questions']} questions, {out['answers']} answers."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(figures.main(sys.argv[1:], __doc__, PAGE, report, table, misses))
