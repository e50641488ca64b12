"""The posterior of the estimate's errors: what measured servers tell about those not yet started.

The log of measured over expected time is a shift that all servers of a machine and image share, and
a Gaussian process over layouts. The distances and the shift were set by hand before a replay of
public measurements (2026-11); `python -m benchmarks.tune --check` measures what they are worth.
Pure Python: a search has some dozen candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, fsum, hypot, log2, sqrt
from operator import mul
from random import Random

from ..estimates.question import Question

SHIFT = 0.5  # sd of the shared shift
NOISE = 0.05  # sd of the mean error of one server's loads
SAMPLES, SEED = 64, 0
JITTER = 1e-6

# The doublings of each size that make a distance of 1, and the distance between two kinds.
_SIZES = {"num_gpus": 1.5, "attention_dp": 2.0, "ep": 3.0}
_KINDS = {"engine": 0.9, "precision": 0.6, "mtp": 0.6, "release": 0.15}

Vector = list[float]
Matrix = list[Vector]
Covariance = Callable[[int, int], float]


def distance(one: Question, other: Question) -> float:
    """How far two servers are apart; errors at a distance of 1 correlate by 1/e."""
    doublings = (
        log2(getattr(one, name) / getattr(other, name)) / scale for name, scale in _SIZES.items()
    )
    unlike = (way for name, way in _KINDS.items() if getattr(one, name) != getattr(other, name))
    return hypot(*doublings) + sum(unlike)


def covariance(one: Question, other: Question, deviations: tuple[float, float]) -> float:
    """Of the errors of two servers with these standard deviations, the shared shift included."""
    return SHIFT**2 + deviations[0] * deviations[1] * exp(-distance(one, other))


def conditioned(
    prior: Covariance, seen: Sequence[int], errors: Sequence[float], asked: Sequence[int]
) -> tuple[Vector, Matrix]:
    """Mean and covariance of the errors of some servers, given those of others.

    `prior` is the covariance of two servers by their numbers, and `errors` are of the `seen` ones.
    """
    lower = _cholesky([[prior(i, j) + (i == j) * NOISE**2 for j in seen] for i in seen])
    weights = _forward(lower, errors)
    known = [_forward(lower, [prior(i, j) for j in seen]) for i in asked]
    mean = [_dot(row, weights) for row in known]
    left = [
        [prior(i, j) - _dot(row, other) for j, other in zip(asked, known, strict=True)]
        for i, row in zip(asked, known, strict=True)
    ]
    return mean, left


def samples(mean: Sequence[float], left: Matrix, chance: Random, count: int = SAMPLES) -> Matrix:
    """Joint samples, for each server a list of `count`."""
    size = len(mean)
    lower = _cholesky([[left[i][j] + (i == j) * JITTER for j in range(size)] for i in range(size)])
    drawn = [[chance.gauss(0.0, 1.0) for _ in range(size)] for _ in range(count)]
    return [
        [middle + _dot(row, numbers) for numbers in drawn]
        for middle, row in zip(mean, lower, strict=True)
    ]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    """The sum over the shorter of both."""
    return fsum(map(mul, one, other))


def _cholesky(matrix: Matrix) -> Matrix:
    """The lower triangle, each row up to its diagonal."""
    lower: Matrix = []
    for i, row in enumerate(matrix):
        found: Vector = []
        for below, value in zip(lower, row, strict=False):
            found.append((value - _dot(below, found)) / below[-1])
        found.append(sqrt(max(row[i] - _dot(found, found), JITTER)))
        lower.append(found)
    return lower


def _forward(lower: Matrix, right: Sequence[float]) -> Vector:
    found: Vector = []
    for row, value in zip(lower, right, strict=True):
        found.append((value - _dot(row, found)) / row[-1])
    return found
