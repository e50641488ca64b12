"""Interpolation between measurements: kriging, and surfaces that never fall.

Kriging is of the log of measured over roofline time. The covariance of two measurements falls with
the doublings between their sizes and with every kind (GPU, engine, precision, release, drafting)
that differs; it is the sum of a smooth part, which reaches far, and one of the curve. Pure Python:
rows of one curve share all distances but that of the concurrency, which keeps some hundred rows
cheap.

Kriging follows the rows, also where a repetition of a larger load was faster by chance. A surface
has the times of one layout over load, context and output length. They are taken at knots, the
measured sizes and their doublings; each is put half way between the largest at smaller sizes and
the least at larger ones, itself among both; and between knots they are interpolated. All three keep
the order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, compress, product
from math import ceil, exp, floor, log2, sqrt
from operator import add, mul, ne
from typing import NamedTuple

FAR = 6.0  # the smooth part reaches so many times farther than the curve's

Vector = list[float]
Parts = tuple[Vector, Vector]  # the smooth part, and that of the curve


@dataclass(frozen=True, slots=True)
class Scales:
    """The doublings of each size that make a distance of 1, and the distance between two kinds;
    standard deviations of the log residual: smooth part, part of the curve, repetition."""

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

    @property
    def sizes(self) -> tuple[float, ...]:
        return self.isl, self.osl, self.tp, self.attention_dp, self.ep

    @property
    def kinds(self) -> tuple[float, ...]:
        return self.gpu, self.engine, self.precision, self.release, self.drafting


class PoolScales(NamedTuple):
    """The same of pools, whose curves have other sizes and kinds."""

    concurrency: float
    sizes: tuple[float, ...]
    kinds: tuple[float, ...]
    far: float
    near: float
    noise: float


class Curve(NamedTuple):
    """A measurement without its concurrency: the log2 of ISL, OSL, TP, attention DP and EP; GPU,
    engine, precision, release and drafting."""

    sizes: tuple[float, ...]
    kinds: tuple[str, ...]


class Point(NamedTuple):
    """A measurement or a question; `concurrency` is its log2."""

    curve: Curve
    concurrency: float


class Kernel:
    """The covariance of the log residuals of two points."""

    def __init__(self, scales: Scales | PoolScales) -> None:
        self.scales = scales
        self._sizes = tuple(1 / scale for scale in scales.sizes)
        self._kinds = scales.kinds
        self.slope = 1 / scales.concurrency
        self.far, self.near = scales.far**2, scales.near**2
        # The variance of a new measurement without any known row.
        self.variance = self.far + self.near + scales.noise**2

    def apart(self, one: Curve, other: Curve) -> float:
        """The distance of two curves."""
        found = sum(map(self.along, range(len(one.sizes)), one.sizes, other.sizes))
        return found + self.unlike(one.kinds, other.kinds)

    def along(self, place: int, one: float, other: float) -> float:
        """The part of the distance for one size."""
        return self._sizes[place] * abs(one - other)

    def unlike(self, one: Sequence[str], other: Sequence[str]) -> float:
        """The part of the distance for kinds."""
        return sum(compress(self._kinds, map(ne, one, other)))


class Field:
    """Predicts log residuals from those of some rows."""

    def __init__(
        self, kernel: Kernel, points: Sequence[Point], values: Sequence[float], mean: float
    ) -> None:
        self.kernel, self.mean = kernel, mean
        self._curves = list(dict.fromkeys(point.curve for point in points))
        self._loads = list(dict.fromkeys(point.concurrency for point in points))
        curve = {curve: number for number, curve in enumerate(self._curves)}
        load = {load: number for number, load in enumerate(self._loads)}
        # Of each row, which curve and which load it is.
        self._places = [(curve[point.curve], load[point.concurrency]) for point in points]
        self._along = lru_cache(maxsize=1024)(self._new_along)
        self._unlike = lru_cache(maxsize=1024)(self._new_unlike)
        self._of_load = lru_cache(maxsize=1024)(self._new_of_load)
        self._lower = self._cholesky()
        above = [value - mean for value in values]
        self._weights = _backward(self._lower, _forward(self._lower, above))
        # Weights and curves of the rows of each load.
        self._by_load: list[tuple[list[float], list[int]]] = [([], []) for _ in self._loads]
        for weight, (number, at) in zip(self._weights, self._places, strict=True):
            self._by_load[at][0].append(weight)
            self._by_load[at][1].append(number)

    def _cholesky(self) -> list[Vector]:
        """The lower triangle of the factor of the rows' covariance, each of its rows in full."""
        curves = [self._of_curve(curve) for curve in self._curves]
        loads = [self._of_load(load) for load in self._loads]
        lower: list[Vector] = []
        for curve, load in self._places:
            (far, near), (far_fade, near_fade) = curves[curve], loads[load]
            row: Vector = []
            for below, (other, at) in zip(lower, self._places, strict=False):
                covariance = far[other] * far_fade[at] + near[other] * near_fade[at]
                row.append((covariance - sum(map(mul, row, below))) / below[-1])
            row.append(sqrt(max(self.kernel.variance - sum(map(mul, row, row)), 1e-12)))
            lower.append(row)
        return lower

    def _of_curve(self, curve: Curve) -> Parts:
        """Covariances with the rows' curves at the same load.

        Distances add up, so their covariances multiply. Curves share most sizes and kinds: the
        factor of each is computed once.
        """
        parts = [self._along(place, size) for place, size in enumerate(curve.sizes)]
        far, near = [self.kernel.far] * len(self._curves), [self.kernel.near] * len(self._curves)
        for fades in (*parts, self._unlike(curve.kinds)):
            far, near = list(map(mul, far, fades[0])), list(map(mul, near, fades[1]))
        return far, near

    def _new_along(self, place: int, size: float) -> Parts:
        return _fades(self.kernel.along(place, size, curve.sizes[place]) for curve in self._curves)

    def _new_unlike(self, kinds: tuple[str, ...]) -> Parts:
        return _fades(self.kernel.unlike(kinds, curve.kinds) for curve in self._curves)

    def _new_of_load(self, load: float) -> Parts:
        return _fades(self.kernel.slope * abs(load - other) for other in self._loads)

    def at(self, point: Point) -> tuple[float, float]:
        """Mean and standard deviation of the log residual of one new measurement there."""
        far, near = self._of_curve(point.curve)
        far_fade, near_fade = self._of_load(point.concurrency)
        covariances = [
            far[curve] * far_fade[load] + near[curve] * near_fade[load]
            for curve, load in self._places
        ]
        seen = _forward(self._lower, covariances)
        variance = self.kernel.variance - sum(map(mul, seen, seen))
        mean = self.mean + sum(map(mul, covariances, self._weights))
        return mean, sqrt(max(variance, self.kernel.scales.noise**2))

    def means(self, curve: Curve, concurrencies: Sequence[float]) -> Iterator[float]:
        """The means of a curve, at loads in doublings."""
        # Rows of one load fade alike, so their weights are summed first.
        far_sums, near_sums = (
            [sum(map(mul, weights, map(part.__getitem__, of))) for weights, of in self._by_load]
            for part in self._of_curve(curve)
        )
        for concurrency in concurrencies:
            far_fade, near_fade = self._of_load(concurrency)
            parts = sum(map(mul, far_sums, far_fade)), sum(map(mul, near_sums, near_fade))
            yield self.mean + sum(parts)


