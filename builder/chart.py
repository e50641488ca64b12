"""A chart as inline SVG: readable without a script, by keyboard with it, in any colour scheme.

Colours come from `templates/_shared/chart.css` by class; each series has its own marker shape too.
All text goes through `Markup.format`, which escapes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from markupsafe import Markup

from .number_format import number

WIDTH, HEIGHT = 640, 388
LEFT, RIGHT, TOP, BOTTOM = 74, 616, 36, 340
SHAPES = (
    "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    "M-4.5-4.5h9v9h-9z",
    "M0-6L5.5 4.5h-11z",
    "M0-6.5L6 0 0 6.5-6 0z",
    "M0 6L5.5-4.5h-11z",
    "M-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z",
    "M0-6L5.7-1.9 3.5 4.9h-7L-5.7-1.9z",
)
CIRCLE, DIAMOND = SHAPES[0], "M0-6L6 0 0 6-6 0z"
COLOURS = 8
TICK_STEPS = (1, 2, 2.5, 5, 10)
MAX_TICKS = 7
PHONE_TICKS = 4  # that a narrow chart has room for; of more it shows every other one
NEAR = 2  # a limit up to so many times the largest value is on the scale
TOLERANCE = 1e-9  # of sums of ticks
FULL = 0.985  # share of an axis up to which the largest value may be

LETTER, LINE = 7.8, 13  # width of a letter and height of a line of a label
PHONE = 1.45  # how much larger labels are drawn on a phone
MARK_RADIUS = 6  # from the middle of a mark to its edge
STEP = 5  # between the positions of a line that labels avoid

T = TypeVar("T")
Position = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True, slots=True)
class Mark:
    """A data point with the lines of its tooltip, the first one its name. A `spread` is the box
    within which the point is likely to be, drawn as two bars."""

    x: float
    y: float
    label: str
    tip: Sequence[str]
    spread: Box | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """The marks of one run with a line through them if they are `joined`, further lines by style,
    and a band between two. Its `key` is that of the legend, `style` the class of its colour."""

    key: object
    style: str
    shape: str
    marks: Sequence[Mark]
    joined: bool = True
    lines: Sequence[tuple[str, Sequence[Position]]] = ()
    band: Sequence[tuple[float, float, float]] = ()

    def positions(self) -> Iterator[Position]:
        """Of all that is drawn; the scales must include it."""
        for mark in self.marks:
            yield mark.x, mark.y
            if mark.spread:
                yield from (mark.spread[:2], mark.spread[2:])
        for _, line in self.lines:
            yield from line
        for x, low, high in self.band:
            yield from ((x, low), (x, high))


def numbered(index: int, marks: Sequence[Mark], **others: Any) -> Series:
    """The series of the run with a number, whose colour and shape follow from it."""
    return Series(index, f"s{index % COLOURS}", SHAPES[index % len(SHAPES)], marks, **others)


def published(marks: Sequence[Mark]) -> Series:
    return Series("published", "pub", DIAMOND, marks, joined=False)


@dataclass(frozen=True, slots=True)
class Chart:
    """Series in the order in which they are drawn: what comes later is on top and is labelled
    first."""

    name: str
    title: str
    x_title: str
    y_title: str
    series: Sequence[Series]
    front: Sequence[Position] = ()
    limit: tuple[float, str] | None = None
    x_is_load: bool = False

    @property
    def xs(self) -> list[float]:
        return [x for x, _ in self._drawn()]

    @property
    def ys(self) -> list[float]:
        values = [y for _, y in self._drawn()]
        near = self.limit and self.limit[0] <= NEAR * max(values, default=0)
        return [*values, self.limit[0]] if self.limit and near else values

    def _drawn(self) -> Iterator[Position]:
        yield from self.front
        for one in self.series:
            yield from one.positions()


def pareto_front(found: Iterable[T], place: Callable[[T], Position]) -> list[T]:
    """What nothing else exceeds in both directions, the largest x first."""
    best: list[T] = []
    for one in sorted(found, key=place, reverse=True):
        if not best or place(one)[1] > place(best[-1])[1]:
            best.append(one)
    return best


def svg(chart: Chart, logarithmic: bool = False) -> Markup:
    make = logarithmic_scale if logarithmic else linear_scale
    x = (load_scale if chart.x_is_load else make)(chart.xs, LEFT, RIGHT)
    y = make(chart.ys, BOTTOM, TOP)
    kind = ("log", "logarithmic") if logarithmic else ("lin", "linear")
    parts = [*_axes(chart, x, y), *_front(chart, x, y), *_limit(chart, y)]
    for one in chart.series:
        parts += _lines(one, x, y)
    return Markup(
        '<svg class="plot {}" viewBox="0 0 {} {}" role="group" aria-label="{}, {} axes">{}{}</svg>'
    ).format(kind[0], WIDTH, HEIGHT, chart.title, kind[1], _joined(parts), _marks(chart, x, y))


def _joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def swatch(style: str, shape: str) -> Markup:
    """The symbol of a series in a legend."""
    return Markup(
        '<svg class="swatch {}" viewBox="-8 -8 16 16" aria-hidden="true"><path d="{}"/></svg>'
    ).format(style, shape)


def front_swatch() -> Markup:
    return swatch("front", "M-8 4L8-4")


def _axes(chart: Chart, x: Scale, y: Scale) -> Iterator[Markup]:
    is_dense = len(x.ticks) > PHONE_TICKS
    for index, tick in enumerate(x.ticks):
        at = x.at(tick)
        yield Markup('<path class="grid" d="M{:.1f} {}V{}"/>').format(at, TOP, BOTTOM)
        yield Markup('<text class="tick{}" x="{:.1f}" y="{}">{}</text>').format(
            " odd" if is_dense and index % 2 else "", at, BOTTOM + 20, number(tick)
        )
    for tick in y.ticks:
        at = y.at(tick)
        yield Markup('<path class="grid" d="M{} {:.1f}H{}"/>').format(LEFT, at, RIGHT)
        yield Markup('<text class="tick y" x="{}" y="{:.1f}">{}</text>').format(
            LEFT - 8, at + 4, number(tick)
        )
    yield Markup('<path class="axis" d="M{0} {1}V{2}H{3}"/>').format(LEFT, TOP, BOTTOM, RIGHT)
    yield Markup('<text class="title" x="{}" y="{}">{}</text>').format(
        (LEFT + RIGHT) / 2, HEIGHT - 8, chart.x_title
    )
    yield Markup('<text class="title y" x="2" y="{}">{}</text>').format(TOP - 18, chart.y_title)


def _front(chart: Chart, x: Scale, y: Scale) -> Iterator[Markup]:
    if len(chart.front) > 1:
        path = _path(chart.front, x, y)
        yield Markup('<path class="front" data-series="front" d="{}"/>').format(path)


def _limit(chart: Chart, y: Scale) -> Iterator[Markup]:
    """The line of a limit, and its text with a piece of that line above the plot, off all lines."""
    if chart.limit and y.low < chart.limit[0] <= y.high:
        at, top = y.at(chart.limit[0]), TOP - LINE
        yield Markup('<path class="limit" d="M{} {:.1f}H{}M{} {}h-28"/>').format(
            LEFT, at, RIGHT, RIGHT, top - 4
        )
        yield Markup('<text class="limit" text-anchor="end" x="{}" y="{}">{}</text>').format(
            RIGHT - 34, top, chart.limit[1]
        )


def _lines(one: Series, x: Scale, y: Scale) -> Iterator[Markup]:
    drawn = list(one.lines)
    if one.joined:
        drawn.insert(0, ("line", [(mark.x, mark.y) for mark in one.marks]))
    if one.band:
        upper = [(a, top) for a, _, top in one.band]
        lower = [(a, bottom) for a, bottom, _ in reversed(one.band)]
        drawn.insert(0, ("band", [*upper, *lower, upper[0]]))
    for style, values in drawn:
        if len(values) > 1:
            yield Markup('<path class="{} {}" data-series="{}" d="{}"/>').format(
                style, one.style, one.key, _path(values, x, y)
            )


def _marks(chart: Chart, x: Scale, y: Scale) -> Markup:
    places = [[(x.at(m.x), y.at(m.y)) for m in one.marks] for one in chart.series]
    labels = Labels(places, [one.joined for one in chart.series])
    drawn = []
    for one, positions in zip(reversed(chart.series), reversed(places), strict=True):
        pairs = zip(one.marks, positions, strict=True)
        drawn.append(_joined([_mark(mark, one, at, x, y, labels) for mark, at in pairs]))
    return _joined(reversed(drawn))


def _mark(mark: Mark, one: Series, at: Position, x: Scale, y: Scale, labels: Labels) -> Markup:
    bars = Markup("")
    if mark.spread:
        left, low, right, high = mark.spread
        a, b = at
        bars = Markup('<path class="spread" d="M{:.1f} 0H{:.1f}M0 {:.1f}V{:.1f}"/>').format(
            x.at(left) - a, x.at(right) - a, y.at(low) - b, y.at(high) - b
        )
    return Markup(
        '<g class="mark {}" data-series="{}" tabindex="-1" role="img" '
        'transform="translate({:.1f} {:.1f})"><title>{}</title>'
        '{}<circle r="13"/><path d="{}"/>{}</g>'
    ).format(
        one.style, one.key, *at, "\n".join(mark.tip), bars, one.shape, labels.draw(mark.label, *at)
    )


def _path(values: Iterable[Position], x: Scale, y: Scale) -> str:
    return "M" + "L".join(f"{x.at(a):.1f} {y.at(b):.1f}" for a, b in values)


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis: values from `low` to `high` onto positions from `start` to `end`."""

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


