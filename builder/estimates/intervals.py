"""Intervals: values with the ends of their 80 % intervals, and the widest that are answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, floor, hypot, log, log10
from types import MappingProxyType
from typing import NamedTuple

from ..number_format import fitting
from .interpolation import RequestMs

Limits = Mapping[str, float]  # milliseconds, by the names of `Times.keep`
NO_LIMITS: Limits = MappingProxyType({})

# Largest half widths of the time to the last token, as a share of it.
MOST_HALF_WIDTH = 0.17
MOST_OWN_HALF_WIDTH = 0.30  # where only the user measured: few runs are worth a wide interval
MOST_DRAFTED_HALF_WIDTH = 0.20  # where the rows do not draft and the acceptance is another source's
# The conservative bound of the time per token may lie this share above the value.
MOST_PROMISED_MARGIN = 0.10


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the ends of its 80 % interval."""

    low: float
    value: float
    high: float

    @property
    def texts(self) -> tuple[str, str, str]:
        """The value, three digits of it, and its ends with as many decimals."""
        decimals = max(0, 2 - floor(log10(abs(self.value) or 1)))
        value, low, high = (f"{one:,.{decimals}f}" for one in (self.value, self.low, self.high))
        return value, low, high

    def __str__(self) -> str:
        return "{} ({} to {})".format(*self.texts)

    def in_unit(self, unit: str) -> tuple[Interval, str]:
        """The interval in the unit that fits its value, and that unit."""
        size, shown = fitting(self.value, unit)
        return self.map(1 / size), shown

    def map(self, factor: float) -> Interval:
        """The interval of the value times a factor above zero."""
        return Interval(self.low * factor, self.value * factor, self.high * factor)

    def inverse(self, amount: float) -> Interval:
        """The interval of an amount over the value."""
        return Interval(amount / self.high, amount / self.value, amount / self.low)

    def over(self, other: Interval) -> Interval:
        """The ratio of two values with independent errors."""
        value = self.value / other.value
        low = hypot(log(self.value / self.low), log(other.high / other.value))
        high = hypot(log(self.high / self.value), log(other.value / other.low))
        return Interval(value * exp(-low), value, value * exp(high))

    @property
    def half_width(self) -> float:
        """The larger of both sides as a share of the value."""
        return max(self.high / self.value - 1, 1 - self.low / self.value)


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of a request: of an output token after the first, to the first, to the last."""

    tpot: Interval
    ttft: Interval
    e2e: Interval

    @classmethod
    def of(cls, first: Interval, rest: Interval, whole_ms: float, osl: int) -> Times:
        """From the time to the first token and that of all others, whose errors are independent."""
        low = hypot(first.value - first.low, rest.value - rest.low)
        high = hypot(first.high - first.value, rest.high - rest.value)
        whole = Interval(whole_ms - low, whole_ms, whole_ms + high)
        return cls(rest.map(1 / (osl - 1)), first, whole)

    def keep(self, limits_ms: Limits) -> bool:
        """Whether the upper ends meet the limits of `ttft_ms`, `itl_ms` and `e2e_ms`."""
        high = {
            "ttft_ms": self.ttft.high,
            "itl_ms": self.tpot.high,
            "e2e_ms": self.e2e.high,
        }
        return all(high[name] <= limit for name, limit in limits_ms.items())

    def drafted(self, gain: Interval) -> Times:
        """The same with drafts, which divide the time per output token by a gain."""
        tpot = self.tpot.over(gain)
        rest = tpot.map((self.e2e.value - self.ttft.value) / self.tpot.value)
        found = Times.of(self.ttft, rest, self.ttft.value + rest.value, 2)
        return Times(tpot, found.ttft, found.e2e)


class Spread(NamedTuple):
    """The times of a load, and how far off they may be: standard deviations of the logs of TPOT
    and TTFT, and how many of these make an 80 % interval."""

    at: RequestMs
    tpot_deviation: float
    ttft_deviation: float
    quantiles: Sequence[float]

    def times(self, osl: int, above: Sequence[float] = (0.0, 0.0)) -> Times:
        """Times whose upper ends are at least `above` standard deviations from the values."""
        below = self.quantiles
        above = [max(pair) for pair in zip(below, above, strict=True)]
        rest = _interval(self.at.rest, self.tpot_deviation, below[0], above[0])
        first = _interval(self.at.first, self.ttft_deviation, below[1], above[1])
        return Times.of(first, rest, self.at.whole, osl)


def _interval(value: float, deviation: float, below: float, above: float) -> Interval:
    return Interval(value / exp(below * deviation), value, value * exp(above * deviation))
