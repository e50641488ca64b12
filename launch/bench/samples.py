"""Statistics of samples: distribution, and confidence intervals of values and changes."""

from __future__ import annotations

import math
import operator
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

LEVEL = 0.95
# The standard normal's quantile of a two-sided interval of this level.
Z = statistics.NormalDist().inv_cdf((1 + LEVEL) / 2)
# Of fewer samples not even the median has an interval of this level: 2 * 0.5 ** 5 is above 0.05.
LEAST_SAMPLES = 6

PERCENTILES = (50, 90, 95, 99)
# How percentiles are taken, as bench.json names it.
PERCENTILE_DEFINITION = (
    "linear interpolation between closest ranks (Hyndman and Fan 7, as numpy's default)"
)
DIGITS = 4

Summary = dict[str, float]
Interval = tuple[float, float]


def summarize(values: Iterable[float | None]) -> Summary | None:
    """The distribution of the known values, `None` if there are none."""
    return summarize_counts(Counter(value for value in values if value is not None))


def summarize_counts(counts: Mapping[float, int]) -> Summary | None:
    """The same for values with their counts."""
    if not counts:
        return None
    rising = sorted(counts)
    ranks = list(accumulate(counts[value] for value in rising))
    n = ranks[-1]
    mean = math.fsum(value * counts[value] for value in rising) / n
    variance = math.fsum(counts[value] * (value - mean) ** 2 for value in rising) / n

    def at(percent: float) -> float:
        return _interpolated(percent / 100, n, lambda rank: rising[bisect_right(ranks, rank)])

    found = {"mean": mean, "stddev": math.sqrt(variance), "min": rising[0]}
    found |= {f"p{percent}": at(percent) for percent in PERCENTILES} | {"max": rising[-1]}
    return {"n": n, **{name: round(value, DIGITS) for name, value in found.items()}}


def wilson(share: float, items: int) -> Interval:
    """The score interval of a binomial share, which is right for few items and near 0 and 1.

    >>> [round(bound, 3) for bound in wilson(0.5, 100)]
    [0.404, 0.596]
    """
    centre = (share + Z**2 / (2 * items)) / (1 + Z**2 / items)
    spread = share * (1 - share) / items + Z**2 / (4 * items**2)
    half = Z * math.sqrt(spread) / (1 + Z**2 / items)
    return max(0.0, centre - half), min(1.0, centre + half)


def difference(a: Interval, b: Interval, values: Interval) -> Interval:
    """The interval of the difference of two values with their own intervals (Zou and Donner 2008;
    for shares with Wilson's intervals it is Newcombe's method 10)."""
    change = values[1] - values[0]
    low = math.hypot(values[1] - b[0], a[1] - values[0])
    high = math.hypot(b[1] - values[1], values[0] - a[0])
    return change - low, change + high


def ratio(a: Sequence[float], b: Sequence[float], share: float | None) -> Interval | None:
    """The interval of b's quantile at `share`, or mean, over a's; `None` if it has none.

    All samples must be above 0 and in the order in which they were taken.
    """
    bounds = [_of_mean(row) if share is None else _of_quantile(row, share) for row in (a, b)]
    if bounds[0] is None or bounds[1] is None:
        return None
    logs = [(math.log(low), math.log(high)) for low, high in (bounds[0], bounds[1])]
    values = (math.log(estimate(a, share)), math.log(estimate(b, share)))
    low, high = difference(logs[0], logs[1], values)
    return math.exp(low), math.exp(high)


def estimate(samples: Sequence[float], share: float | None) -> float:
    """The quantile at `share`, interpolated as in all results, or the mean."""
    if share is None:
        return statistics.fmean(samples)
    return _interpolated(share, len(samples), sorted(samples).__getitem__)


def _interpolated(share: float, count: int, at_rank: Callable[[int], float]) -> float:
    place = (count - 1) * share
    low, high = at_rank(math.floor(place)), at_rank(math.ceil(place))
    return low + (high - low) * (place - math.floor(place))


def has_interval(count: int, share: float | None) -> bool:
    """Whether that many independent samples have an interval."""
    return count >= LEAST_SAMPLES if share is None else _ranks(count, share) is not None


def effective_size(samples: Sequence[float]) -> float:
    """The number of independent samples with the same information: requests of one batch depend on
    each other. By the autocorrelation of the ranks (Geyer 1992)."""
    count = len(samples)
    ranks = [0.0] * count
    for rank, place in enumerate(sorted(range(count), key=samples.__getitem__)):
        ranks[place] = rank - (count - 1) / 2
    variance = math.fsum(rank * rank for rank in ranks)
    by_chance = Z / math.sqrt(count)
    correlation = 0.0
    for lag in range(1, count // 2):
        one = math.fsum(map(operator.mul, ranks, ranks[lag:])) / variance
        if one < by_chance:
            break
        correlation += one
    return count / (1 + 2 * correlation)


def _of_quantile(samples: Sequence[float], share: float) -> Interval | None:
    """Two order statistics, for any distribution (Conover 1999, section 3.2)."""
    count, effective = len(samples), int(effective_size(samples))
    if (ranks := _ranks(effective, share)) is None:
        return None
    rising = sorted(samples)
    low = math.floor(ranks[0] * count / effective)
    return rising[max(1, low) - 1], rising[math.ceil(ranks[1] * count / effective) - 1]


def _ranks(count: int, share: float) -> tuple[int, int] | None:
    """The order statistics, counted from 1, that enclose a quantile."""
    low, below, beyond = 0, 0.0, (1 - LEVEL) / 2
    for rank in range(count):
        if below <= beyond:
            low = rank
        ways = math.lgamma(count + 1) - math.lgamma(rank + 1) - math.lgamma(count - rank + 1)
        odds = rank * math.log(share) + (count - rank) * math.log(1 - share)
        below += math.exp(ways + odds)
        if below >= 1 - beyond:
            return (low, rank + 1) if low else None
    return None


def _of_mean(samples: Sequence[float]) -> Interval | None:
    if (size := effective_size(samples)) < LEAST_SAMPLES:
        return None
    mean = statistics.fmean(samples)
    half = student(size - 1) * statistics.stdev(samples) / math.sqrt(size) / mean
    return mean * math.exp(-half), mean * math.exp(half)


def student(freedom: float) -> float:
    """The quantile of Student's distribution by Fisher's expansion (Abramowitz and Stegun 26.7.5),
    which is 0.1 % off for five degrees of freedom."""
    terms = (
        (Z**3 + Z) / 4,
        (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
        (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
    )
    return Z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))
