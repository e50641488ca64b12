"""Measured rows to the answer of a question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from heapq import nsmallest
from math import exp, log2
from pathlib import Path

from ..diagnostics import Diagnostic
from ..errors import BadFacts
from . import fits, measurements, measuring_plan, models, mtp, own_runs
from .cells import REACH, Cell, Key, Variant, curve_of, key_of, minor, point_of
from .fits import Fits
from .kriging import Curve, Kernel, Point
from .measurements import OWN, Row
from .question import Estimate, Interval, Neighbor, Question, Refusal, Times
from .shapes import shape_of

MOST_HALF_WIDTH = 0.12  # of the time to the last token, as a share of it
MOST_OWN_HALF_WIDTH = 0.30  # with rows of the user's machine, of which few are worth a wide bar
UNTRIED = 2.0  # times as wide: no public row says how the curve of this model runs
MOST_DRAFTED_HALF_WIDTH = 0.20  # where the rows do not draft and the acceptance is another's
MODES_APART = 1.2  # from here on, drafting or not is another answer
UNMARKED_APART = 1.28  # from here on, rows around a load are two modes that nobody marked
SHOWN = 3
ANOTHER_MODEL = 10.0  # how far the rows of another model are


class Estimator:
    """Answers questions from rows; what it computed for a cell is kept."""

    def __init__(self, rows: Iterable[Row], fitted: Fits) -> None:
        self.fits = fitted
        self.rows = list(rows)
        self._of_model: dict[str, list[Row]] = {}
        for row in self.rows:
            self._of_model.setdefault(row.model, []).append(row)
        self._cell = lru_cache(maxsize=64)(self._new_cell)
        self._points = lru_cache(maxsize=64)(self._new_points)

    @classmethod
    def load(cls, rows_dir: Path | None = None) -> Estimator:
        """The rows that ship, and those of the runs of `launch bench` below `rows_dir`.

        Raises `BadFacts` where the rows are not those that the factors were fitted to, `BadInput`
        where a run cannot be read.
        """
        return cls([*_public(), *(own_runs.read(rows_dir) if rows_dir else ())], fits.load())

    @classmethod
    def of_model(cls, model: str) -> Estimator | None:
        """The rows of one model that ship, by their name of it; `None` where it has none."""
        rows = _public(model)
        return cls(rows, fits.load()) if rows else None

    def rows_of(self, model: str) -> Sequence[Row]:
        """The rows of a model, by their name of it."""
        return self._of_model.get(model, ())

    def estimate(self, question: Question) -> Estimate | Refusal:
        """An estimate, or why there is none."""
        asked = replace(
            question,
            model=models.model_name(question.model),
            gpu=models.gpu_name(question.gpu),
            precision=models.weight_precision(question.precision),
            engine=models.engine_name(question.engine),
        )
        key = Key(asked.model, asked.gpu, asked.precision, asked.engine)
        if not any(key_of(row) == key for row in self._of_model.get(asked.model, ())):
            return self._refuse(question, asked, "unmeasured", self._missing(key))
        return self._answer(question, asked, key)

    def _missing(self, key: Key) -> str:
        """What of a cell without rows has none."""
        rows = self._of_model.get(key.model, ())
        if not rows:
            return f"no measured row of the model {key.model}"
        if not (rows := [row for row in rows if row.gpu == key.gpu]):
            return f"no measured row of {key.model} on {key.gpu}"
        if not [row for row in rows if row.engine == key.engine]:
            return f"no measured row of {key.model} on {key.gpu} with {key.engine}"
        return f"no measured row of {key.model} in {key.precision} on {key.gpu} with {key.engine}"

    def _answer(self, question: Question, asked: Question, key: Key) -> Estimate | Refusal:
        known = {minor(row.release) for row in self._of_model[key.model] if key_of(row) == key}
        if minor(asked.release or "") not in known:
            asked = replace(asked, release=None)  # rows of other releases say as much without
        cell = self._cell(key, bool(minor(asked.release or "")))
        if outside := _outside(asked, cell):
            return self._refuse(question, asked, "outside", outside)
        draft = mtp.drafting(asked, cell)
        if draft.missing:
            return self._refuse(question, asked, "acceptance", draft.missing)
        times = self._times(asked, cell, draft.curve)
        if draft.is_open:
            other = self._times(asked, cell, "on")
            apart = times.e2e.value / other.e2e.value
            if max(apart, 1 / apart) > MODES_APART:
                what = (
                    "the rows hold two modes, with and without drafted tokens (MTP), "
                    f"{apart:.1f} times apart: say mtp, the number of them or 0"
                )
                return self._refuse(question, asked, "modes", what)
        if (apart := cell.modes_apart(asked, self._variant(asked, draft.curve))) > UNMARKED_APART:
            what = (
                f"measurements of this curve around that load are {apart:.1f} times apart, "
                "and nothing says what differs"
            )
            return self._refuse(question, asked, "modes", what)
        own = any(row.source == OWN for row in cell.own)
        widest = MOST_OWN_HALF_WIDTH if own else MOST_HALF_WIDTH
        if draft.gain is not None:
            times, widest = times.drafted(draft.gain), MOST_DRAFTED_HALF_WIDTH
        if (width := times.e2e.half_width) > widest:
            what = f"the interval is too wide: {width:.0%} of the time to the last token"
            return self._refuse(question, asked, "wide", what)
        speed = times.e2e.inverse(asked.concurrency * asked.osl * 1000)
        near = self._nearest(asked)
        rows, notes = len(cell.own), draft.notes
        return Estimate(question, times.tpot, times.ttft, times.e2e, speed, rows, near, notes)

    def _variant(self, asked: Question, drafting: str) -> Variant:
        release = minor(asked.release or "")
        return Variant(asked.tp, asked.attention_dp, asked.ep, drafting, release)

    def _times(self, asked: Question, cell: Cell, drafting: str) -> Times:
        variant = self._variant(asked, drafting)
        times = cell.surface(variant).at((asked.concurrency, asked.isl, asked.osl))
        point = cell.point(asked, variant)
        scales = [fit.scales(cell.with_release) for fit in (self.fits.tpot, self.fits.ttft)]
        wider = UNTRIED if all(row.source == OWN for row in cell.own) else 1.0
        rest = _interval(
            times.rest, wider * scales[0].quantiles[asked.engine] * cell.tpot.at(point)[1]
        )
        first = _interval(
            times.first, wider * scales[1].quantiles[asked.engine] * cell.ttft.at(point)[1]
        )
        return Times.of(first, rest, times.whole, asked.osl)

    def _new_cell(self, key: Key, with_release: bool) -> Cell:
        facts = models.facts_of(key.model)
        if facts is None:
            what = "the rows name a model without facts"
            raise BadFacts(Diagnostic(key.model, what, "add it to builder/data/models"))
        return Cell(key, self._of_model[key.model], self.fits, shape_of(facts), with_release)

    def _refuse(self, question: Question, asked: Question, kind: str, reason: str) -> Refusal:
        near = self._nearest(asked)
        measure = measuring_plan.plan(question, Kernel(self.fits.tpot.without_release))
        return Refusal(question, kind, reason, near, measure)

    def _nearest(self, asked: Question) -> tuple[Neighbor, ...]:
        """Rows by the distance of the TPOT's kernel: of the same model first, if it has any."""
        kernel = Kernel(self.fits.tpot.with_release)
        release, drafting = minor(asked.release or ""), "on" if asked.mtp else ""
        curve = curve_of(asked, asked.gpu, asked.engine, release, drafting)
        place = Point(curve, log2(asked.concurrency))
        own = self._of_model.get(asked.model)
        far = 0.0 if own else ANOTHER_MODEL
        points = zip(self._points(asked.model, bool(release)), own or self.rows, strict=True)
        apart = cache(partial(kernel.apart, place.curve))
        ranked = nsmallest(
            SHOWN,
            (
                (apart(curve) + kernel.slope * abs(load - place.concurrency), index, row)
                for index, ((curve, load), row) in enumerate(points)
            ),
        )
        return tuple(Neighbor(row, far + distance) for distance, _, row in ranked)

    def _new_points(self, model: str, with_release: bool) -> list[Point]:
        rows = self._of_model.get(model) or self.rows
        curves: dict[tuple[object, ...], Curve] = {}
        points = []
        for row in rows:
            key = (row.layout, row.isl, row.osl, *key_of(row)[1:], row.release, row.drafting)
            if key not in curves:
                curves[key] = point_of(row, with_release).curve
            points.append(Point(curves[key], log2(row.concurrency)))
        return points


def _public(model: str | None = None) -> list[Row]:
    """The rows that ship, or those of a model, if the factors were fitted to them."""
    rows, digest = measurements.read(model=model)
    if digest != fits.load().rows_sha256:
        what = "has other rows than factors.json was fitted to"
        fix = "run python -m maintenance.fit_estimates"
        raise BadFacts(Diagnostic(str(measurements.AGGREGATED), what, fix))
    return rows


def _outside(asked: Question, cell: Cell) -> str:
    """Which load or length lies outside the measured ones."""
    for name in ("concurrency", "isl", "osl"):
        low, high = cell.ends(name)
        least = low if name == "concurrency" else max(1, low // REACH)
        size = getattr(asked, name)
        if not (least <= size <= high * REACH and (name != "osl" or size > 1)):
            return f"{name} {size:,} lies outside the measured {low:,} to {high:,}"
    return ""


def _interval(value: float, log_half_width: float) -> Interval:
    spread = exp(log_half_width)
    return Interval(value / spread, value, value * spread)
