"""The page of a selection: one HTML file without a script that loads nothing.

`templates/choice` has the layout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from .. import render
from ..chart import CIRCLE, DIAMOND, Chart, Mark, Series, front_swatch, svg, swatch
from ..estimates import Interval, Refusal
from ..facts.published_results import SHORT_NAMES
from ..number_format import milliseconds, number
from . import report
from .report import figures, more, reason, servers_text, source
from .selection import Option, Selection

SHAPES = {"chosen": DIAMOND, "kept": CIRCLE, "missed": CIRCLE}
LEGEND = {"chosen": "chosen", "kept": "meets the targets", "missed": "does not"}
NAMES = {
    "ttft_ms": ("time to first token", "ms"),
    "itl_ms": ("time between tokens", "ms"),
    "e2e_ms": ("time to the last token", "ms"),
    "output_tokens_per_s_per_user": ("tokens/s per user", ""),
    "output_tokens_per_s_per_gpu": ("tokens/s per GPU", ""),
    "usd_per_million_output_tokens": ("USD per million tokens", ""),
}


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
        chart=svg(_chart(selection, chosen)) if selection.estimated else None,
        legend=[(swatch(kind, SHAPES[kind]), title) for kind, title in LEGEND.items()],
        front_swatch=front_swatch(),
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
            value, ends = _shown(found, unit)
            limit = f"target {milliseconds(limits[name])}" if name in limits else ""
            yield {"title": title, "value": value, "range": ends, "limit": limit}


def _shown(found: Interval, unit: str) -> tuple[str, str]:
    """The value with its unit, and its ends."""
    interval, unit = found.in_unit(unit)
    value, low, high = interval.texts
    return f"{value} {unit}".strip(), f"{low} to {high}"


def _numbered(selection: Selection, chosen: Option | None) -> list[tuple[int, Option]]:
    """The options with their numbers in the table, which mark them in the chart."""
    return list(enumerate(selection.ordered(chosen), 1))


def _row(place: int, option: Option, selection: Selection, chosen: Option | None) -> dict[str, Any]:
    found, plan = option.forecast, option.planned.plan
    assert found is not None and plan is not None
    named = figures(option, selection.request)
    shown = [_shown(named[name], unit) for name, (_, unit) in NAMES.items() if name in named]
    return {
        "number": place,
        "servers": servers_text(option),
        "chosen": option is chosen,
        "figures": shown,
        "rows": found.estimate.rows,
        "free": number(plan.budget.margin_gib),
        "missed": ", ".join(
            f"{SHORT_NAMES[name]} ({more(1 + excess)})" for name, excess in option.misses.items()
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


def _chart(selection: Selection, chosen: Option | None) -> Chart:
    """The options by speed, numbered as in the table; the chosen one and the front are on top."""
    numbers = {id(option): str(place) for place, option in _numbered(selection, chosen)}
    first = [*filter(None, [chosen]), *selection.front]
    ordered = {id(one): one for one in (*first, *selection.estimated)}.values()
    return Chart(
        name="options",
        title="Speed per user and throughput per GPU",
        x_title="output tokens/s per user",
        y_title="output tokens/s per GPU",
        series=[_series(one, numbers[id(one)], one is chosen) for one in reversed(ordered)],
        front=[option.point for option in selection.front],
    )


def _series(option: Option, label: str, is_chosen: bool) -> Series:
    user, per_gpu = option.speeds
    kind = "kept" if option.keeps else "missed"
    kind = "chosen" if is_chosen else kind
    tip = f"{servers_text(option)}: {user} tokens/s per user, {per_gpu} per GPU"
    mark = Mark(*option.point, label, [tip], (user.low, per_gpu.low, user.high, per_gpu.high))
    return Series(kind, kind, SHAPES[kind], [mark], joined=False)
