"""The estimator: answers a question with an estimate, or refuses it with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path

from ..diagnostics import Diagnostic
from ..errors import BadFacts
from . import cells, fits, measurements, names, own_runs, refusals, roofline
from .cells import Cell, Drafting, Key, key_of, minor
from .fits import Fits
from .interpolation import Kernel
from .intervals import (
    MOST_DRAFTED_HALF_WIDTH,
    MOST_HALF_WIDTH,
    MOST_OWN_HALF_WIDTH,
    MOST_PROMISED_MARGIN,
    NO_LIMITS,
    Limits,
    Spread,
    Times,
)
from .measurements import Row, layout_text
from .question import Estimate, Question, Refusal
from .rows import Rows, unused

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
        return self._answer(question)

    def promise(self, question: Question, limits_ms: Limits = NO_LIMITS) -> Estimate | Refusal:
        """The same with upper ends of TPOT and TTFT that a choice can rely on.

        An end more than the margin above its value counts only if it meets all targets, which are
        `limits_ms` by the names of `Times.keep`.

        An 80 % interval says too little of the fastest of many: that one is chosen for its
        estimate, and so rather where that is too good. Nine curves of ten of the same cell, asked
        without their own rows, lie below the promised ends with all their loads.
        """
        return self._answer(question, limits_ms)

    def idle_runs(self, questions: Iterable[Question]) -> tuple[str, ...]:
        """A note if the user gave runs, and none is of a cell that is asked about."""
        own = self.rows.own_cells()
        if not own or any(key_of(names.in_row_names(one)) in own for one in questions):
            return ()
        said = "; ".join(f"{key.model} {key.precision}, {key.gpu}, {key.engine}" for key in own)
        return (f"no run of yours is of this model, GPU, precision and engine, but of {said}",)

    def _answer(self, question: Question, limits_ms: Limits | None = None) -> Estimate | Refusal:
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
            found = self._answer_of(cell, question, asked, limits_ms)
        if (given := names.weight_precision(question.precision)) != asked.precision:
            what = f"precision {given} is read as {asked.precision}"
            notes = (f"{what}: this model was measured in that precision only", *notes)
        return replace(found, notes=(*notes, *found.notes)) if notes else found

    def _answer_of(
        self, cell: Cell, question: Question, asked: Question, limits_ms: Limits | None
    ) -> Estimate | Refusal:
        draft = cells.drafting(asked, cell)
        if doubt := refusals.doubt(asked, cell, draft):
            return self._refuse(question, asked, *doubt)
        spread = cell.spread(asked, draft.curve)
        times = _times(spread, asked, draft)
        widest, margin = self._limits(cell, draft)
        if (width := times.e2e.half_width) > widest:
            what = f"the interval is too wide: {width:.0%} of the time to the last token"
            return self._refuse(
                question, asked, "wide", f"{what}, at most {widest:.0%} is answered"
            )
        if limits_ms is not None:
            times = _times(spread, asked, draft, cell.promised)
            above = times.tpot.high / times.tpot.value - 1
            if above > margin and not times.keep(limits_ms):
                what = (
                    "the curves of this cell differ: the conservative bound needs "
                    f"{above:.0%} more time per token, at most {margin:.0%} counts"
                )
                return self._refuse(question, asked, "wide", what)
        speed = times.e2e.inverse(asked.concurrency * asked.osl * 1000)
        without = cell.key if cell.is_untried else None
        look = cache(partial(self.rows.nearest, asked, without))
        of_request = times.tpot, times.ttft, times.e2e
        notes = (*draft.notes, *cell.slower(asked, draft.curve))
        return Estimate(question, *of_request, speed, len(cell.own), look, notes)

    def _limits(self, cell: Cell, draft: Drafting) -> tuple[float, float]:
        """The widest interval, and the margin of a promise, that a cell may have."""
        if draft.gain is not None:
            return MOST_DRAFTED_HALF_WIDTH, MOST_DRAFTED_HALF_WIDTH
        if cell.is_untried:
            return MOST_OWN_HALF_WIDTH, MOST_OWN_HALF_WIDTH
        return self.half_width, self.promised_margin

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
        if kind == "unmeasured" and (others := unused(asked.model, asked.gpu)):
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


def _times(
    spread: Spread, asked: Question, draft: Drafting, above: Sequence[float] = (0.0, 0.0)
) -> Times:
    times = spread.times(asked.osl, above)
    return times if draft.gain is None else times.drafted(draft.gain)
