"""The estimator: answers a question with an estimate, or refuses it with the reason.

`Rows` finds measurements by model and cell, and the ones nearest to a question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from heapq import nsmallest
from math import inf, log2
from pathlib import Path

from ..diagnostics import Diagnostic
from ..errors import BadFacts
from . import cells, fits, measurements, names, own_runs, refusals, roofline
from .cells import Cell, Key, key_of, minor, point, point_of
from .fits import Fits
from .interpolation import Curve, Kernel, Point
from .intervals import (
    MOST_DRAFTED_HALF_WIDTH,
    MOST_HALF_WIDTH,
    MOST_OWN_HALF_WIDTH,
    MOST_PROMISED_MARGIN,
)
from .measurements import DisaggregatedRow, Row, layout_text
from .question import Estimate, Neighbor, Question, Refusal

SHOWN = 3
ANOTHER_MODEL = 10.0  # distance of the rows of another model


class Rows:
    """All rows of an estimator; `kernel` measures distances between them."""

    def __init__(self, rows: Iterable[Row], kernel: Kernel) -> None:
        self._every = list(rows)
        self._kernel = kernel
        self._by_model: dict[str, list[Row]] = {}
        for row in self._every:
            self._by_model.setdefault(row.model, []).append(row)
        self.releases = cache(self._releases)
        self._points = lru_cache(maxsize=64)(self._new_points)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._every)

    def of_model(self, model: str) -> Sequence[Row]:
        return self._by_model.get(model, ())

    def _releases(self, key: Key) -> frozenset[str]:
        """The releases in a cell: empty without rows, "" for rows without a release."""
        rows = self.of_model(key.model)
        return frozenset(minor(row.release) for row in rows if key_of(row) == key)

    def own_cells(self) -> list[Key]:
        """The cells that the user measured."""
        own = (row for row in self._every if row.source == measurements.OWN)
        return list(dict.fromkeys(map(key_of, own)))

    def missing(self, key: Key) -> str:
        """Which part of a cell without rows nobody measured."""
        rows = self.of_model(key.model)
        what = f"no measurements for {key.model}"
        if not rows:
            return what
        if not (rows := [row for row in rows if row.gpu == key.gpu]):
            return f"{what} on {key.gpu}"
        if all(row.engine != key.engine for row in rows):
            return f"{what} on {key.gpu} with {key.engine}"
        return f"{what} in {key.precision} on {key.gpu} with {key.engine}"

    def nearest(self, asked: Question, without: Key | None = None) -> tuple[Neighbor, ...]:
        """The nearest rows: of the same model, if it has any; of the cell `without` published rows
        only those of the user."""
        curve, load = _place(asked)
        slope = self._kernel.slope
        own = self.of_model(asked.model)
        far = 0.0 if own else ANOTHER_MODEL
        known = self._points(asked.model, bool(minor(asked.release or "")))
        points = zip(known, own or self._every, strict=True)
        apart = cache(partial(self._kernel.apart, curve))
        ranked = nsmallest(
            SHOWN,
            (
                (apart(point.curve) + slope * abs(point.concurrency - load), index, row)
                for index, (point, row) in enumerate(points)
                if without is None or row.source == measurements.OWN or key_of(row) != without
            ),
        )
        return tuple(Neighbor(row, far + distance) for distance, _, row in ranked)

    def nearest_with_unused(self, asked: Question) -> tuple[Neighbor, ...]:
        """The same with the nearest of the measurements that no estimate uses."""
        curve, load = _place(asked)
        found = []
        for row in _unused(asked.model, asked.gpu):
            point = point_of(row.server, with_release=True)
            distance = self._kernel.apart(curve, point.curve)
            distance += self._kernel.slope * abs(point.concurrency - load)
            found.append(Neighbor(row, distance))
        found.sort(key=lambda near: near.distance)
        own = self.nearest(asked)[: SHOWN - 1] if self.of_model(asked.model) else ()
        return (*own, *found)[:SHOWN]

    def _new_points(self, model: str, with_release: bool) -> list[Point]:
        curves: dict[tuple[object, ...], Curve] = {}
        points = []
        for row in self.of_model(model) or self._every:
            key = (row.layout, row.isl, row.osl, *key_of(row)[1:], row.release, row.drafting)
            if key not in curves:
                curves[key] = point_of(row, with_release).curve
            points.append(Point(curves[key], log2(row.concurrency)))
        return points


def _place(asked: Question) -> Point:
    return point(asked, minor(asked.release or ""), "on" if asked.mtp else "")


@cache
def _unused(model: str, gpu: str) -> Sequence[Row | DisaggregatedRow]:
    """Measurements of a model that no estimate uses: those on this GPU, or else all."""
    found = [row for row in measurements.unused() if row.server.model == model]
    return [row for row in found if row.server.gpu == gpu] or found


OWN_APART = 1.2  # from here on, rows of the user and published ones are of two machines or modes


class Estimator:
    """Answers questions from rows; what it computed for a cell is kept.

    `half_width` and `promised_margin` are its limits of what rests on public rows.
    """

    def __init__(self, rows: Iterable[Row], fitted: Fits) -> None:
        self.fits = fitted
        self.half_width, self.promised_margin = MOST_HALF_WIDTH, MOST_PROMISED_MARGIN
        self.rows = Rows(rows, Kernel(fitted.tpot.with_release))
        self._cell = lru_cache(maxsize=64)(self._new_cell)

    @classmethod
    def load(cls, rows_dir: Path | None = None) -> Estimator:
        """The shipped rows, and rows from runs of `launch bench` below `rows_dir`.

        Raises `BadFacts` if the factors were fitted to other rows, `BadInput` if a run cannot be
        read.
        """
        own = own_runs.read(rows_dir) if rows_dir else []
        return cls([*_public(), *own], fits.load())

    @classmethod
    def of_model(cls, model: str) -> Estimator | None:
        """The shipped rows of one model, by its name there; `None` if there are no rows."""
        rows = _public(model)
        return cls(rows, fits.load()) if rows else None

    def estimate(self, question: Question) -> Estimate | Refusal:
        """An estimate, or the reason why it is refused."""
        return self._answer(question, promised=False)

    def promise(self, question: Question) -> Estimate | Refusal:
        """The same with upper ends of TPOT and TTFT that a choice can rely on.

        An 80 % interval says too little of the fastest of many: that one is chosen for its
        estimate, and so rather where that is too good. Nine curves of ten of the same cell, asked
        without their own rows, lie below the promised ends with all their loads.
        """
        return self._answer(question, promised=True)

    def idle_runs(self, questions: Iterable[Question]) -> tuple[str, ...]:
        """A note if the user gave runs, and none is of a cell that is asked about."""
        own = self.rows.own_cells()
        if not own or any(key_of(names.in_row_names(one)) in own for one in questions):
            return ()
        said = "; ".join(f"{key.model} {key.precision}, {key.gpu}, {key.engine}" for key in own)
        return (f"no run of yours is of this model, GPU, precision and engine, but of {said}",)

    def _answer(self, question: Question, promised: bool) -> Estimate | Refusal:
        asked = names.in_row_names(question)
        key = key_of(asked)
        if not (releases := self.rows.releases(key)):
            return self._refuse(question, asked, "unmeasured", self.rows.missing(key))
        if minor(asked.release or "") not in releases:
            asked = replace(asked, release=None)  # rows of other releases say as much without
        if impossible := refusals.impossible(asked):
            found: Estimate | Refusal = self._refuse(question, asked, "layout", impossible)
            notes: tuple[str, ...] = ()
        else:
            cell, notes = self._cell(key, bool(minor(asked.release or "")))
            found = self._answer_of(cell, question, asked, promised)
        if (given := names.weight_precision(question.precision)) != asked.precision:
            what = f"precision {given} is read as {asked.precision}"
            notes = (f"{what}: this model was measured in that precision only", *notes)
        return replace(found, notes=(*notes, *found.notes)) if notes else found

    def _answer_of(
        self, cell: Cell, question: Question, asked: Question, promised: bool
    ) -> Estimate | Refusal:
        has_run = cell.has_run(asked.layout)
        full = 0.0 if has_run else roofline.kv_cache_share(asked, cell.shape, asked.gpu)
        if full == inf:
            what = f"the weights leave no room for a KV cache on {asked.num_gpus} {asked.gpu}"
            return self._refuse(question, asked, "layout", what)
        if outside := refusals.outside(asked, cell, full):
            return self._refuse(question, asked, "outside", outside)
        draft = cells.drafting(asked, cell)
        if draft.missing:
            return self._refuse(question, asked, "acceptance", draft.missing)
        spread = cell.spread(asked, draft.curve)
        if doubt := refusals.two_modes(asked, cell, draft, spread):
            return self._refuse(question, asked, "modes", doubt)
        widest = MOST_OWN_HALF_WIDTH if cell.is_untried else self.half_width
        margin = MOST_OWN_HALF_WIDTH if cell.is_untried else self.promised_margin
        times = spread.times(asked.osl)
        if draft.gain is not None:
            times = times.drafted(draft.gain)
            widest = margin = MOST_DRAFTED_HALF_WIDTH
        if (width := times.e2e.half_width) > widest:
            what = f"the interval is too wide: {width:.0%} of the time to the last token"
            return self._refuse(question, asked, "wide", what)
        if promised:
            times = spread.times(asked.osl, cell.promised)
            times = times.drafted(draft.gain) if draft.gain is not None else times
            if (above := times.tpot.high / times.tpot.value - 1) > margin:
                what = (
                    "the curves of this cell differ: the conservative bound needs "
                    f"{above:.0%} more time per token"
                )
                return self._refuse(question, asked, "wide", what)
        speed = times.e2e.inverse(asked.concurrency * asked.osl * 1000)
        without = cell.key if cell.is_untried else None
        look = cache(partial(self.rows.nearest, asked, without))
        of_request = times.tpot, times.ttft, times.e2e
        return Estimate(question, *of_request, speed, len(cell.own), look, draft.notes)

    def _new_cell(self, key: Key, with_release: bool) -> tuple[Cell, tuple[str, ...]]:
        facts = names.facts_of(key.model)
        if facts is None:
            what = "the rows name a model without facts"
            raise BadFacts(Diagnostic(key.model, what, "add it to builder/data/models"))
        rows = self.rows.of_model(key.model)
        cell = Cell(key, rows, self.fits, roofline.shape_of(facts), with_release)
        if (found := cell.disagreement) is None:
            return cell, ()
        row, times = found
        if max(times, 1 / times) <= OWN_APART:
            return cell, ()
        return cell.of_user(), (
            f"your measurements and the published ones disagree: in {row.id} a token takes "
            f"{times:.2f} times as long as in the published ones ({layout_text(*row.layout)}, "
            f"{row.measured}); only yours are used",
        )

    def _refuse(self, question: Question, asked: Question, kind: str, reason: str) -> Refusal:
        look = partial(self.rows.nearest, asked)
        if kind == "unmeasured" and (others := _unused(asked.model, asked.gpu)):
            look = partial(self.rows.nearest_with_unused, asked)
            reason += refusals.unused_text(others, asked.gpu)
        kernel = Kernel(self.fits.tpot.without_release)
        measure = () if kind == "layout" else refusals.measurements(question, kernel)
        return Refusal(question, kind, reason, measure, cache(look))


def _public(model: str | None = None) -> list[Row]:
    """The rows that ship, or those of a model, if the factors were fitted to them."""
    rows, digest = measurements.read(model=model)
    if digest != fits.load().rows_sha256:
        what = "has other rows than factors.json was fitted to"
        fix = "run python -m maintenance.fit_estimates"
        raise BadFacts(Diagnostic(str(measurements.AGGREGATED), what, fix))
    return rows