def _fades(distances: Iterable[float]) -> Parts:
    """How much of both parts is left over distances."""
    far = [exp(-distance / FAR) for distance in distances]
    return far, [fade**FAR for fade in far]


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


ALIKE = 1.05  # knots nearer to each other than this are one

Sizes = tuple[int, int, int]  # concurrency, isl, osl


class RequestMs(NamedTuple):
    """Milliseconds: to the first token, of all other tokens, of the whole request."""

    first: float
    rest: float
    whole: float


def knots(ends: tuple[int, int], own: Iterable[int], others: Iterable[int]) -> list[int]:
    """Both ends, and between them all own sizes and others that are not close to one."""
    low, high = ends
    found = {*ends, *own}
    for size in sorted(others):
        if low < size < high and all(max(size / o, o / size) > ALIKE for o in found):
            found.add(size)
    return sorted(found)


def doublings(low: int, high: int) -> Iterator[int]:
    """Powers of two from one size to another."""
    return (2**power for power in range(ceil(log2(low)), floor(log2(high)) + 1))


class Surface:
    """Times at knots; `at` interpolates between them."""

    def __init__(
        self, axes: Sequence[Sequence[int]], columns: Iterable[Iterable[tuple[float, float]]]
    ) -> None:
        """`axes` are the knots of concurrency, ISL and OSL; `columns` the first and the other
        tokens' milliseconds over the concurrencies, of every ISL and OSL in turn."""
        self.axes = axes
        size, pairs = (len(axes[1]), len(axes[2])), list(map(list, columns))
        self._first = _rising([[one for one, _ in row] for row in pairs], size, along_osl=False)
        self._rest = _rising([[rest for _, rest in row] for row in pairs], size, along_osl=True)
        both = zip(self._first, self._rest, strict=True)
        whole = [list(map(add, first, rest)) for first, rest in both]
        self._whole = _rising(whole, size, along_osl=True)

    def at(self, sizes: Sizes) -> RequestMs:
        """Times of a load inside the knots."""
        first = rest = whole = 0.0
        width = len(self.axes[2])
        for corner, share in self._corners(sizes):
            load, column = corner[0], corner[1] * width + corner[2]
            first += share * self._first[column][load]
            rest += share * self._rest[column][load]
            whole += share * self._whole[column][load]
        return RequestMs(first, rest, whole)

    def _corners(self, sizes: Sizes) -> Iterator[tuple[tuple[int, ...], float]]:
        places = [_between(axis, size) for axis, size in zip(self.axes, sizes, strict=True)]
        for corner in product(*places):
            share = 1.0
            for _, part in corner:
                share *= part
            yield tuple(index for index, _ in corner), share


