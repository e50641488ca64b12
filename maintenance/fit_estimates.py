"""Fits the roofline's factors and the kernel's scales to the measured rows of the repository.

    python -m maintenance.fit_estimates [--keep-scales]

Factors are non-negative and fitted by robust relative least squares, one set for each engine.
Scales are searched by the leave-one-out score of all rows with heavy tails, in a minute or two;
`--keep-scales` leaves them. The same rows give the same bytes.
Needs numpy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from builder import command
from builder.estimates import measurements, models, roofline
from builder.estimates.cells import TPOT_OFF, TTFT_OFF, minor, uncontradicted
from builder.estimates.fits import FACTORS
from builder.estimates.kriging import FAR
from builder.estimates.measurements import ENGINES, Row
from builder.estimates.roofline import Load
from builder.estimates.shapes import Shape, Speeds, shape_of, speeds

Array = np.ndarray[Any, Any]
Scales = dict[str, float]
Terms = Callable[[Load, Shape, Speeds], tuple[float, ...]]

PASSES, ROBUST_PASSES = 150, 6
ROUNDS, SEED, STEP, SHRINK = 240, 0, 0.5, 0.85
LEAST_NOISE = 0.008
COVERED = 0.8
SIZES = ("concurrency", "isl", "osl", "tp", "attention_dp", "ep")
KINDS = ("gpu", "engine", "precision", "release", "drafting")
START: Scales = {
    "concurrency": 12,
    "isl": 5,
    "osl": 18,
    "tp": 3.5,
    "attention_dp": 3,
    "ep": 12,
    "gpu": 0.8,
    "engine": 1,
    "precision": 0.3,
    "release": 0.5,
    "drafting": 1,
    "far": 0.3,
    "near": 0.2,
    "noise": 0.03,
}


def fit(rows: Sequence[Row], digest: str, before: dict[str, Any] | None) -> str:
    """The text of `factors.json`; the scales of `before` are kept."""
    timed = [row for row in rows if row.ttft_ms is not None]
    tpots, ttfts = [row.tpot_ms for row in rows], [row.ttft_ms or 0.0 for row in timed]
    found = {
        "rows_sha256": digest,
        "tpot": _fit(rows, roofline.decode_terms, tpots, TPOT_OFF, before and before["tpot"]),
        "ttft": _fit(timed, roofline.first_terms, ttfts, TTFT_OFF, before and before["ttft"]),
    }
    return json.dumps(found, indent=1) + "\n"


def _fit(
    rows: Sequence[Row],
    terms: Terms,
    times: Sequence[float],
    limit: float,
    before: dict[str, Any] | None,
) -> dict[str, Any]:
    features, y = _features(rows, terms), np.array(times)
    factors: dict[str, list[float]] = {}
    residual = np.zeros(len(rows))
    for engine in ENGINES:
        some = np.array([row.engine == engine for row in rows])
        fitted = _rounded(_robust(features[some], y[some]), 5)
        factors[engine] = fitted
        residual[some] = np.log(y[some] / np.maximum(features[some] @ fitted, 1e-6))
    found: dict[str, Any] = {"factors": factors}
    kept = uncontradicted(rows, residual.tolist(), limit)
    rows, residual = [rows[index] for index in kept], residual[kept]
    for name, with_release in (("with_release", True), ("without_release", False)):
        crowd = _Crowd(rows, residual, with_release)
        scales = before[name] if before else crowd.search(dict(START))
        scales = {key: _rounded([scales[key]], 3)[0] for key in START}
        scales["release"] *= with_release
        found[name] = {**scales, "quantiles": crowd.quantiles(scales)}
    return found


def _rounded(values: Sequence[float] | Array, digits: int) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


def _features(rows: Sequence[Row], terms: Terms) -> Array:
    shapes = {}
    for model in {row.model for row in rows}:
        facts = models.facts_of(model)
        assert facts is not None, model
        shapes[model] = shape_of(facts)
    return np.array([terms(row, shapes[row.model], speeds(row.gpu, row.precision)) for row in rows])


def _robust(features: Array, times: Array) -> Array:
    """Factors by least squares of the relative error, in which outliers count little."""
    weights = np.ones(len(times))
    found = np.zeros(features.shape[1])
    for _ in range(ROBUST_PASSES):
        found = _non_negative(features * (weights / times)[:, None], weights)
        fitted = np.maximum(features @ found, 1e-6)
        error = np.abs(np.log(fitted / times))
        weights = np.sqrt(1 / (1 + (error / 0.25) ** 2))
        weights *= np.sqrt(times / np.maximum(fitted, times * 0.2)) ** 0.5
    return found


def _non_negative(features: Array, target: Array) -> Array:
    """Least squares with factors of 0 or more, by coordinate descent."""
    squares, products = features.T @ features, features.T @ target
    found = np.full(features.shape[1], 1e-3)
    for _ in range(PASSES):
        for j in range(len(found)):
            step = (products[j] - squares[j] @ found) / (squares[j, j] + 1e-12)
            found[j] = max(0.0, found[j] + step)
    return found


class _Crowd:
    """All rows, model by model, as the kernel sees them."""

    def __init__(self, rows: Sequence[Row], residual: Array, with_release: bool) -> None:
        self._kinds = [kind for kind in KINDS if with_release or kind != "release"]
        self._blocks = []
        self._engines: list[str] = []  # of all rows in the blocks' order
        for model in sorted({row.model for row in rows}):
            index = [i for i, row in enumerate(rows) if row.model == model]
            apart = self._apart([rows[i] for i in index])
            self._blocks.append((apart, residual[index]))
            self._engines += [rows[i].engine for i in index]

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

    def _left_out(self, scales: Scales) -> tuple[Array, Array]:
        """Errors and variances of all rows, each told by the others of its model."""
        errors, variances = [], []
        for apart, values in self._blocks:
            distance = np.zeros((len(values), len(values)))
            for name, between in apart.items():
                distance += between * (scales[name] if name in KINDS else 1 / scales[name])
            covariance = scales["far"] ** 2 * np.exp(-distance / FAR)
            covariance += scales["near"] ** 2 * np.exp(-distance)
            covariance[np.diag_indices_from(covariance)] += scales["noise"] ** 2
            inverse = np.linalg.inv(covariance)
            variance = 1 / np.diag(inverse)
            errors.append((inverse @ (values - np.median(values))) * variance)
            variances.append(variance)
        return np.concatenate(errors), np.concatenate(variances)

    def score(self, scales: Scales) -> float:
        errors, variances = self._left_out(scales)
        tails = np.log1p(errors**2 / variances / 4)
        return float(np.mean(0.5 * np.log(variances) + 2.5 * tails))

    def quantiles(self, scales: Scales) -> Scales:
        """By engine: what of the errors, in standard deviations, an interval is to hold."""
        errors, variances = self._left_out(scales)
        apart, engines = np.abs(errors) / np.sqrt(variances), np.array(self._engines)
        found = {name: np.quantile(apart[engines == name], COVERED) for name in ENGINES}
        return {name: _rounded([value], 3)[0] for name, value in found.items()}

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


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep-scales", action="store_true")
    options = parser.parse_args(words)
    return command.run(lambda: _run(options.keep_scales))


def _run(keep_scales: bool) -> None:
    rows, digest = measurements.read()
    before = json.loads(FACTORS.read_text(encoding="utf-8")) if keep_scales else None
    FACTORS.write_text(fit(rows, digest, before), encoding="utf-8")
    print(FACTORS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
