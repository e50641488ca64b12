"""A chart as inline SVG: readable without a script, by keyboard with it, in any colour scheme.

Colours come from the page's style sheet by class; a series is told apart by its shape too. All text
goes through `Markup.format`, which escapes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from markupsafe import Markup

from . import scale
from .labels import LINE, Labels
from .numerals import number
from .scale import Scale

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
COLOURS = 8


@dataclass(frozen=True, slots=True)
class Mark:
    """A measured place. `tip` has what a reader wants to know of it, a line each."""

    x: float
    y: float
    label: str
    tip: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """The marks of one run with a line through them, further lines, and a band between two."""

    index: int
    marks: tuple[Mark, ...]
    lines: tuple[tuple[str, tuple[tuple[float, float], ...]], ...] = ()
    band: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    name: str
    title: str
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    published: tuple[Mark, ...] = ()
    front: tuple[tuple[float, float], ...] = ()
    limit: tuple[float, str] | None = None
    loads: bool = False  # the x axis holds loads

    @property
    def xs(self) -> list[float]:
        return [m.x for m in self.marks()]

    @property
    def ys(self) -> list[float]:
        lines = [y for one in self.series for _, line in one.lines for _, y in line]
        bands = [y for one in self.series for _, _, y in one.band]
        return [m.y for m in self.marks()] + lines + bands

    def marks(self) -> Iterator[Mark]:
        for one in self.series:
            yield from one.marks
        yield from self.published


def svg(chart: Chart, logarithmic: bool) -> Markup:
    make = scale.logarithmic if logarithmic else scale.linear
    x = (scale.of_loads if chart.loads else make)(chart.xs, LEFT, RIGHT)
    y = make(chart.ys, BOTTOM, TOP)
    labels = _labels(chart, x, y)
    published = [
        _mark(m, "pub", "published", "M0-6L6 0 0 6-6 0z", x, y, labels) for m in chart.published
    ]
    parts = [
        *_axes(chart, x, y),
        *_front(chart, x, y),
        *_limit(chart, y),
        *(part for one in chart.series for part in _lines(one, x, y)),
        *(
            _mark(m, f"s{one.index % COLOURS}", one.index, shape(one.index), x, y, labels)
            for one in chart.series
            for m in one.marks
        ),
        *published,
    ]
    kind = "log" if logarithmic else "lin"
    return Markup(
        '<svg class="plot {}" viewBox="0 0 {} {}" role="group" aria-label="{}, {} axes">{}</svg>'
    ).format(
        kind,
        WIDTH,
        HEIGHT,
        chart.title,
        "logarithmic" if logarithmic else "linear",
        Markup("").join(parts),
    )


def _labels(chart: Chart, x: Scale, y: Scale) -> Labels:
    lines = [[(x.at(m.x), y.at(m.y)) for m in one.marks] for one in chart.series]
    marks = [(x.at(m.x), y.at(m.y)) for m in chart.marks()]
    return Labels((LEFT, 2, WIDTH - 2, BOTTOM), marks, lines)


def shape(index: int) -> str:
    return SHAPES[index % len(SHAPES)]


def swatch(index: int) -> Markup:
    """The sign of a series for a legend."""
    return Markup(
        '<svg class="swatch s{}" viewBox="-8 -8 16 16" aria-hidden="true"><path d="{}"/></svg>'
    ).format(index % COLOURS, shape(index))


def _axes(chart: Chart, x: Scale, y: Scale) -> Iterator[Markup]:
    for index, tick in enumerate(x.ticks):
        place = x.at(tick)
        yield Markup('<path class="grid" d="M{:.1f} {}V{}"/>').format(place, TOP, BOTTOM)
        yield Markup('<text class="tick{}" x="{:.1f}" y="{}">{}</text>').format(
            " odd" if index % 2 else "", place, BOTTOM + 20, number(tick)
        )
    for tick in y.ticks:
        place = y.at(tick)
        yield Markup('<path class="grid" d="M{} {:.1f}H{}"/>').format(LEFT, place, RIGHT)
        yield Markup('<text class="tick y" x="{}" y="{:.1f}">{}</text>').format(
            LEFT - 8, place + 4, number(tick)
        )
    yield Markup('<path class="axis" d="M{0} {1}V{2}H{3}"/>').format(LEFT, TOP, BOTTOM, RIGHT)
    yield Markup('<text class="title" x="{}" y="{}">{}</text>').format(
        (LEFT + RIGHT) / 2, HEIGHT - 8, chart.x_title
    )
    yield Markup('<text class="title y" x="2" y="{}">{}</text>').format(TOP - 18, chart.y_title)


def _front(chart: Chart, x: Scale, y: Scale) -> Iterator[Markup]:
    if len(chart.front) > 1:
        yield Markup('<path class="front" data-series="front" d="{}"/>').format(
            _path((x.at(a), y.at(b)) for a, b in chart.front)
        )


def _limit(chart: Chart, y: Scale) -> Iterator[Markup]:
    if chart.limit and y.low < chart.limit[0] <= y.high:
        place = y.at(chart.limit[0])
        yield Markup('<path class="limit" d="M{} {:.1f}H{}"/>').format(LEFT, place, RIGHT)
        beside = place - 5 if place > TOP + LINE else place + LINE
        yield Markup('<text class="limit" x="{}" y="{:.1f}">{}</text>').format(
            LEFT + 6, beside, chart.limit[1]
        )


def _lines(one: Series, x: Scale, y: Scale) -> Iterator[Markup]:
    colour = f"s{one.index % COLOURS}"
    if one.band:
        upper = [(x.at(a), y.at(top)) for a, _, top in one.band]
        lower = [(x.at(a), y.at(bottom)) for a, bottom, _ in reversed(one.band)]
        yield Markup('<path class="band {}" data-series="{}" d="{}z"/>').format(
            colour, one.index, _path([*upper, *lower])
        )
    solid = ("line", tuple((m.x, m.y) for m in one.marks))
    for style, places in (solid, *one.lines):
        if len(places) > 1:
            yield Markup('<path class="{} {}" data-series="{}" d="{}"/>').format(
                style, colour, one.index, _path((x.at(a), y.at(b)) for a, b in places)
            )


def _mark(
    mark: Mark, colour: str, series: object, path: str, x: Scale, y: Scale, labels: Labels
) -> Markup:
    a, b = x.at(mark.x), y.at(mark.y)
    text = Markup("")
    if place := labels.place(mark.label, a, b):
        text = Markup('<text class="label{}" x="{:.1f}" y="{:.1f}">{}</text>').format(
            " tight" if place.tight else "", place.x - a, place.y - b, mark.label
        )
    return Markup(
        '<g class="mark {}" data-series="{}" tabindex="-1" role="img" aria-label="{}" '
        'transform="translate({:.1f} {:.1f})"><circle r="13"/><path d="{}"/>{}</g>'
    ).format(colour, series, "\n".join(mark.tip), a, b, path, text)


def _path(places: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)


def sign(kind: str) -> Markup:
    """The sign of what is no series: published figures, or the Pareto front."""
    drawing = {"published": ("pub", "M0-6L6 0 0 6-6 0z"), "front": ("front", "M-8 4L8-4")}[kind]
    return Markup(
        '<svg class="swatch {}" viewBox="-8 -8 16 16" aria-hidden="true"><path d="{}"/></svg>'
    ).format(*drawing)