def _between(axis: Sequence[int], size: int) -> tuple[tuple[int, float], ...]:
    above = bisect_right(axis, size)
    low = above - 1
    if above == len(axis) or axis[low] == size:
        return ((low, 1.0),)
    part = (size - axis[low]) / (axis[above] - axis[low])
    return (low, 1.0 - part), (above, part)


def _rising(
    columns: Sequence[Sequence[float]], size: tuple[int, int], along_osl: bool
) -> list[list[float]]:
    """Times that do not fall with load and context, nor with output if `along_osl`."""
    above = _raised(columns, size, along_osl)
    # What is lowered to larger sizes is raised, negative, with all orders reversed.
    turned = [[-time for time in reversed(column)] for column in reversed(columns)]
    below = _raised(turned, size, along_osl)
    return [
        [(high - low) / 2 for high, low in zip(column, reversed(other), strict=True)]
        for column, other in zip(above, reversed(below), strict=True)
    ]


def _raised(
    columns: Sequence[Sequence[float]], size: tuple[int, int], along_osl: bool
) -> list[list[float]]:
    """Times raised to at least those of smaller sizes."""
    isls, osls = size
    found = [list(accumulate(column, max)) for column in columns]
    for isl, osl in product(range(isls), range(osls)):
        here = found[isl * osls + osl]
        before = [found[(isl - 1) * osls + osl]] if isl else []
        before += [found[isl * osls + osl - 1]] if osl and along_osl else []
        for other in before:
            here[:] = map(max, here, other)
    return found
