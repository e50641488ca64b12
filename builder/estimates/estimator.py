"""Measured rows to the answer of a question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from heapq import nsmallest
from math import exp, inf, log2
from pathlib import Path
from typing import NamedTuple

from ..diagnostics import Diagnostic
from ..errors import BadFacts
from ..facts import hardware
from . import (
    capacity,
    fits,
    layouts,
    measurements,
    measuring_plan,
    models,
    mtp,
    own_runs,
    surface,
)
from .capacity import FULL
from .cells import REACH, Cell, Key, Variant, curve_of, key_of, minor, point_of
from .fits import Fits
from .kriging import Curve, Kernel, Point
from .measurements import DisaggregatedRow, Row, layout_text
from .mtp import Drafting
from .question import Estimate, Interval, Neighbor, Question, Refusal, Times
from .shapes import shape_of

MOST_HALF_WIDTH = 0.17  # of the time to the last token, as a share of it
MOST_OWN_HALF_WIDTH = 0.30  # where nobody but the user measured: few runs are worth a wide bar
MOST_DRAFTED_HALF_WIDTH = 0.20  # where the rows do not draft and the acceptance is another's
# Of the time per token: the promised end of a choice may lie so far above it.
MOST_PROMISED_MARGIN = 0.10
MODES_APART = 1.2  # from here on, drafting or not is another answer
UNMARKED_APART = 1.5  # from here on, rows around a load are two modes that nobody marked
OWN_APART = 1.2  # from here on, rows of the user and published ones are of two machines or modes
BOARD = 8  # GPUs, which the usual server joins: layouts of so many are told from smaller ones
SHOWN = 3
ANOTHER_MODEL = 10.0  # how far the rows of another model are


class _Told(NamedTuple):
    """What a cell says of a load: milliseconds, standard deviations of their logs, and how many of
    these make an 80 % interval, of TPOT and TTFT."""

    at: surface.Times
    tpot_deviation: float
    ttft_deviation: float
    quantiles: Sequence[float]

    def times(self, osl: int, above: Sequence[float] = (0.0, 0.0)) -> Times:
        """With upper ends at least so many standard deviations above the values."""
        below = self.quantiles
        above = [max(pair) for pair in zip(below, above, strict=True)]
        rest = _interval(self.at.rest, self.tpot_deviation, below[0], above[0])
        first = _interval(self.at.first, self.ttft_deviation, below[1], above[1])
        return Times.of(first, rest, self.at.whole, osl)


class Estimator:
    """Answers questions from rows; what it computed for a cell is kept.

    `half_width` and `promised_margin` are its limits of what rests on public rows.
    """

    def __init__(self, rows: Iterable[Row], fitted: Fits) -> None:
        self.fits = fitted
        self.half_width, self.promised_margin = MOST_HALF_WIDTH, MOST_PROMISED_MARGIN
        self.rows = list(rows)
        self._of_model: dict[str, list[Row]] = {}
        for row in self.rows:
            self._of_model.setdefault(row.model, []).append(row)
        self._releases = cache(self._new_releases)
        self._cell = lru_cache(maxsize=64)(self._new_cell)
        self._points = lru_cache(maxsize=64)(self._new_points)

    @classmethod
    def load(cls, rows_dir: Path | None = None) -> Estimator:
        """The shipped rows, and rows from runs of `launch bench` below `rows_dir`.

        Raises `BadFacts` if the factors were fitted to other rows, `BadInput` if a run cannot be
        read.
        """
        return cls([*_public(), *(own_runs.read(rows_dir) if rows_dir else ())], fits.load())

    @classmethod
    def of_model(cls, model: str) -> Estimator | None:
        """The shipped rows of one model, by its name there; `None` if there are no rows."""
        rows = _public(model)
        return cls(rows, fits.load()) if rows else None

    def rows_of(self, model: str) -> Sequence[Row]:
        """The rows of a model, by their name of it."""
        return self._of_model.get(model, ())

    def estimate(self, question: Question) -> Estimate | Refusal:
        """An estimate, or the reason why it is refused."""
        return self._estimate(question, promised=False)

    def idle_runs(self, questions: Iterable[Question]) -> tuple[str, ...]:
        """That none of the user's runs is of what is asked about, if they gave some."""
        own = dict.fromkeys(key_of(row) for row in self.rows if row.source == measurements.OWN)
        asked = map(_in_words_of_rows, questions)
        if not own or any((one.model, one.gpu, one.precision, one.engine) in own for one in asked):
            return ()
        said = "; ".join(f"{key.model} {key.precision}, {key.gpu}, {key.engine}" for key in own)
        return (f"no run of yours is of this model, GPU, precision and engine, but of {said}",)

    def promise(self, question: Question) -> Estimate | Refusal:
        """The same with upper ends of TPOT and TTFT that a choice can rely on.

        An 80 % interval says too little of the fastest of many: that one is chosen for its
        estimate, and so rather where that is too good. Nine curves of ten of the same cell, asked
        without their own rows, lie below the promised ends with all their loads.
        """
        return self._estimate(question, promised=True)

    def _estimate(self, question: Question, promised: bool) -> Estimate | Refusal:
        asked = _in_words_of_rows(question)
        key = Key(asked.model, asked.gpu, asked.precision, asked.engine)
        if not self._releases(key):
            return self._refuse(question, asked, "unmeasured", self._missing(key))
        found = self._answer(question, asked, key, promised)
        if (given := models.weight_precision(question.precision)) == asked.precision:
            return found
        what = f"precision {given} is read as {asked.precision}"
        return replace(
            found, notes=(f"{what}: the rows know this model in that alone", *found.notes)
        )

    def _new_releases(self, key: Key) -> frozenset[str]:
        """Of the rows of a cell; none where there are no rows, an empty one where none is said."""
        rows = self._of_model.get(key.model, ())
        return frozenset(minor(row.release) for row in rows if key_of(row) == key)

    def _missing(self, key: Key) -> str:
        """What of a cell without rows has none."""
        rows = self._of_model.get(key.model, ())
        if not rows:
            return f"no measured row of {key.model}"
        if not (rows := [row for row in rows if row.gpu == key.gpu]):
            return f"no measured row of {key.model} on {key.gpu}"
        if not [row for row in rows if row.engine == key.engine]:
            return f"no measured row of {key.model} on {key.gpu} with {key.engine}"
        return f"no measured row of {key.model} in {key.precision} on {key.gpu} with {key.engine}"

    def _answer(
        self, question: Question, asked: Question, key: Key, promised: bool
    ) -> Estimate | Refusal:
        if minor(asked.release or "") not in self._releases(key):
            asked = replace(asked, release=None)  # rows of other releases say as much without
        if impossible := layouts.impossible(asked):
            return self._refuse(question, asked, "layout", impossible)
        cell, notes = self._cell(key, bool(minor(asked.release or "")))
        found = self._answer_of(cell, question, asked, promised)
        return replace(found, notes=(*notes, *found.notes)) if notes else found

    def _answer_of(
        self, cell: Cell, question: Question, asked: Question, promised: bool
    ) -> Estimate | Refusal:
        layout = (asked.tp, asked.attention_dp, asked.ep)
        full = 0.0 if cell.has_run(layout) else capacity.filled(asked, cell.shape, asked.gpu)
        if full == inf:
            what = f"the weights leave no room for a KV cache on {asked.num_gpus} {asked.gpu}"
            return self._refuse(question, asked, "layout", what)
        if outside := _outside(asked, cell, full):
            return self._refuse(question, asked, "outside", outside)
        draft = mtp.drafting(asked, cell)
        if draft.missing:
            return self._refuse(question, asked, "acceptance", draft.missing)
        told = self._told(asked, cell, draft.curve)
        if doubt := self._two_modes(asked, cell, draft, told):
            return self._refuse(question, asked, "modes", doubt)
        widest = MOST_OWN_HALF_WIDTH if cell.is_untried else self.half_width
        margin = MOST_OWN_HALF_WIDTH if cell.is_untried else self.promised_margin
        times = told.times(asked.osl)
        if draft.gain is not None:
            times = times.drafted(draft.gain)
            widest = margin = MOST_DRAFTED_HALF_WIDTH
        if (width := times.e2e.half_width) > widest:
            what = f"the interval is too wide: {width:.0%} of the time to the last token"
            return self._refuse(question, asked, "wide", what)
        if promised:
            times = told.times(
                asked.osl, fits.of_cell(self.fits.promises, cell.key, cell.with_release)
            )
            times = times.drafted(draft.gain) if draft.gain is not None else times
            if (above := times.tpot.high / times.tpot.value - 1) > margin:
                what = (
                    f"curves of this cell differ: a promise needs {above:.0%} more time per token"
                )
                return self._refuse(question, asked, "wide", what)
        speed = times.e2e.inverse(asked.concurrency * asked.osl * 1000)
        without = cell.key if cell.is_untried else None
        rows, look = len(cell.own), cache(partial(self._nearest, asked, without))
        of_request = times.tpot, times.ttft, times.e2e
        return Estimate(question, *of_request, speed, rows, look, draft.notes)

    def _variant(self, asked: Question, drafting: str) -> Variant:
        release = minor(asked.release or "")
        return Variant(asked.tp, asked.attention_dp, asked.ep, drafting, release)

    def _two_modes(self, asked: Question, cell: Cell, draft: Drafting, told: _Told) -> str:
        """Why the rows say two things of one question, if they do."""
        if draft.is_open:
            apart = told.times(asked.osl).e2e.value
            apart /= self._told(asked, cell, "on").times(asked.osl).e2e.value
            if max(apart, 1 / apart) > MODES_APART:
                return (
                    "the rows hold two modes, with and without drafted tokens (MTP), "
                    f"{apart:.1f} times apart: say mtp, the number of them or 0"
                )
        if (apart := cell.modes_apart(asked, self._variant(asked, draft.curve))) > UNMARKED_APART:
            return (
                f"measurements of this curve around that load are {apart:.1f} times apart, "
                "and nothing says what differs"
            )
        if row := cell.contradicted(asked):
            return f"near it lies a row that all others contradict: {row.describe()}"
        return ""

    def _told(self, asked: Question, cell: Cell, drafting: str) -> _Told:
        variant = self._variant(asked, drafting)
        point = cell.point(asked, variant)
        wider = self.fits.untried if cell.is_untried else 1.0
        return _Told(
            cell.surface(variant).at((asked.concurrency, asked.isl, asked.osl)),
            wider * cell.tpot.at(point)[1],
            wider * cell.ttft.at(point)[1],
            fits.of_cell(self.fits.intervals, cell.key, cell.with_release),
        )

    def _new_cell(self, key: Key, with_release: bool) -> tuple[Cell, tuple[str, ...]]:
        """A cell, and the notes of all its answers."""
        facts = models.facts_of(key.model)
        if facts is None:
            what = "the rows name a model without facts"
            raise BadFacts(Diagnostic(key.model, what, "add it to builder/data/models"))
        rows = self._of_model[key.model]
        cell = Cell(key, rows, self.fits, shape_of(facts), with_release)
        if (found := cell.disagreement) is None:
            return cell, ()
        row, times = found
        if max(times, 1 / times) <= OWN_APART:
            return cell, ()
        return cell.of_user(), (
            f"your rows and the published ones disagree: in {row.id} a token takes {times:.2f} "
            f"times as long as by the published rows ({layout_text(*row.layout)}, {row.measured}); "
            "yours answer without them",
        )

    def _refuse(self, question: Question, asked: Question, kind: str, reason: str) -> Refusal:
        look = partial(self._nearest, asked)
        if kind == "unmeasured" and (beside := _beside(asked.model, asked.gpu)):
            look = partial(self._nearest_beside, asked)
            here = all(row.server.gpu == asked.gpu for row in beside)
            reason += f", only {_kinds_text(beside)}" + ("" if here else " on other GPUs")
        kernel = Kernel(self.fits.tpot.without_release)
        measure = () if kind == "layout" else measuring_plan.plan(question, kernel)
        return Refusal(question, kind, reason, measure, cache(look))

    def _nearest(self, asked: Question, without: Key | None = None) -> tuple[Neighbor, ...]:
        """Rows by the distance of the TPOT's kernel: of the same model first, if it has any, and
        of one cell only the user's own, where they answer `without` the published ones."""
        kernel, place = self._place(asked)
        own = self._of_model.get(asked.model)
        far = 0.0 if own else ANOTHER_MODEL
        known = self._points(asked.model, bool(minor(asked.release or "")))
        points = zip(known, own or self.rows, strict=True)
        apart = cache(partial(kernel.apart, place.curve))
        ranked = nsmallest(
            SHOWN,
            (
                (apart(curve) + kernel.slope * abs(load - place.concurrency), index, row)
                for index, ((curve, load), row) in enumerate(points)
                if without is None or row.source == measurements.OWN or key_of(row) != without
            ),
        )
        return tuple(Neighbor(row, far + distance) for distance, _, row in ranked)

    def _place(self, asked: Question) -> tuple[Kernel, Point]:
        release, drafting = minor(asked.release or ""), "on" if asked.mtp else ""
        curve = curve_of(asked, asked.gpu, asked.engine, release, drafting)
        return Kernel(self.fits.tpot.with_release), Point(curve, log2(asked.concurrency))

    def _nearest_beside(self, asked: Question) -> tuple[Neighbor, ...]:
        """The same with the nearest of the rows that carry no estimate."""
        kernel, place = self._place(asked)
        found = []
        for row in _beside(asked.model, asked.gpu):
            curve, load = point_of(row.server, with_release=True)
            apart = kernel.apart(place.curve, curve)
            found.append(Neighbor(row, apart + kernel.slope * abs(load - place.concurrency)))
        beside = sorted(found, key=lambda near: near.distance)
        own = self._nearest(asked)[: SHOWN - 1] if self.rows_of(asked.model) else ()
        return (*own, *beside)[:SHOWN]

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


