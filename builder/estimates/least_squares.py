"""Non-negative factors of terms by robust least squares of the relative error, in pure Python."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, log, sqrt
from operator import mul

PASSES, ROBUST_PASSES = 80, 5
OUTLIER = 0.3  # log error from which on a row counts less
LEAST = 1e-6


def robust(terms: Sequence[Sequence[float]], times: Sequence[float]) -> list[float]:
    """Factors of 0 or more, one for each term, whose sums are near the times; outliers count
    little."""
    weights = [1.0] * len(times)
    found: list[float] = []
    for _ in range(ROBUST_PASSES):
        scaled = [
            [term * weight / time for term in row]
            for row, weight, time in zip(terms, weights, times, strict=True)
        ]
        found = _non_negative(scaled, weights)
        weights = []
        for row, time in zip(terms, times, strict=True):
            told = max(LEAST, fsum(map(mul, found, row)))
            weight = sqrt(1 / (1 + (log(told / time) / OUTLIER) ** 2))
            weights.append(weight * sqrt(time / max(told, time * 0.2)) ** 0.5)
    return found


def _non_negative(terms: Sequence[Sequence[float]], target: Sequence[float]) -> list[float]:
    """Least squares by coordinate descent."""
    columns = list(zip(*terms, strict=True))
    squares = [[sum(map(mul, one, other)) for other in columns] for one in columns]
    products = [sum(map(mul, one, target)) for one in columns]
    found = [1e-3] * len(columns)
    for _ in range(PASSES):
        for index, row in enumerate(squares):
            step = (products[index] - sum(map(mul, row, found))) / (row[index] + 1e-12)
            found[index] = max(0.0, found[index] + step)
    return found
