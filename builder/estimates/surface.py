"""The times of one layout over load, context and output length, which never fall with them.

Kriging follows the rows, also where a repetition of a larger load was faster by chance. So times
are taken at knots, the measured sizes and their doublings; each is put half way between the largest
at smaller sizes and the least at larger ones, itself among both; and between knots they are
interpolated. All three keep the order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, product
from math import ceil, floor, log2
from typing import NamedTuple

ALIKE = 1.05  # knots nearer to each other than this are one

Sizes = tuple[int, int, int]  # concurrency, isl, osl


class Times(NamedTuple):
    """Milliseconds: to the first token, of all other tokens, of the whole request."""

    first: float
    rest: float
    whole: float


def knots(ends: tuple[int, int], own: Iterable[int], others: Iterable[int]) -> list[int]:
    """Both ends, and between them all own sizes and others that are not near to one of them."""
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
    """Times at knots; `at` those between them."""

    def __init__(
        self, axes: Sequence[Sequence[int]], columns: Iterable[Iterable[tuple[float, float]]]
    ) -> None:
        """`axes` are the knots of concurrency, ISL and OSL; `columns` the first and the other
        tokens' milliseconds over the concurrencies, of every ISL and OSL in turn."""
        self.axes = axes
        size = (len(axes[1]), len(axes[2]))
        first, rest = _grids(columns)
        self._first = _rising(first, size, along_osl=False)
        self._rest = _rising(rest, size, along_osl=True)
        self._whole = _rising(
            [
                [a + b for a, b in zip(*pair, strict=True)]
                for pair in zip(self._first, self._rest, strict=True)
            ],
            size,
            along_osl=True,
        )

    def at(self, sizes: Sizes) -> Times:
        """Times of a load inside the knots."""
        first = rest = whole = 0.0
        width = len(self.axes[2])
        for corner, share in self._corners(sizes):
            load, column = corner[0], corner[1] * width + corner[2]
            first += share * self._first[column][load]
            rest += share * self._rest[column][load]
            whole += share * self._whole[column][load]
        return Times(first, rest, whole)

    def _corners(self, sizes: Sizes) -> Iterator[tuple[tuple[int, ...], float]]:
        """Knots around a point, and what each counts."""
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


def _grids(
    columns: Iterable[Iterable[tuple[float, float]]],
) -> tuple[list[list[float]], list[list[float]]]:
    first, rest = [], []
    for column in columns:
        pairs = list(column)
        first.append([pair[0] for pair in pairs])
        rest.append([pair[1] for pair in pairs])
    return first, rest


def _rising(
    columns: Sequence[Sequence[float]], size: tuple[int, int], along_osl: bool
) -> list[list[float]]:
    """Times that do not fall with load and context, and with output if it is so asked."""
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
    """Each time at least that of every smaller size."""
    isls, osls = size
    found = [list(accumulate(column, max)) for column in columns]
    for isl, osl in product(range(isls), range(osls)):
        here = found[isl * osls + osl]
        before = [found[(isl - 1) * osls + osl]] if isl else []
        before += [found[isl * osls + osl - 1]] if osl and along_osl else []
        for other in before:
            here[:] = map(max, here, other)
    return found
