"""Fits the roofline's factors and the kernel's scales to the measured rows of the repository.

    python -m maintenance.fit_estimates

Needs numpy. The same rows give the same bytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from builder import command
from builder.estimates import measurements, roofline
from builder.estimates.estimator import FACTORS
from builder.estimates.measurements import ENGINES, Row

Array = np.ndarray[Any, Any]

PASSES, ROBUST_PASSES = 150, 6


def factors(
    rows: Sequence[Row], terms: Callable[[Row], Sequence[float]], times: Sequence[float]
) -> dict[str, list[float]]:
    """Non-negative factors of each engine, by robust relative least squares."""
    features, y = np.array([terms(row) for row in rows]), np.array(times)
    found = {}
    for engine in ENGINES:
        some = np.array([row.engine == engine for row in rows])
        found[engine] = [float(f"{x:.5g}") for x in _robust(features[some], y[some])]
    return found


def _robust(features: Array, times: Array) -> Array:
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


# Found by the leave-one-out score of the rows.
SCALES: dict[str, dict[str, float]] = {
    "tpot": {
        "concurrency": 13.3,
        "isl": 28.8,
        "osl": 13.6,
        "tp": 5.7,
        "attention_dp": 5.5,
        "ep": 31,
        "gpu": 0.43,
        "engine": 0.23,
        "precision": 2.3,
        "release": 0.2,
        "far": 0.31,
        "near": 0.238,
        "noise": 0.03,
        "quantile": 1.5,
    },
    "ttft": {
        "concurrency": 6.1,
        "isl": 2.87,
        "osl": 5,
        "tp": 4.14,
        "attention_dp": 38.9,
        "ep": 6.6,
        "gpu": 0.93,
        "engine": 3.6,
        "precision": 1.2,
        "release": 2.6,
        "far": 0.4,
        "near": 0.336,
        "noise": 0.094,
        "quantile": 1.3,
    },
}


def fit() -> str:
    rows, digest = measurements.read()
    timed = [row for row in rows if row.ttft_ms is not None]
    found = {
        "rows_sha256": digest,
        "tpot": {
            "factors": factors(rows, roofline.decode_terms, [row.tpot_ms for row in rows]),
            "scales": SCALES["tpot"],
        },
        "ttft": {
            "factors": factors(timed, roofline.first_terms, [row.ttft_ms or 0 for row in timed]),
            "scales": SCALES["ttft"],
        },
    }
    return json.dumps(found, indent=1) + "\n"


def main(words: Sequence[str] = ()) -> int:
    return command.run(_run)


def _run() -> None:
    FACTORS.write_text(fit(), encoding="utf-8")
    print(FACTORS)


if __name__ == "__main__":
    sys.exit(main())
