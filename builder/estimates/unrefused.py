"""Expected times without a refusal, for a search that measures what it asks about.

An estimate for a decision is refused if nothing near it was measured. A search on real hardware
only needs to know where to begin and how far off that may be, so every question has an answer: from
the model's rows on any GPU, or from the roofline alone for a model without rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import exp
from statistics import median

from ..facts.checkpoint import Checkpoint
from ..facts.published_results import acceptance_curves, acceptance_lengths
from . import fits, names, roofline
from .cells import Cell, Key, key_of, minor, point
from .estimator import Estimator
from .interpolation import RequestMs
from .intervals import Spread
from .question import Question

# Least standard deviations of log times on a GPU, or of a model, without measurements: a replay of
# public measurements without those of the GPU, or of the model (2026-11).
LEAST_TPOT, LEAST_TTFT = 0.3, 0.45


def prior(estimator: Estimator, facts: Checkpoint) -> Callable[[Question], Spread]:
    """Returns the times of any question about one model, whose shape `facts` have."""
    shape = roofline.shape_of(facts)
    rows, fitted = estimator.rows, estimator.fits

    @cache
    def cell_of(key: Key, with_release: bool) -> Cell:
        return Cell(key, rows.of_model(key.model), fitted, shape, with_release)

    def expected(question: Question) -> Spread:
        asked = names.in_row_names(question)
        key = key_of(asked)
        release = minor(asked.release or "")
        release = release if release in rows.releases(key) else ""
        cell = cell_of(key, bool(release))
        is_measured = any(row.gpu == key.gpu for row in rows.of_model(key.model))
        curve, gain = _drafting(asked, estimator, cell)
        here = point(asked, release, curve)
        first, first_deviation = cell.ttft.at(here)
        each, each_deviation = cell.tpot.at(here)
        first_ms = exp(first) * fitted.ttft.time(
            asked.engine, roofline.first_terms(asked, shape, cell.speeds)
        )
        each_ms = exp(each) / gain * _step_ms(asked, cell, 0)
        rest_ms = each_ms * (asked.osl - 1)
        if not is_measured:
            first_deviation = max(first_deviation, LEAST_TTFT)
            each_deviation = max(each_deviation, LEAST_TPOT)
        at = RequestMs(first_ms, rest_ms, first_ms + rest_ms)
        return Spread(
            at, each_deviation, first_deviation, fits.of_cell(fitted.intervals, key, False)
        )

    return expected


def _drafting(asked: Question, estimator: Estimator, cell: Cell) -> tuple[str, float]:
    """The curve of the rows that answer, and by what drafts divide the time per token."""
    if not asked.mtp:
        return "", 1.0
    if any(row.drafting == "on" for row in estimator.rows.of_model(asked.model)):
        return "on", 1.0
    lengths = acceptance_lengths(asked.model, "MTP", asked.mtp) or [
        length
        for row in acceptance_curves()
        if row["drafting"].lower().startswith("mtp")
        for length in row["lengths"][asked.mtp - 1 : asked.mtp]
    ]
    longer = _step_ms(asked, cell, asked.mtp) / _step_ms(asked, cell, 0)
    longer *= 1 + asked.mtp / cell.shape.layers
    return "", max(1.0, median(lengths) / longer) if lengths else 1.0


def _step_ms(asked: Question, cell: Cell, draft_tokens: int) -> float:
    terms = roofline.decode_terms(asked, cell.shape, cell.speeds, draft_tokens)
    return cell.fits.tpot.time(asked.engine, terms)
