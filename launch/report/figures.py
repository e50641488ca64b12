"""The charts of a report, each with its data as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from markupsafe import Markup

from builder import chart
from builder.chart import Chart, Mark, Series
from builder.number_format import milliseconds, number, percent, quantity

from . import published
from .evidence import RunEvidence, every_point
from .published import PublishedFigure
from .results import LoadPoint
from .tables import BAR, LOAD, NUMERIC, PageTable, numeric, runs_table, texts

PERCENTILES = ("p50", "p90", "p95", "p99")
LONG_MS = 10_000  # from here on an axis is in seconds
FEW = 2  # runs up to which bands and p90 lines are drawn

XY = tuple[float | None, float | None]
Coordinates = Callable[[RunEvidence, LoadPoint], XY]
PublishedCoordinates = Callable[[PublishedFigure], XY]
LoadOf = Callable[[LoadPoint], float | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart and its table; `strokes` are its kinds of lines.

    With one load in each run, bars replace the chart; without measurements there is neither.
    """

    name: str
    title: str
    how: str
    linear: Markup | None
    logarithmic: Markup | None
    table: PageTable
    strokes: tuple[str, ...] = ()
    bars: PageTable | None = None


def draw(runs: Sequence[RunEvidence]) -> list[Figure]:
    return [
        _throughput(runs),
        _interactivity(runs),
        _percentiles(runs, "ttft_ms", "Time to first token"),
        _percentiles(runs, "itl_ms", "Inter-token latency", "tokens"),
        _percentiles(runs, "itl_ms", "Gaps between messages", "messages"),
    ]


def _throughput(runs: Sequence[RunEvidence]) -> Figure:
    def coordinates(_: RunEvidence, point: LoadPoint) -> XY:
        median_ms = point.stats("e2e_ms").p50
        return (None if median_ms is None else median_ms / 1000, point.rate("output_tokens_per_s"))

    drawn = Chart(
        name="throughput",
        title="Throughput over latency",
        x_title="median end-to-end latency (s)",
        y_title="output tokens/s",
        series=_series(
            runs,
            coordinates,
            lambda row: (row.e2e_ms and row.e2e_ms / 1000, row.output_tokens_per_s),
        ),
    )
    titles = ("output tokens/s", "e2e p50", "e2e p90", "e2e p99", "requests/s", "total tokens/s")
    table = runs_table(drawn.title, runs, [LOAD, *numeric(*titles)])
    for run, point in every_point(runs):
        e2e = point.stats("e2e_ms")
        table.add(run.title, point.load, _rate(point, "output_tokens_per_s"),
                  *map(milliseconds, (e2e.p50, e2e.p90, e2e.p99)), _rate(point, "requests_per_s"),
                  _rate(point, "total_tokens_per_s"))  # fmt: skip
    how = f"Up and left is better. {_numbers(runs)}"
    return _figure(drawn, how, table, runs)


def _interactivity(runs: Sequence[RunEvidence]) -> Figure:
    def coordinates(run: RunEvidence, point: LoadPoint) -> XY:
        if run.rehearsal:
            return (None, None)  # a miniature on CPU has no GPU to divide by
        return (
            point.rate("output_tokens_per_s_per_user"),
            point.rate("output_tokens_per_s_per_gpu"),
        )

    series = _series(
        runs, coordinates, lambda row: (row.tokens_per_s_per_user, row.tokens_per_s_per_gpu)
    )
    marks = chain.from_iterable(one.marks for one in series[:-1])
    drawn = Chart(
        name="interactivity",
        title="Speed for a user, output of a GPU",
        x_title="output tokens/s for each user",
        y_title="output tokens/s from each GPU",
        series=series,
        front=chart.pareto_front([(mark.x, mark.y) for mark in marks], lambda place: place),
    )
    titles = ("tokens/s/user", "tokens/s/GPU", "TPOT mean", "TPOT p50", "TPOT p99")
    table = runs_table(drawn.title, runs, [LOAD, *numeric(*titles)])
    for run, point in every_point(runs):
        tpot = point.stats("tpot_ms")
        per_gpu = None if run.rehearsal else point.rate("output_tokens_per_s_per_gpu")
        table.add(run.title, point.load, _rate(point, "output_tokens_per_s_per_user"),
                  number(per_gpu), *map(milliseconds, (tpot.mean, tpot.p50, tpot.p99)),
                 )  # fmt: skip
    how = f"Up and right is better. {_numbers(runs)}"
    how += " No run beats the grey Pareto front in both at once."
    return _figure(drawn, how, table, runs)


