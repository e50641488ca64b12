"""The scale of an axis: where a value lies, and which values are marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

STEPS = (1, 2, 2.5, 5, 10)
MAX_TICKS = 7


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from `low` to `high` onto places from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def linear(values: Sequence[float], start: float, end: float) -> Scale:
    """From 0 to a round number at or above the largest value."""
    top = max([*values, 0.0]) or 1.0
    power = 10.0 ** math.floor(math.log10(top / 5))
    step = next(one * power for one in STEPS if one * power * 5 >= top * 0.999)
    count = math.ceil(top / step - 1e-9)
    ticks = tuple(step * index for index in range(count + 1))
    return Scale(0.0, ticks[-1], start, end, False, ticks)


def logarithmic(values: Sequence[float], start: float, end: float) -> Scale:
    """From a round number to a round number. Values that are not above 0 lie at the start."""
    above = [value for value in values if value > 0] or [1.0, 10.0]
    first, last = math.floor(math.log10(min(above))), math.ceil(math.log10(max(above)))
    marks = [m * 10.0**p for p in range(first, last + 1) for m in (1, 2, 5)]
    low = max(mark for mark in marks if mark <= min(above) * 1.001)
    high = min((mark for mark in marks if mark >= max(above) * 0.999), default=marks[-1])
    high = high if high > low else marks[marks.index(low) + 1]
    ticks = [mark for mark in marks if low <= mark <= high]
    if len(ticks) > MAX_TICKS:
        ticks = [mark for mark in ticks if f"{mark:e}".startswith("1.")]
    return Scale(low, high, start, end, True, tuple(ticks))


def of_loads(values: Sequence[float], start: float, end: float) -> Scale:
    """Logarithmic, with the loads themselves as marks: concurrencies are mostly powers of two."""
    loads = sorted({value for value in values if value > 0}) or [1.0]
    low, high = loads[0], loads[-1]
    if low == high:
        low, high = low / 2, high * 2
    marked: list[float] = []
    for load in loads:  # no mark closer to the one before than a twelfth of the axis
        if not marked or math.log(load / marked[-1]) / math.log(high / low) > 1 / 12:
            marked.append(load)
    return Scale(low, high, start, end, True, tuple(marked))
