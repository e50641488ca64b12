"""How far off rows are that are told by the others of their model: one row, or a whole curve.

Leaving out has a closed form in the inverse of the covariance, which makes it cheap enough to
search scales by it. Needs numpy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from builder.estimates import names
from builder.estimates.cells import key_of, minor
from builder.estimates.interpolation import FAR
from builder.estimates.measurements import Row
from builder.estimates.roofline import Shape, shape_of

Array = np.ndarray[Any, Any]
Scales = dict[str, float]
CurveName = tuple[object, ...]

ROUNDS, SEED, STEP, SHRINK = 240, 0, 0.5, 0.85
LEAST_NOISE = 0.008
SIZES = ("concurrency", "isl", "osl", "tp", "attention_dp", "ep")
KINDS = ("gpu", "engine", "precision", "release", "drafting")


def curve_of(row: Row) -> CurveName:
    """All loads of one layout at these lengths, whether they draft or not."""
    return (*key_of(row), *row.layout, row.isl, row.osl)


@cache
def shape(model: str) -> Shape:
    facts = names.facts_of(model)
    assert facts is not None, model
    return shape_of(facts)


class Crowd:
    """All rows, model by model, as the kernel sees them; `rows` has them in that order."""

    def __init__(self, rows: Sequence[Row], residual: Array, with_release: bool) -> None:
        self._kinds = [kind for kind in KINDS if with_release or kind != "release"]
        self._blocks = []
        self.rows: list[Row] = []
        for model in sorted({row.model for row in rows}):
            index = [i for i, row in enumerate(rows) if row.model == model]
            apart = self._apart([rows[i] for i in index])
            self._blocks.append((apart, residual[index]))
            self.rows += [rows[i] for i in index]

    def _apart(self, rows: Sequence[Row]) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for name in SIZES:
            sizes = np.log2([getattr(row, name) for row in rows])
            found[name] = np.abs(sizes[:, None] - sizes[None, :])
        kinds: dict[str, list[str] | list[bool]] = {
            "gpu": [row.gpu for row in rows],
            "engine": [row.engine for row in rows],
            "precision": [row.precision for row in rows],
            "release": [row.engine + minor(row.release) for row in rows],
            "drafting": [row.drafting == "on" for row in rows],
        }
        for name in self._kinds:
            kind = np.array(kinds[name])
            found[name] = (kind[:, None] != kind[None, :]).astype(float)
        return found

    def _inverses(self, scales: Mapping[str, float]) -> Iterator[tuple[Array, Array]]:
        """Of each model the inverse of the covariance, and it times the log residuals."""
        for apart, values in self._blocks:
            distance = np.zeros((len(values), len(values)))
            for name, between in apart.items():
                distance += between * (scales[name] if name in KINDS else 1 / scales[name])
            covariance = scales["far"] ** 2 * np.exp(-distance / FAR)
            covariance += scales["near"] ** 2 * np.exp(-distance)
            covariance[np.diag_indices_from(covariance)] += scales["noise"] ** 2
            inverse = np.linalg.inv(covariance)
            yield inverse, inverse @ (values - np.median(values))

    def _left_out(self, scales: Mapping[str, float]) -> tuple[Array, Array]:
        """Errors and variances of all rows, each told by the others of its model."""
        errors, variances = [], []
        for inverse, weights in self._inverses(scales):
            variance = 1 / np.diag(inverse)
            errors.append(weights * variance)
            variances.append(variance)
        return np.concatenate(errors), np.concatenate(variances)

    def standardized(self, scales: Mapping[str, float]) -> tuple[list[float], list[float]]:
        """The errors of all rows in standard deviations above what is told: of each row by all
        others of its model, and without all rows of its curve."""
        alone: list[float] = []
        of_curves: list[float] = []
        for inverse, weights in self._inverses(scales):
            start = len(alone)
            alone += (weights / np.sqrt(np.diag(inverse))).tolist()
            curves: dict[CurveName, list[int]] = defaultdict(list)
            for index in range(len(weights)):
                curves[curve_of(self.rows[start + index])].append(index)
            found = np.zeros(len(weights))
            for part in curves.values():
                covariance = np.linalg.inv(inverse[np.ix_(part, part)])
                found[part] = covariance @ weights[part] / np.sqrt(np.diag(covariance))
            of_curves += found.tolist()
        return alone, of_curves

    def score(self, scales: Mapping[str, float]) -> float:
        errors, variances = self._left_out(scales)
        tails = np.log1p(errors**2 / variances / 4)
        return float(np.mean(0.5 * np.log(variances) + 2.5 * tails))

    def search(self, best: Scales) -> Scales:
        """A random search that narrows."""
        chance = np.random.default_rng(SEED)
        lowest, step = self.score(best), STEP
        for number in range(1, ROUNDS + 1):
            tried = {
                name: value * float(np.exp(chance.normal() * step * (chance.random() < 0.4)))
                for name, value in best.items()
            }
            tried["noise"] = max(tried["noise"], LEAST_NOISE)
            if (score := self.score(tried)) < lowest:
                best, lowest = tried, score
            if number % 40 == 0:
                step *= SHRINK
        return best