def _percentiles(
    runs: Sequence[RunEvidence], name: str, title: str, of: str | None = None
) -> Figure:
    """Percentiles over the load, for gaps of tokens or messages only those points."""
    load_of, load_title = _load(runs)
    of_messages = of == "messages"
    short = "gap" if of_messages else name.removesuffix("_ms").upper()
    limits = [run.bench.slo[name] for run in runs if name in run.bench.slo]
    longest = [
        point.stats(name).p99 or point.stats(name).p50 or 0 for _, point in every_point(runs)
    ]
    per_unit, axis_unit = (1000, "s") if max(longest) >= LONG_MS else (1, "ms")
    slo = None if of_messages else min(limits, default=None)
    is_full = len(runs) <= FEW
    titles = ("mean", *PERCENTILES, "max")
    title = title if of_messages else f"{title} ({short})"
    table = runs_table(title, runs, [LOAD, *numeric(*titles)])
    series = []
    for index, run in enumerate(runs):
        points = [point for point in run.bench.points if of in (None, point.itl_of)]
        series.append(_tails(index, run, points, name, load_of, is_full, per_unit))
        for point in points:
            stats = point.stats(name)
            values = (stats.mean, stats.p50, stats.p90, stats.p95, stats.p99, stats.max)
            table.add(run.title, point.load, *map(milliseconds, values))
    drawn = Chart(
        name="gaps" if of_messages else name.removesuffix("_ms"),
        title=title,
        x_title=load_title,
        y_title=f"{short} ({axis_unit})",
        series=series,
        limit=None if slo is None else (slo / per_unit, f"SLO {milliseconds(slo)}"),
        x_is_load=True,
    )
    how = "Lower is better."
    if of_messages:
        how += " A message may hold several tokens: no figure here is one of tokens."
    return _figure(drawn, how, table, runs, ("p50", "p90", "p99") if is_full else ("p50", "p99"))


def _tails(
    index: int,
    run: RunEvidence,
    points: Sequence[LoadPoint],
    name: str,
    load_of: LoadOf,
    is_full: bool,
    per_unit: float,
) -> Series:
    marks, p90, p99, band = [], [], [], []
    for point in points:
        stats = point.stats(name)
        if not (load := load_of(point)) or stats.p50 is None:
            continue
        median = stats.p50 / per_unit
        marks.append(Mark(load, median, "", _tip(run, point)))
        if stats.p90 is not None:
            p90.append((load, stats.p90 / per_unit))
        if stats.p99 is not None:
            p99.append((load, stats.p99 / per_unit))
            band.append((load, median, stats.p99 / per_unit))
    tail = ("line p99", p99)
    if not is_full:
        return chart.numbered(index, marks, lines=[tail])
    return chart.numbered(index, marks, lines=[("line p90", p90), tail], band=band)


def _load(runs: Sequence[RunEvidence]) -> tuple[LoadOf, str]:
    """The load as concurrency where any point has one, else as the request rate."""
    if any(point.concurrency for _, point in every_point(runs)):
        return (lambda point: point.concurrency), "concurrent requests"
    return (lambda point: point.rate_per_s), "requests per second"


def _series(
    runs: Sequence[RunEvidence], coordinates: Coordinates, published_at: PublishedCoordinates
) -> list[Series]:
    """A series of each run, then the published figures."""
    found = []
    for index, run in enumerate(runs):
        marks = []
        for point in run.bench.points:
            x, y = coordinates(run, point)
            if x is not None and y is not None:
                marks.append(Mark(x, y, _mark_label(point), _tip(run, point)))
        found.append(chart.numbered(index, marks))
    return [*found, chart.published(_published_marks(runs, published_at))]


def _numbers(runs: Sequence[RunEvidence]) -> str:
    return f"The number at a mark is its load in {_load(runs)[1]}."


def _mark_label(point: LoadPoint) -> str:
    return number(point.rate_per_s or point.concurrency)