def linear_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """From 0 to a round number at or above the largest value."""
    top = max([*values, 0.0]) or 1.0
    power = 10.0 ** math.floor(math.log10(top / 5))
    step = next(one * power for one in TICK_STEPS if one * power * 5 >= top * (1 - TOLERANCE))
    count = math.ceil(top / step - TOLERANCE)
    count += top > FULL * step * count  # no mark on the frame
    ticks = tuple(step * index for index in range(count + 1))
    return Scale(0.0, ticks[-1], start, end, False, ticks)


def logarithmic_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """Between two round numbers. Values of 0 or below are drawn at the start."""
    above = [value for value in values if value > 0] or [1.0, 10.0]
    first, last = math.floor(math.log10(min(above))), math.ceil(math.log10(max(above)))
    marks: list[float] = []
    for power in range(first, last + 1):
        marks += (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
    low = max(mark for mark in marks if mark <= min(above) * (1 + TOLERANCE))
    high = min((mark for mark in marks if mark >= max(above) * (1 - TOLERANCE)), default=marks[-1])
    high = high if high > low else marks[marks.index(low) + 1]
    ticks = [mark for mark in marks if low <= mark <= high]
    if len(ticks) > MAX_TICKS:
        ticks = [mark for mark in ticks if f"{mark:e}".startswith("1.")]
    return Scale(low, high, start, end, True, tuple(ticks))


def load_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """Logarithmic, with the loads themselves as ticks: concurrencies are mostly powers of two."""
    loads = sorted({value for value in values if value > 0}) or [1.0]
    low, high = loads[0], loads[-1]
    if low == high:
        low, high = low / 2, high * 2
    ticks: list[float] = []
    for load in loads:  # no tick closer to the one before than a twelfth of the axis
        if not ticks or math.log(load / ticks[-1]) / math.log(high / low) > 1 / 12:
            ticks.append(load)
    return Scale(low, high, start, end, True, tuple(ticks))


class Labels:
    """Places labels next to their marks, off the lines if possible, or leaves them out."""

    def __init__(self, series: Sequence[Sequence[Position]], joined: Sequence[bool]) -> None:
        self._taken: list[Box] = []
        self._lines: list[Box] = []
        for marks, is_line in zip(series, joined, strict=True):
            self._taken += [
                (a - MARK_RADIUS, b - MARK_RADIUS, a + MARK_RADIUS, b + MARK_RADIUS)
                for a, b in marks
            ]
            self._lines += [(a, b, a, b) for a, b in _along(marks if is_line else ())]
        self._taken_on_phones: list[Box] = []

    def draw(self, text: str, a: float, b: float) -> Markup:
        """The label of the mark at `a`, `b`, relative to the mark; `tight` hides it on phones."""
        width = len(text) * LETTER
        left, below = a - 9 - width, b + 18
        positions = (
            (a + 9, b - 8),
            (left, b - 8),
            (a + 9, below),
            (left, below),
            (a - width / 2, b - 13),
        )
        for others in ([*self._taken, *self._lines], self._taken):
            for x, y in positions:
                box = _box(x, y, width)
                if text and _is_inside(box) and not _overlaps(box, others):
                    self._taken.append(box)
                    tight = " tight" if self._is_tight(_box(x, y, width, PHONE)) else ""
                    return Markup('<text class="label{}" x="{:.1f}" y="{:.1f}">{}</text>').format(
                        tight, x - a, y - b, text
                    )
        return Markup("")

    def _is_tight(self, box: Box) -> bool:
        tight = not _is_inside(box) or _overlaps(box, self._taken_on_phones)
        if not tight:
            self._taken_on_phones.append(box)
        return tight


def _along(line: Sequence[Position]) -> Iterator[Position]:
    for (a, b), (c, d) in pairwise(line):
        pieces = math.ceil(math.hypot(c - a, d - b) / STEP) or 1
        for piece in range(pieces + 1):
            share = piece / pieces
            yield a + (c - a) * share, b + (d - b) * share


def _box(x: float, y: float, width: float, factor: float = 1.0) -> Box:
    return (x, y - LINE * factor, x + width * factor, y + 2)


def _is_inside(box: Box) -> bool:
    return box[0] > LEFT and box[1] > 2 and box[2] < WIDTH - 2 and box[3] < BOTTOM


def _overlaps(one: Box, others: Iterable[Box]) -> bool:
    return any(
        one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
        for other in others
    )
