"""Charts: scales that hold all that is drawn, fronts, labels with room, and signs of series."""

from __future__ import annotations

import re

import pytest

from builder import chart
from builder.chart import Chart, Mark, numbered


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([276, 4361], (0, 1000, 2000, 3000, 4000, 5000)),
        ([0.29], (0, 0.1, 0.2, 0.3)),
        ([0.3], (0, 0.1, 0.2, 0.3, 0.4)),
        ([1.0], (0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)),
        ([], (0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)),
    ],
)
def test_linear_axes_start_at_zero_and_end_at_a_round_number(
    values: list[float], ticks: tuple[float, ...]
) -> None:
    made = chart.linear_scale(values, 0, 100)
    assert made.ticks == pytest.approx(ticks)
    assert (made.at(0), made.at(ticks[-1])) == pytest.approx((0, 100))


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([276, 4361], (200, 500, 1000, 2000, 5000)),
        ([3.4, 3.5], (2, 5)),
        ([5], (5, 10)),
        ([1, 1e6], (1, 10, 100, 1e3, 1e4, 1e5, 1e6)),
        ([0], (1, 2, 5, 10)),
    ],
)
def test_logarithmic_axes_hold_all_values_between_round_numbers(
    values: list[float], ticks: tuple[float, ...]
) -> None:
    made = chart.logarithmic_scale(values, 0, 100)
    assert made.ticks == pytest.approx(ticks)
    assert made.at(made.low) == 0 and made.at(made.high) == 100


@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize("top", [1.0004, 9.9995, 100.02, 104_000, 0.000_31])
@pytest.mark.parametrize(("of_band", "of_line"), [(1.7, 2.1), (2.1, 1.7)])
def test_nothing_is_drawn_beyond_a_scale(
    logarithmic: bool, top: float, of_band: float, of_line: float
) -> None:
    """Neither marks nor lines nor the band between them, whichever reaches highest."""
    marks = (Mark(1, top / 9, "", ()), Mark(8, top / 3, "", ()))
    band = ((1.0, top / 9, top), (8.0, top / 3, top * of_band))
    lines = (("line p99", ((1.0, top), (8.0, top * of_line))),)
    drawn = Chart("n", "t", "x", "y", (numbered(0, marks, lines=lines, band=band),), x_is_load=True)
    make = chart.logarithmic_scale if logarithmic else chart.linear_scale
    made = make(drawn.ys, chart.BOTTOM, chart.TOP)
    assert made.low <= min(drawn.ys) and top * 2.1 <= made.high
    for kind, highest in (("band", of_band), ("line p99", of_line)):
        found = re.search(rf'class="{kind} s0"[^>]* d="M([^"z]+)', chart.svg(drawn, logarithmic))
        assert found
        y = float(found[1].split("L")[1].split()[1])
        assert y == pytest.approx(made.at(top * highest), abs=0.06)
        assert y >= chart.TOP


def test_loads_are_marked_where_they_were_measured() -> None:
    assert chart.load_scale([1, 2, 4, 8, 16, 32, 64], 0, 100).ticks == (1, 2, 4, 8, 16, 32, 64)
    assert chart.load_scale([8], 0, 100).at(8) == pytest.approx(50)
    assert chart.load_scale([100, 101, 102, 200], 0, 100).ticks == (100, 200)


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    places = [(1.0, 9.0), (2.0, 8.0), (2.0, 7.0), (1.5, 5.0), (3.0, 3.0), (0.5, 9.0)]
    assert chart.pareto_front(places, lambda one: one) == [(3.0, 3.0), (2.0, 8.0), (1.0, 9.0)]
    assert chart.pareto_front([], abs) == []


def test_labels_stand_on_nothing_else() -> None:
    marks = tuple(Mark(x, x, f"c{x}:{x * 1000}", ("tip",)) for x in range(1, 30))
    drawn = Chart("n", "t", "x", "y", (numbered(0, marks),))
    text = str(chart.svg(drawn, False))
    place = r"translate\(([\d.]+) ([\d.]+)\)"
    words = r'<text class="label[^"]*" x="([-\d.]+)" y="([-\d.]+)">(.+?)</text>'
    found = re.findall(f"{place}(?:(?!<g ).)*{words}", text)
    assert 5 <= len(found) < 29
    boxes = [
        (float(a) + float(x), float(b) + float(y), len(label) * chart.LETTER)
        for a, b, x, y, label in found
    ]
    for index, (x, y, width) in enumerate(boxes):
        assert x > chart.LEFT and x + width < chart.WIDTH
        for other_x, other_y, other_width in boxes[:index]:
            apart = x >= other_x + other_width or other_x >= x + width
            assert apart or abs(y - other_y) >= chart.LINE


def test_every_series_has_a_shape_and_a_colour_of_its_own() -> None:
    series = [numbered(index, ()) for index in range(20)]
    signs = [(one.style, one.shape) for one in series]
    assert len(set(signs)) == 20


def test_the_text_of_a_limit_is_above_all_lines() -> None:
    series = [chart.numbered(0, [chart.Mark(1, 12, "", ["a"]), chart.Mark(64, 12, "", ["b"])])]
    drawn = chart.Chart("itl", "ITL", "load", "ms", series, limit=(12.0, "SLO 12 ms"))
    found = re.search(r'<text class="limit"[^>]* y="(\d+)">SLO 12 ms<', chart.svg(drawn))
    assert found
    assert int(found[1]) < chart.TOP
