"""Drafted tokens: from rows that draft, or from a step's time and the tokens that it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from ..facts.published_results import acceptance_lengths
from . import roofline
from .cells import Cell
from .question import Interval, Question

METHOD = "MTP"
# How far the roofline's step of several tokens may be off: the half width of its log.
STEP_ERROR = 0.08


@dataclass(frozen=True, slots=True)
class Drafting:
    """Which curve of a cell answers: "on" is the curve of rows that draft.

    `is_open` says that the curve is unknown; `gain` divides the time per token of rows without
    drafts; `missing` tells what is unknown about the gain.
    """

    curve: str = ""
    is_open: bool = False
    gain: Interval | None = None
    missing: str = ""
    notes: tuple[str, ...] = ()


def drafting(asked: Question, cell: Cell) -> Drafting:
    """What a question and the rows of its cell say of drafted tokens."""
    marks = {row.drafting for row in cell.own}
    if asked.mtp is None:
        return _unsaid(asked, cell, marks)
    if not asked.mtp:
        return Drafting()
    if "on" in marks and (asked.acceptance is None or "off" not in marks):
        ignored = "" if asked.acceptance is None else f": {asked.acceptance:g} a step do not count"
        return Drafting("on", notes=(f"{_DEPTH_NOTE}{ignored}",))
    if cell.is_untried and "off" not in marks:
        return Drafting(notes=(_OWN_NOTE,))
    return _computed(asked, cell, asked.mtp)


_DEPTH_NOTE = "the measured rows draft, but do not say how many tokens"
_OWN_NOTE = (
    "your rows do not say whether they draft; they are taken as the deployment that is asked"
)


def _unsaid(asked: Question, cell: Cell, marks: set[str]) -> Drafting:
    """A release tells it where all rows of that release have one mode."""
    of_release = {row.drafting for row in cell.own if row.release == asked.release}
    if asked.release and of_release in ({"on"}, {"off"}):
        mode = of_release.pop()
        note = f"drafting is taken as {mode}, as in all rows of {asked.release}"
        return Drafting("on" if mode == "on" else "", notes=(note,))
    if marks == {"on"}:
        return Drafting("on", notes=("all measured rows draft tokens",))
    return Drafting(is_open="on" in marks)


def _computed(asked: Question, cell: Cell, draft_tokens: int) -> Drafting:
    """Tokens that a step gives over how much longer it takes."""
    if asked.acceptance is not None:
        lengths: Sequence[float] = [asked.acceptance]
        source = f"{asked.acceptance:g} tokens a step, as you say"
    else:
        lengths = acceptance_lengths(asked.model, METHOD, draft_tokens)
        source = f"{' to '.join(f'{x:g}' for x in _ends(lengths))} tokens a step, published"
    if not lengths:
        return Drafting(
            missing=f"no row of {asked.model} drafts tokens here, and no acceptance is published "
            f"for {draft_tokens} of them: give acceptance, the tokens that a step gives"
        )
    longer = _step(asked, cell, draft_tokens) / _step(asked, cell, 0)
    low, high, spread = min(lengths) / longer, max(lengths) / longer, exp(STEP_ERROR)
    gain = Interval(low / spread, (low * high) ** 0.5, high * spread)
    note = f"computed from rows without drafts: {source}, each {longer:.2f} times as long"
    return Drafting(gain=gain, notes=(note,))


def _ends(lengths: Sequence[float]) -> list[float]:
    return sorted({min(lengths), max(lengths)}) if lengths else []


def _step(asked: Question, cell: Cell, draft_tokens: int) -> float:
    """A step's time in milliseconds, with the layers that draft."""
    terms = roofline.decode_terms(asked, cell.shape, cell.speeds, draft_tokens)
    return cell.fits.tpot.time(asked.engine, terms) * (1 + draft_tokens / cell.shape.layers)