def _in_words_of_rows(question: Question) -> Question:
    model = models.model_name(question.model)
    return replace(
        question,
        model=model,
        gpu=models.gpu_name(question.gpu),
        precision=models.precision_of(model, question.precision),
        engine=models.engine_name(question.engine),
        release=models.release_name(question.release),
    )


def _public(model: str | None = None) -> list[Row]:
    """The rows that ship, or those of a model, if the factors were fitted to them."""
    rows, digest = measurements.read(model=model)
    if digest != fits.load().rows_sha256:
        what = "has other rows than factors.json was fitted to"
        fix = "run python -m maintenance.fit_estimates"
        raise BadFacts(Diagnostic(str(measurements.AGGREGATED), what, fix))
    return rows


def _outside(asked: Question, cell: Cell, full: float) -> str:
    """Which load or length lies outside the measured ones, or what memory does not hold."""
    for name in ("concurrency", "isl", "osl"):
        low, high = cell.ends(name)
        least = low if name == "concurrency" else max(1, low // REACH)
        size = getattr(asked, name)
        if not (least <= size <= high * REACH and (name != "osl" or size > 1)):
            return f"{name} {size:,} lies outside the measured {low:,} to {high:,}"
    most = max(row.num_gpus for row in cell.own)
    joined = hardware.load(asked.gpu).nvlink_domain_gpus.value
    if asked.num_gpus > max(most, min(max(most * REACH, BOARD), joined)):
        return f"a server of {asked.num_gpus} GPUs lies outside the measured ones of up to {most}"
    if full > FULL:
        return (
            f"these requests fill {full:.0%} of the KV cache of {asked.num_gpus} {asked.gpu}: "
            "some wait, and measured rows do not tell how long"
        )
    return ""


@cache
def _beside(model: str, gpu: str) -> Sequence[Row | DisaggregatedRow]:
    """Rows of a model that carry nothing: on this GPU, if there are any."""
    found = [row for row in measurements.beside() if row.server.model == model]
    return [row for row in found if row.server.gpu == gpu] or found


def _kinds_text(beside: Sequence[Row | DisaggregatedRow]) -> str:
    """What rows that carry nothing are of."""
    few = sum(isinstance(row, Row) for row in beside)
    apart = len(beside) - few
    parts = [f"{few} that are too few of a kind to tell"] if few else []
    parts += [f"{apart} of separate prefill and decode servers"] if apart else []
    return " and ".join(parts)


def _interval(value: float, deviation: float, below: float, above: float) -> Interval:
    return Interval(value / exp(below * deviation), value, value * exp(above * deviation))
