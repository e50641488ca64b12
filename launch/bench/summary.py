"""A summary: how a measure is distributed over many requests or tokens."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate

PERCENTILES = (50, 90, 95, 99)
# How percentiles are taken, as bench.json names it.
DEFINITION = "linear interpolation between closest ranks (Hyndman and Fan 7, as numpy's default)"
DIGITS = 4

Summary = dict[str, float]


def of(values: Iterable[float | None]) -> Summary | None:
    """`None` without values."""
    return of_counts(Counter(value for value in values if value is not None))


def of_counts(counts: Mapping[float, int]) -> Summary | None:
    """The same of values that each came so many times."""
    if not counts:
        return None
    rising = sorted(counts)
    ranks = list(accumulate(counts[value] for value in rising))
    n = ranks[-1]
    mean = math.fsum(value * counts[value] for value in rising) / n
    variance = math.fsum(counts[value] * (value - mean) ** 2 for value in rising) / n

    def at(percent: float) -> float:
        place = (n - 1) * percent / 100
        low, high = (rising[bisect_right(ranks, f(place))] for f in (math.floor, math.ceil))
        return low + (high - low) * (place - math.floor(place))

    found = {"mean": mean, "stddev": math.sqrt(variance), "min": rising[0]}
    found |= {f"p{percent}": at(percent) for percent in PERCENTILES} | {"max": rising[-1]}
    return {"n": n, **{name: round(value, DIGITS) for name, value in found.items()}}
