"""Kriging of the log of measured over roofline time, for the questions of one cell.

A cell is a model with a GPU, a precision and an engine. Its own rows and the nearest of the same
model carry its answers; the kernel is the sum of a smooth part, shared far, and one of the curve.
Pure Python: a factorization of some hundred rows once a cell, two dot products for a mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log2, sqrt
from operator import mul
from typing import NamedTuple

from .measurements import Row
from .roofline import Load

FAR = 6.0  # the smooth part reaches so many times farther than the curve's

Vector = list[float]


class Scales(NamedTuple):
    """How many doublings of a size are a distance of 1, and the distance that another kind costs;
    standard deviations of the log residual: of the smooth part, of the curve's, of a repetition;
    and the quantile that makes an interval of a standard deviation.
    """

    concurrency: float
    isl: float
    osl: float
    tp: float
    attention_dp: float
    ep: float
    gpu: float
    engine: float
    precision: float
    release: float
    far: float
    near: float
    noise: float
    quantile: float


class Point(NamedTuple):
    """A row or a question in the kernel's coordinates."""

    sizes: tuple[float, ...]
    kinds: tuple[str, ...]


def point(load: Load, engine: str, release: str) -> Point:
    """Sizes in doublings. A release counts by its minor version."""
    sizes = (load.concurrency, load.isl, load.osl, load.tp, load.attention_dp, load.ep)
    return Point(
        tuple(log2(size) for size in sizes), (load.gpu, engine, load.precision, minor(release))
    )


def row_point(row: Row) -> Point:
    return point(row, row.engine, row.release)


def minor(release: str) -> str:
    """1.2 of 1.2.0rc6; nothing where the release is not known."""
    parts = release.split(".")
    return ".".join(parts[:2]) if release[:1].isdigit() else ""


class Kernel:
    """The covariance of the log residuals of two points."""

    def __init__(self, scales: Scales) -> None:
        self.scales = scales
        self._sizes = tuple(1 / value for value in scales[:6])
        self._kinds = scales[6:10]
        self._far, self._near = scales.far**2, scales.near**2

    def distance(self, one: Point, other: Point) -> float:
        found = 0.0
        for scale, a, b in zip(self._sizes, one.sizes, other.sizes, strict=True):
            found += scale * abs(a - b)
        for cost, left, right in zip(self._kinds, one.kinds, other.kinds, strict=True):
            if left != right:
                found += cost
        return found

    def __call__(self, one: Point, other: Point) -> float:
        distance = self.distance(one, other)
        return self._far * exp(-distance / FAR) + self._near * exp(-distance)

    @property
    def variance(self) -> float:
        """Of a point of which nothing is known, without noise."""
        return self._far + self._near


class Field:
    """The log residuals of some rows, and what they say of other points."""

    def __init__(
        self, kernel: Kernel, points: Sequence[Point], values: Sequence[float], mean: float
    ) -> None:
        self.kernel, self.points, self.mean = kernel, points, mean
        self._lower = _cholesky(kernel, points)
        self._weights = _backward(
            self._lower, _forward(self._lower, [value - mean for value in values])
        )

    def at(self, point: Point) -> tuple[float, float]:
        """Mean and standard deviation of the log residual of one new measurement there."""
        near = [self.kernel(point, other) for other in self.points]
        mean = self.mean + sum(map(mul, near, self._weights))
        seen = _forward(self._lower, near)
        noise = self.kernel.scales.noise**2
        variance = self.kernel.variance + noise - sum(map(mul, seen, seen))
        return mean, sqrt(max(variance, noise))


def _cholesky(kernel: Kernel, points: Sequence[Point]) -> list[Vector]:
    """The lower triangle of the factor of the rows' covariance, each of its rows in full."""
    lower: list[Vector] = []
    diagonal = kernel.variance + kernel.scales.noise**2
    for i, one in enumerate(points):
        row: Vector = []
        for j in range(i):
            below = lower[j]
            row.append((kernel(one, points[j]) - sum(map(mul, row, below))) / below[j])
        row.append(sqrt(max(diagonal - sum(map(mul, row, row)), 1e-12)))
        lower.append(row)
    return lower


def _forward(lower: Sequence[Vector], right: Sequence[float]) -> Vector:
    found: Vector = []
    for row, value in zip(lower, right, strict=True):
        found.append((value - sum(map(mul, row, found))) / row[-1])
    return found


def _backward(lower: Sequence[Vector], right: Sequence[float]) -> Vector:
    found = list(right)
    for i in range(len(found) - 1, -1, -1):
        row = lower[i]
        found[i] /= row[i]
        last = found[i]
        for j in range(i):
            found[j] -= last * row[j]
    return found


def scales_of(values: Mapping[str, float]) -> Scales:
    return Scales(**values)
