"""How wide intervals are in each cell: as wide as the errors of its own rows ask for.

Rows of some cells agree far better than those of others, which the kernel's scales, the same for
all, do not tell. So errors of rows that are left out are counted by cell, in standard deviations,
and a few of all cells of the engine with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import log
from typing import NamedTuple

import numpy as np

from builder.estimates.cells import TPOT_OFF, TTFT_OFF, is_held, key_of, uncontradicted
from builder.estimates.fits import Ends, Fit, Fits, release_name
from builder.estimates.measurements import ENGINES, Row
from builder.estimates.roofline import decode_terms, first_terms, speeds

from .left_out import Crowd, curve_of, shape

COVERED, PRIOR_ROWS = 0.8, 10.0
# Of a curve the largest error of its loads counts, since a choice takes that load.
PROMISED, PRIOR_CURVES = 0.9, 3.0
TERMS, OFF = (decode_terms, first_terms), (TPOT_OFF, TTFT_OFF)


class _Error(NamedTuple):
    """An error in standard deviations, of TPOT (`place` 0) or TTFT (1), of a row or a curve."""

    of_curve: bool
    release: str
    place: int
    cell: tuple[str, ...]
    value: float


class Errors:
    """How far off rows are when they are left out."""

    def __init__(self, rows: Sequence[Row], fits: Fits) -> None:
        self._fits = fits
        by_model: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            by_model[row.model].append(row)
        self._found = {model: list(self._of_model(part)) for model, part in by_model.items()}

    def with_model(self, model: str, rows: Sequence[Row]) -> Errors:
        """The same with other rows of one model."""
        found = Errors((), self._fits)
        found._found = {**self._found, model: list(self._of_model(rows))}
        return found

    def intervals(self) -> Ends:
        """By cell and by engine how many standard deviations hold four errors of five."""
        return self._ends(False, COVERED, PRIOR_ROWS)

    def promises(self) -> Ends:
        """By cell and by engine how many lie above nine curves of ten, with all their loads."""
        return self._ends(True, PROMISED, PRIOR_CURVES)

    def _of_model(self, rows: Sequence[Row]) -> Iterator[_Error]:
        rows = [row for row in rows if row.ttft_ms is not None and is_held(row, shape(row.model))]
        for place, fit in enumerate(self._fits.both):
            values = [_log_residual(row, fit, place) for row in rows]
            kept = uncontradicted(rows, values, OFF[place])
            some, residuals = [rows[i] for i in kept], np.array([values[i] for i in kept])
            for with_release in (True, False) if some else ():
                crowd, name = Crowd(some, residuals, with_release), release_name(with_release)
                alone, of_curves = crowd.standardized(asdict(fit.scales(with_release)))
                curves: dict[tuple[object, ...], list[float]] = defaultdict(list)
                for row, error, of_curve in zip(crowd.rows, alone, of_curves, strict=True):
                    yield _Error(False, name, place, key_of(row), abs(error))
                    curves[curve_of(row)].append(of_curve)
                for curve, errors in curves.items():
                    yield _Error(True, name, place, tuple(map(str, curve[:4])), max(errors))

    def _ends(self, of_curve: bool, share: float, prior: float) -> Ends:
        values: dict[tuple[str, str, int], list[float]] = defaultdict(list)
        cells: dict[str, str] = {}
        for error in (error for part in self._found.values() for error in part):
            if error.of_curve == of_curve:
                cells[" ".join(error.cell)] = error.cell[-1]
                for name in (" ".join(error.cell), error.cell[-1], ""):
                    values[error.release, name, error.place].append(error.value)

        def ends(release: str, name: str, others: str) -> list[float]:
            pairs = ((values[release, name, at], values[release, others, at]) for at in (0, 1))
            return [float(f"{_quantile(own, rest, share, prior):.3g}") for own, rest in pairs]

        return {
            release: {engine: ends(release, engine, "") for engine in ENGINES}
            | {cell: ends(release, cell, engine) for cell, engine in sorted(cells.items())}
            for release in map(release_name, (True, False))
        }


def _log_residual(row: Row, fit: Fit, place: int) -> float:
    time_ms = (row.tpot_ms, row.ttft_ms)[place]
    assert time_ms is not None
    terms = TERMS[place](row, shape(row.model), speeds(row.gpu, row.precision))
    return log(time_ms / fit.time(row.engine, terms))


def _quantile(own: Sequence[float], others: Sequence[float], share: float, prior: float) -> float:
    """Of some values, among which others count together for `prior` of them."""
    weighted = [(value, 1.0) for value in own]
    weighted += [(value, prior / len(others)) for value in others]
    missing = share * sum(weight for _, weight in weighted)
    for value, weight in sorted(weighted):
        missing -= weight
        if missing <= 0:
            return max(0.0, value)
    return max(value for value, _ in weighted)