def _figure(
    drawn: Chart,
    how: str,
    table: PageTable,
    runs: Sequence[RunEvidence],
    strokes: tuple[str, ...] = (),
) -> Figure:
    table.without_empty_columns()
    own = drawn.series[: len(runs)]
    most = max(len(one.marks) for one in own)
    if most == 0:
        return Figure(drawn.name, drawn.title, how, None, None, table)
    absent = [run for run, one in zip(runs, own, strict=True) if not one.marks]
    if most == 1:  # what is known of marks
        how = "Higher is better." if "Up" in how else "Lower is better."
    how += "".join(f" {run.title} is not here: {_absence(drawn.name, run)}." for run in absent)
    if most == 1:
        bars = _bars(drawn.y_title, own)
        return Figure(drawn.name, drawn.title, how, None, None, table, (), bars)
    linear, logarithmic = chart.svg(drawn, False), chart.svg(drawn, True)
    return Figure(drawn.name, drawn.title, how, linear, logarithmic, table, strokes)


def _absence(figure: str, run: RunEvidence) -> str:
    """Why a run has no series in a chart."""
    kinds = {point.itl_of for point in run.bench.points if point.stats("itl_ms").p50 is not None}
    if figure == "interactivity" and run.rehearsal:
        return "a rehearsal has no GPU"
    if figure == "itl" and "messages" in kinds:
        return "its messages hold several tokens, so gaps between tokens cannot be measured"
    if figure == "gaps" and "tokens" in kinds:
        return "it sends a token per message"
    return "not measured"


def _bars(title: str, series: Sequence[Series]) -> PageTable:
    """The figures of runs with one load each, as bars."""
    table = PageTable("", [*texts("run and load"), (title, NUMERIC), ("", BAR)])
    longest = max(mark.y for one in series for mark in one.marks) or 1  # all may be 0
    for one in series:
        for mark in one.marks:
            table.add(mark.tip[0], number(mark.y), mark.y / longest)
    if len(table.rows) > 1:
        return table
    return PageTable("", table.columns[:-1], 0, [row[:-1] for row in table.rows])


def _rate(point: LoadPoint, name: str) -> str:
    return number(point.rate(name))


def _tip(run: RunEvidence, point: LoadPoint) -> tuple[str, ...]:
    e2e, ttft, itl = (point.stats(name) for name in ("e2e_ms", "ttft_ms", "itl_ms"))
    lines = [
        f"{run.title}, {point.load_text}",
        f"{number(point.rate('output_tokens_per_s'))} output tokens/s",
        f"e2e {_tail(e2e.p50, e2e.p99)}",
        f"TTFT {_tail(ttft.p50, ttft.p99)}",
        f"{'ITL' if point.itl_of == 'tokens' else 'gap of messages'} {_tail(itl.p50, itl.p99)}",
        f"{number(point.rate('output_tokens_per_s_per_user'))} tokens/s/user, "
        f"{number(point.rate('output_tokens_per_s_per_gpu'))} /GPU",
    ]
    if point.failed:
        lines.append(f"{point.failed} of {number(point.sent)} requests failed")
    if point.goodput_share is not None:
        lines.append(f"within the SLO: {percent(point.goodput_share)}")
    return tuple(lines)


def _tail(median: float | None, p99: float | None) -> str:
    return f"p50 {milliseconds(median)}, p99 {milliseconds(p99)}"


def _published_marks(runs: Sequence[RunEvidence], coordinates: PublishedCoordinates) -> list[Mark]:
    """Published figures, once each. A rehearsal has none: it says nothing about GPUs."""
    unique: dict[tuple[str, str, str], PublishedFigure] = {}
    for run in runs:
        if not run.rehearsal:
            unique |= {row.key: row for row in published.for_run(run)}
    marks = []
    for row in unique.values():
        x, y = coordinates(row)
        if x and y:
            marks.append(Mark(x, y, row.mark_label, _published_tip(row)))
    return marks


def _published_tip(row: PublishedFigure) -> tuple[str, ...]:
    lines = [
        f"Published: {row.source}",
        f"{quantity(row.output_tokens_per_s, 'output tokens/s')} at {row.load_text}",
        f"median latency {milliseconds(row.e2e_ms)}" if row.e2e_ms else "",
        row.workload,
        *(f"differs: {cause}" for cause in row.causes if cause.is_known),
    ]
    return tuple(filter(None, lines))
