"""Measured rows to the answer of a question."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log, sqrt
from pathlib import Path
from statistics import median

from ..diagnostics import Diagnostic
from ..errors import BadFacts
from . import kriging, measurements, models, roofline
from .kriging import Field, Kernel, Scales
from .measurements import MEASUREMENTS, Row
from .question import Estimate, Interval, Neighbor, Question, Refusal

FACTORS = MEASUREMENTS / "factors.json"
MOST_ROWS = 100  # of a cell that are factorized
MOST_HALF_WIDTH = 0.15
SHOWN = 3
# How far beyond the measured ends a question may lie: in doublings.
REACH = 1.0

Cell = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Fit:
    """The roofline's factors by engine and the kernel's scales, of the TPOT or the TTFT."""

    factors: Mapping[str, Sequence[float]]
    scales: Scales

    def roofline(self, engine: str, terms: Sequence[float]) -> float:
        return max(1e-6, roofline.total(self.factors[engine], terms))


@dataclass(frozen=True, slots=True)
class Fits:
    """Both, and the digest of the rows that they were fitted to."""

    rows_sha256: str
    tpot: Fit
    ttft: Fit


def load_fits(path: Path = FACTORS) -> Fits:
    document = json.loads(path.read_text(encoding="utf-8"))
    fits = {
        name: Fit(document[name]["factors"], kriging.scales_of(document[name]["scales"]))
        for name in ("tpot", "ttft")
    }
    return Fits(document["rows_sha256"], **fits)


class Estimator:
    """Answers questions from rows; what it computed for a cell is kept."""

    def __init__(self, rows: Iterable[Row], fits: Fits) -> None:
        self.fits = fits
        self._of_model: dict[str, list[Row]] = {}
        for row in rows:
            self._of_model.setdefault(row.model, []).append(row)
        self._fields = lru_cache(maxsize=256)(self._new_fields)

    @classmethod
    def load(cls) -> Estimator:
        """The rows that ship.

        Raises `BadFacts` where the rows are not those that the factors were fitted to.
        """
        rows, digest = measurements.read()
        fits = load_fits()
        if digest != fits.rows_sha256:
            what = "has other rows than factors.json was fitted to"
            fix = "run python -m maintenance.fit_estimates"
            raise BadFacts(Diagnostic(str(measurements.AGGREGATED), what, fix))
        return cls(rows, fits)

    def estimate(self, question: Question) -> Estimate | Refusal:
        """An estimate, or why there is none."""
        model = models.listed(question.model) or question.model
        asked = replace(
            question,
            model=model,
            gpu=models.gpu_name(question.gpu),
            precision=models.weight_precision(question.precision),
            engine=models.engine_name(question.engine),
        )
        cell = (asked.model, asked.gpu, asked.precision, asked.engine)
        own = [row for row in self._of_model.get(model, ()) if _cell(row) == cell]
        if not own:
            what = f"no measured row of {' with '.join(cell)}"
            return Refusal(question, "unmeasured", what, self._nearest(asked), (question,))
        return self._answer(question, asked, cell, own)

    def _answer(
        self, question: Question, asked: Question, cell: Cell, own: list[Row]
    ) -> Estimate | Refusal:
        nearest = self._nearest(asked)
        if outside := _outside(asked, own):
            return Refusal(question, "outside", outside, nearest, (question,))
        tpot_field, ttft_field = self._fields(cell)
        place = kriging.point(asked, asked.engine, asked.release or "")
        tpot = _interval(
            self.fits.tpot, asked.engine, roofline.decode_terms(asked), tpot_field.at(place)
        )
        ttft = _interval(
            self.fits.ttft, asked.engine, roofline.first_terms(asked), ttft_field.at(place)
        )
        e2e = _sum(ttft, tpot.map(max(asked.osl - 1, 1e-9)))
        if e2e.half_width > MOST_HALF_WIDTH:
            what = f"the interval is too wide: {e2e.half_width:.0%} of the time to the last token"
            return Refusal(question, "wide", what, nearest, (question,))
        speed = asked.concurrency * asked.osl * 1000
        return Estimate(
            question=question,
            tpot_ms=tpot,
            ttft_ms=ttft,
            e2e_ms=e2e,
            output_tok_s=Interval(speed / e2e.high, speed / e2e.value, speed / e2e.low),
            rows=len(own),
            nearest=nearest,
        )

    def _new_fields(self, cell: Cell) -> tuple[Field, Field]:
        fits = self.fits
        rows = self._of_model[cell[0]]
        timed = [row for row in rows if row.ttft_ms is not None]
        return (
            self._field(
                fits.tpot, cell, rows, [row.tpot_ms for row in rows], roofline.decode_terms
            ),
            self._field(
                fits.ttft,
                cell,
                timed,
                [row.ttft_ms for row in timed if row.ttft_ms],
                roofline.first_terms,
            ),
        )

    def _field(
        self,
        fit: Fit,
        cell: Cell,
        rows: Sequence[Row],
        times: Sequence[float],
        terms: Callable[[Row], Sequence[float]],
    ) -> Field:
        kernel = Kernel(fit.scales)
        own = {id(row) for row in rows if _cell(row) == cell}
        ranked = sorted(
            zip(rows, times, strict=True),
            key=lambda pair: (id(pair[0]) not in own, _kinds_apart(kernel, cell, pair[0])),
        )[:MOST_ROWS]
        points = [kriging.row_point(row) for row, _ in ranked]
        values = [log(time / fit.roofline(row.engine, terms(row))) for row, time in ranked]
        return Field(kernel, points, values, median(values))

    def _nearest(self, asked: Question) -> tuple[Neighbor, ...]:
        kernel = Kernel(self.fits.tpot.scales)
        place = kriging.point(asked, asked.engine, asked.release or "")
        rows = self._of_model.get(asked.model, ())
        ranked = sorted(
            (Neighbor(row, kernel.distance(place, kriging.row_point(row))) for row in rows),
            key=lambda found: found.distance,
        )
        return tuple(ranked[:SHOWN])


def _cell(row: Row) -> Cell:
    return row.model, row.gpu, row.precision, row.engine


def _kinds_apart(kernel: Kernel, cell: Cell, row: Row) -> float:
    scales = kernel.scales
    return (
        (row.gpu != cell[1]) * scales.gpu
        + (row.engine != cell[3]) * scales.engine
        + (row.precision != cell[2]) * scales.precision
    )


def _outside(asked: Question, own: Sequence[Row]) -> str:
    """Which load or length lies outside the measured ones."""
    for name in ("concurrency", "isl", "osl"):
        sizes = [getattr(row, name) for row in own]
        low = min(sizes) / (1 if name == "concurrency" else 2**REACH)
        if not low <= (size := getattr(asked, name)) <= max(sizes) * 2**REACH:
            return f"{name} {size:,} lies outside the measured {min(sizes):,} to {max(sizes):,}"
    return ""


def _interval(
    fit: Fit, engine: str, terms: Sequence[float], found: tuple[float, float]
) -> Interval:
    mean, deviation = found
    value = fit.roofline(engine, terms) * exp(mean)
    spread = exp(fit.scales.quantile * deviation)
    return Interval(value / spread, value, value * spread)


def _sum(first: Interval, rest: Interval) -> Interval:
    """Of two times whose errors know nothing of each other."""
    value = first.value + rest.value
    low = sqrt((first.value - first.low) ** 2 + (rest.value - rest.low) ** 2)
    high = sqrt((first.high - first.value) ** 2 + (rest.high - rest.value) ** 2)
    return Interval(value - low, value, value + high)
