"""The page of a selection: one HTML file without a script that loads nothing.

The chart shows every estimated option by speed per user and throughput per GPU, each with its
interval; `templates/choice` has the layout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

from .. import render
from ..estimates import Refusal
from ..estimates.intervals import number
from . import report
from .report import SHORT_NAMES, figures, reason, servers_text, source
from .selection import Option, Selection

WIDTH, HEIGHT = 640, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 620, 34, 366
MOST_TICKS = 6
LETTER, LINE = 12.6, 24  # width of a letter and height of a line of a label, as a phone has them
NAMES = {
    "ttft_ms": ("time to first token", "ms"),
    "itl_ms": ("time between tokens", "ms"),
    "e2e_ms": ("time to the last token", "ms"),
    "output_tokens_per_s_per_user": ("tokens/s per user", ""),
    "output_tokens_per_s_per_gpu": ("tokens/s per GPU", ""),
    "usd_per_million_output_tokens": ("USD per million tokens", ""),
}


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear scale from 0 to a round number."""

    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        share = min(max(value / self.high, 0.0), 1.0)
        return round(self.start + share * (self.end - self.start), 1)


def axis(values: Sequence[float], start: float, end: float) -> Axis:
    """A scale that includes all values."""
    top = max([*values, 0.0]) or 1.0
    power = 10.0 ** floor(log10(top / MOST_TICKS))
    step = next(one * power for one in (1, 2, 2.5, 5, 10, 20) if top / (one * power) <= MOST_TICKS)
    count = ceil(top / step - 1e-9)
    return Axis(step * count, start, end, tuple(step * tick for tick in range(count + 1)))


def text(selection: Selection, chosen: Option | None) -> str:
    css = render.html("choice/page.css")
    deployment = selection.request.bases[0].deployment
    errors = [] if chosen else [str(row) for row in report.refusal(selection).diagnostics]
    return render.html(
        "choice/page.html.j2",
        style_hash=render.source_expression(css),
        name=deployment.name,
        question=report.question_text(selection),
        counts=report.counts_text(selection),
        chosen=chosen and servers_text(chosen),
        reason=chosen and reason(selection, chosen, with_figures=False),
        source=chosen and source(chosen),
        tiles=list(_tiles(selection, chosen)) if chosen else [],
        errors=errors,
        chart=_chart(selection, chosen) if selection.estimated else None,
        rows=[_row(n, option, selection, chosen) for n, option in _numbered(selection, chosen)],
        priced=bool(selection.request.prices_usd),
        left_out=_left_out(selection),
        measurements=report.measurement_texts(selection),
        notes=report.notes(selection, chosen),
    )


def _tiles(selection: Selection, chosen: Option) -> Iterator[dict[str, str]]:
    limits = selection.request.slo.limits_ms
    for name, found in figures(chosen, selection.request).items():
        if name in NAMES:
            title, unit = NAMES[name]
            shown, unit = found.in_unit(unit)
            value, low, high = shown.texts
            limit = f"target {report.limit_text(limits[name])}" if name in limits else ""
            yield {
                "title": title,
                "value": f"{value} {unit}".strip(),
                "range": f"{low} to {high}",
                "limit": limit,
            }


def _numbered(selection: Selection, chosen: Option | None) -> list[tuple[int, Option]]:
    """The options with their numbers in the table, which mark them in the chart."""
    return list(enumerate(selection.ordered(chosen), 1))


def _row(place: int, option: Option, selection: Selection, chosen: Option | None) -> dict[str, Any]:
    found, plan = option.forecast, option.planned.plan
    assert found is not None and plan is not None
    named = figures(option, selection.request)
    shown = []
    for name, (_, unit) in NAMES.items():
        if name in named:
            interval, unit = named[name].in_unit(unit)
            value, low, high = interval.texts
            shown.append((f"{value} {unit}".strip(), f"{low} to {high}"))
    return {
        "number": place,
        "servers": servers_text(option),
        "chosen": option is chosen,
        "figures": shown,
        "rows": found.estimate.rows,
        "free": number(plan.budget.margin_gib),
        "missed": ", ".join(
            f"{SHORT_NAMES[name]} by {excess:.0%}" for name, excess in option.misses.items()
        ),
    }


def _left_out(selection: Selection) -> list[tuple[str, int]]:
    """Why candidates are not in the table, the most frequent reason first."""
    reasons: Counter[str] = Counter()
    for option in selection.options:
        if option.planned.objections:
            row = option.planned.objections[0]
            reasons[f"{row.where}: {row.message.partition(':')[0]}"] += 1
        elif not option.fits:
            reasons["too little memory for the requests that run"] += 1
        elif isinstance(option.outcome, Refusal):
            reasons[option.outcome.reason] += 1
    return reasons.most_common()


def _chart(selection: Selection, chosen: Option | None) -> dict[str, Any]:
    options = selection.estimated
    x = axis([option.speeds[0].high for option in options], LEFT, RIGHT)
    y = axis([option.speeds[1].high for option in options], BOTTOM, TOP)
    labelled = [*([chosen] if chosen else []), *(o for o in selection.front if o is not chosen)]
    order = [*labelled, *(o for o in options if o not in labelled)]
    numbers = {id(option): str(place) for place, option in _numbered(selection, chosen)}
    labels = _labels(order, x, y, numbers)
    speeds = [option.speeds for option in selection.front]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "frame": {"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM},
        "x_ticks": [(x.at(tick), number(tick)) for tick in x.ticks],
        "y_ticks": [(y.at(tick), number(tick)) for tick in y.ticks],
        "front": " ".join(f"{x.at(a.value)},{y.at(b.value)}" for a, b in speeds),
        "marks": [_mark(o, o is chosen, x, y, labels.get(id(o))) for o in reversed(order)],
    }


def _mark(
    option: Option, is_chosen: bool, x: Axis, y: Axis, label: Mapping[str, Any] | None
) -> dict[str, Any]:
    user, per_gpu = option.speeds
    kind = "kept" if option.keeps else "missed"
    tip = f"{servers_text(option)}: {user} tokens/s per user, {per_gpu} per GPU"
    return {
        "kind": "chosen" if is_chosen else kind,
        "tip": tip,
        "x": x.at(user.value),
        "y": y.at(per_gpu.value),
        "x_bar": (x.at(user.low), x.at(user.high)),
        "y_bar": (y.at(per_gpu.low), y.at(per_gpu.high)),
        "label": label,
    }


def _labels(
    options: Sequence[Option], x: Axis, y: Axis, numbers: Mapping[int, str]
) -> dict[int, dict[str, Any]]:
    """The numbers next to their marks, and where they begin or end, depending on their anchor. A
    label without room is left out."""
    taken: list[tuple[float, float, float, float]] = []
    found: dict[int, dict[str, Any]] = {}
    for option in options:
        user, per_gpu = option.speeds
        a, b = x.at(user.value), y.at(per_gpu.value)
        words = numbers[id(option)]
        width = len(words) * LETTER
        for left, base in ((a + 9, b - 9), (a - 9 - width, b - 9), (a + 9, b + 27)):
            box = (left, base - LINE, left + width, base + 3)
            inside = left > LEFT and left + width < WIDTH - 2 and TOP < base < BOTTOM
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                anchor, at = ("start", left) if left > a else ("end", left + width)
                place = {"x": round(at, 1), "y": round(base, 1)}
                found[id(option)] = {**place, "words": words, "anchor": anchor}
                break
    return found


def _overlap(
    one: tuple[float, float, float, float], other: tuple[float, float, float, float]
) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
