"""Fits the roofline's factors and the kernel's scales to the measured rows of the repository.

    python -m maintenance.fit_estimates [--keep-scales]

Factors are non-negative and fitted by robust relative least squares, one set for each engine.
Scales are searched by the leave-one-out score of all rows with heavy tails, in a minute or two;
`--keep-scales` leaves them. Promised ends come from leaving out one curve after another. Rows whose
requests wait for memory count for nothing. The same rows give the same bytes. Needs numpy.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from builder import command
from builder.estimates import fits, measurements, roofline
from builder.estimates.cells import TPOT_OFF, TTFT_OFF, is_held, uncontradicted
from builder.estimates.fits import FACTORS, Fits
from builder.estimates.measurements import ENGINES, Row
from builder.estimates.roofline import Load, Shape, Speeds, speeds

from .calibration import Errors
from .few_runs import untried
from .left_out import Array, Crowd, Scales, shape

Terms = Callable[[Load, Shape, Speeds], tuple[float, ...]]

PASSES, ROBUST_PASSES = 150, 6
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
    rows = [row for row in rows if is_held(row, shape(row.model))]
    timed = [row for row in rows if row.ttft_ms is not None]
    tpots, ttfts = [row.tpot_ms for row in rows], [row.ttft_ms or 0.0 for row in timed]
    found = {
        "rows_sha256": digest,
        "tpot": _fit(rows, roofline.decode_terms, tpots, TPOT_OFF, before and before["tpot"]),
        "ttft": _fit(timed, roofline.first_terms, ttfts, TTFT_OFF, before and before["ttft"]),
    }
    bare = fits.of({**found, "intervals": {}, "promises": {}, "untried": 1.0})
    errors = Errors(rows, bare)
    found |= {"intervals": errors.intervals(), "promises": errors.promises()}
    bare = fits.of({**found, "untried": 1.0})

    def without(model: str) -> Fits:
        """The same with factors of the other models' rows."""
        some = [row for row in rows if row.model != model]
        decode = factors(some, roofline.decode_terms, [row.tpot_ms for row in some])
        some = [row for row in timed if row.model != model]
        first = factors(some, roofline.first_terms, [row.ttft_ms or 0.0 for row in some])
        tpot, ttft = replace(bare.tpot, factors=decode), replace(bare.ttft, factors=first)
        return replace(bare, tpot=tpot, ttft=ttft)

    text = json.dumps({**found, "untried": untried(rows, without)}, indent=1) + "\n"
    return re.sub(r"\[[^][]*\]", lambda numbers: " ".join(numbers[0].split()), text)


def _fit(
    rows: Sequence[Row],
    terms: Terms,
    times: Sequence[float],
    limit: float,
    before: dict[str, Any] | None,
) -> dict[str, Any]:
    of_engines = factors(rows, terms, times)
    residual = np.log(times) - np.log(_fitted(rows, terms, of_engines))
    found: dict[str, Any] = {"factors": of_engines}
    kept = uncontradicted(rows, residual.tolist(), limit)
    rows, residual = [rows[index] for index in kept], residual[kept]
    for name, with_release in (("with_release", True), ("without_release", False)):
        crowd = Crowd(rows, residual, with_release)
        scales = before[name] if before else crowd.search(dict(START))
        scales = {key: rounded([scales[key]], 3)[0] for key in START}
        scales["release"] *= with_release
        found[name] = scales
    return found


def factors(rows: Sequence[Row], terms: Terms, times: Sequence[float]) -> dict[str, list[float]]:
    """Of the roofline, by engine."""
    features, y = _features(rows, terms), np.array(times)
    engines = np.array([row.engine for row in rows])
    return {
        engine: rounded(_robust(features[engines == engine], y[engines == engine]), 5)
        for engine in ENGINES
    }


def _fitted(rows: Sequence[Row], terms: Terms, factors: dict[str, list[float]]) -> Array:
    """The roofline's times."""
    of_rows = np.array([factors[row.engine] for row in rows])
    found: Array = np.maximum((_features(rows, terms) * of_rows).sum(axis=1), 1e-6)
    return found


def rounded(values: Sequence[float] | Array, digits: int) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


def _features(rows: Sequence[Row], terms: Terms) -> Array:
    shapes = {model: shape(model) for model in {row.model for row in rows}}
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
