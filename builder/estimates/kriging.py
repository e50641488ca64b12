"""Kriging of the log of measured over roofline time.

The covariance of two measurements falls with the doublings between their sizes and with every kind
(GPU, engine, precision, release, drafting) that differs; it is the sum of a smooth part, which
reaches far, and one of the curve. Pure Python: rows of one curve share all distances but that of
the concurrency, which keeps some hundred rows cheap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, sqrt
from operator import mul
from typing import NamedTuple

FAR = 6.0  # the smooth part reaches so many times farther than the curve's

Vector = list[float]


class Scales(NamedTuple):
    """How many doublings of a size are a distance of 1, and the distance that another kind costs;
    standard deviations of the log residual: of the smooth part, of the curve's, of a repetition.
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
    drafting: float
    far: float
    near: float
    noise: float


class Curve(NamedTuple):
    """All of a measurement but its concurrency: sizes in doublings, and kinds."""

    isl: float
    osl: float
    tp: float
    attention_dp: float
    ep: float
    gpu: str
    engine: str
    precision: str
    release: str
    drafting: str


class Point(NamedTuple):
    """A measurement, or a question; `concurrency` in doublings."""

    curve: Curve
    concurrency: float


class Kernel:
    """The covariance of the log residuals of two points."""

    def __init__(self, scales: Scales) -> None:
        self.scales = scales
        self._sizes = tuple(1 / scale for scale in scales[1:6])
        self._kinds = scales[6:11]
        self.slope = 1 / scales.concurrency
        self.far, self.near = scales.far**2, scales.near**2
        # Of one new measurement of which nothing is known.
        self.variance = self.far + self.near + scales.noise**2

    def apart(self, one: Curve, other: Curve) -> float:
        """The distance of two curves."""
        found = 0.0
        for scale, a, b in zip(self._sizes, one[:5], other[:5], strict=True):
            found += scale * abs(a - b)
        if one[5:] == other[5:]:
            return found
        for cost, left, right in zip(self._kinds, one[5:], other[5:], strict=True):
            if left != right:
                found += cost
        return found


class Field:
    """The log residuals of some rows, and what they say of other points."""

    def __init__(
        self, kernel: Kernel, points: Sequence[Point], values: Sequence[float], mean: float
    ) -> None:
        self.kernel, self.mean = kernel, mean
        self._curves = list(dict.fromkeys(point.curve for point in points))
        index = {curve: number for number, curve in enumerate(self._curves)}
        self._of_row = [index[point.curve] for point in points]
        self._loads = [point.concurrency for point in points]
        self._lower = self._cholesky()
        self._weights = _backward(
            self._lower, _forward(self._lower, [value - mean for value in values])
        )

    def _cholesky(self) -> list[Vector]:
        """The lower triangle of the factor of the rows' covariance, each of its rows in full."""
        kernel, loads, of_row = self.kernel, self._loads, self._of_row
        between = self._between()
        slope, far, near = kernel.slope, kernel.far, kernel.near
        lower: list[Vector] = []
        for curve, load in zip(of_row, loads, strict=True):
            apart, row = between[curve], list[float]()
            for below, other, other_load in zip(lower, of_row, loads, strict=False):
                distance = apart[other] + slope * abs(load - other_load)
                covariance = far * exp(-distance / FAR) + near * exp(-distance)
                row.append((covariance - sum(map(mul, row, below))) / below[-1])
            row.append(sqrt(max(kernel.variance - sum(map(mul, row, row)), 1e-12)))
            lower.append(row)
        return lower

    def _between(self) -> list[Vector]:
        """The distances of all curves: that of two is the same from either."""
        curves = self._curves
        found = [[0.0] * len(curves) for _ in curves]
        for place, one in enumerate(curves):
            for before, other in enumerate(curves[:place]):
                found[place][before] = found[before][place] = self.kernel.apart(one, other)
        return found

    def _covariances(self, point: Point) -> Vector:
        kernel = self.kernel
        apart = [kernel.apart(point.curve, other) for other in self._curves]
        far = [kernel.far * exp(-distance / FAR) for distance in apart]
        near = [kernel.near * exp(-distance) for distance in apart]
        slope, load = kernel.slope, point.concurrency
        found = []
        for curve, other in zip(self._of_row, self._loads, strict=True):
            fade = exp(-slope * abs(load - other) / FAR)
            found.append(far[curve] * fade + near[curve] * fade**FAR)
        return found

    def at(self, point: Point) -> tuple[float, float]:
        """Mean and standard deviation of the log residual of one new measurement there."""
        near = self._covariances(point)
        seen = _forward(self._lower, near)
        variance = self.kernel.variance - sum(map(mul, seen, seen))
        mean = self.mean + sum(map(mul, near, self._weights))
        return mean, sqrt(max(variance, self.kernel.scales.noise**2))

    def means(self, curve: Curve, concurrencies: Sequence[float]) -> Iterator[float]:
        """The means of a curve, at loads in doublings."""
        kernel = self.kernel
        apart = [kernel.apart(curve, other) for other in self._curves]
        far = [kernel.far * exp(-distance / FAR) for distance in apart]
        near = [kernel.near * exp(-distance) for distance in apart]
        # Rows of one load fade alike: what they carry is summed up before.
        carried: dict[float, tuple[float, float]] = {}
        for weight, number, load in zip(self._weights, self._of_row, self._loads, strict=True):
            before = carried.get(load, (0.0, 0.0))
            carried[load] = (before[0] + weight * far[number], before[1] + weight * near[number])
        for load in concurrencies:
            mean = self.mean
            for other, (far_part, near_part) in carried.items():
                distance = kernel.slope * abs(load - other)
                mean += far_part * exp(-distance / FAR) + near_part * exp(-distance)
            yield mean


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
