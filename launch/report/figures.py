"""The charts of a report, each with its data as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from . import chart, published
from .chart import Chart, Mark, Series
from .evidence import RunEvidence
from .number_format import milliseconds, number, percent, unit
from .published import PublishedFigure
from .results import LoadPoint
from .tables import NUMERIC, PageTable, runs_table, without_empty_columns

PERCENTILES = ("p50", "p90", "p95", "p99")
FEW = 2  # runs up to which bands and p90 lines are drawn

XY = tuple[float | None, float | None]
Coordinates = Callable[[RunEvidence, LoadPoint], XY]
LoadOf = Callable[[LoadPoint], float | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """Without a chart where nothing was measured for it; `strokes` are the kinds of lines in it."""

    name: str
    title: str
    how: str
    linear: Markup | None
    logarithmic: Markup | None
    table: PageTable
    strokes: tuple[str, ...] = ()


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
        series=tuple(_series(index, run, coordinates) for index, run in enumerate(runs)),
        published=_published_marks(
            runs, lambda row: (row.e2e_ms and row.e2e_ms / 1000, row.output_tokens_per_s)
        ),
    )
    rows = [
        (run.title, point.label, _rate(point, "output_tokens_per_s"),
         milliseconds(point.stats("e2e_ms").p50), milliseconds(point.stats("e2e_ms").p90),
         milliseconds(point.stats("e2e_ms").p99), _rate(point, "requests_per_s"),
         _rate(point, "total_tokens_per_s"))
        for run, point in _points(runs)
    ]  # fmt: skip
    columns = ("output tokens/s", "e2e p50", "e2e p90", "e2e p99", "requests/s", "total tokens/s")
    how = (
        "Up and left is better. Labels read load:tokens per second, c8 being 8 requests at a time."
    )
    return _figure(drawn, how, _table(drawn.title, runs, columns, rows))


def _interactivity(runs: Sequence[RunEvidence]) -> Figure:
    def coordinates(run: RunEvidence, point: LoadPoint) -> XY:
        if run.rehearsal:
            return (None, None)  # a miniature on CPU has no GPU to divide by
        return (
            point.rate("output_tokens_per_s_per_user"),
            point.rate("output_tokens_per_s_per_gpu"),
        )

    series = tuple(_series(index, run, coordinates) for index, run in enumerate(runs))
    drawn = Chart(
        name="interactivity",
        title="Speed for a user, output of a GPU",
        x_title="output tokens/s for each user",
        y_title="output tokens/s from each GPU",
        series=series,
        published=_published_marks(
            runs, lambda row: (row.tokens_per_s_per_user, row.tokens_per_s_per_gpu)
        ),
        front=tuple(pareto_front([(mark.x, mark.y) for one in series for mark in one.marks])),
    )
    rows = [
        (run.title, point.label, _rate(point, "output_tokens_per_s_per_user"),
         number(None) if run.rehearsal else _rate(point, "output_tokens_per_s_per_gpu"),
         milliseconds(point.stats("tpot_ms").mean),
         milliseconds(point.stats("tpot_ms").p50), milliseconds(point.stats("tpot_ms").p99))
        for run, point in _points(runs)
    ]  # fmt: skip
    columns = ("tokens/s/user", "tokens/s/GPU", "TPOT mean", "TPOT p50", "TPOT p99")
    how = "Up and right is better. No run beats the grey Pareto front in both at once."
    return _figure(drawn, how, _table(drawn.title, runs, columns, rows))


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one exceeds in both directions, by x."""
    best: list[tuple[float, float]] = []
    for x, y in sorted(points, reverse=True):
        if not best or y > best[-1][1]:
            best.append((x, y))
    return best[::-1]


def _percentiles(
    runs: Sequence[RunEvidence], name: str, title: str, of: str | None = None
) -> Figure:
    """Of the points whose gaps are `of` tokens or messages, which share no axis; else of all."""
    load_of, load_title = _load(runs)
    short = "gap" if of == "messages" else name.removesuffix("_ms").upper()
    limits = [run.bench.slo[name] for run in runs if name in run.bench.slo and of != "messages"]
    slo = min(limits, default=None)
    points = [(run, point) for run, point in _points(runs) if of in (None, point.itl_of)]
    drawn = Chart(
        name="gaps" if of == "messages" else name.removesuffix("_ms"),
        title=f"{title} ({short})" if of != "messages" else title,
        x_title=load_title,
        y_title=f"{short} (ms)",
        series=tuple(
            _tails(
                index,
                [(run, point) for run, point in points if run is one],
                name,
                load_of,
                len(runs) <= FEW,
            )
            for index, one in enumerate(runs)
        ),
        limit=None if slo is None else (slo, f"SLO {milliseconds(slo)}"),
        x_is_load=True,
    )
    rows = [
        (run.title, point.label, milliseconds(point.stats(name).mean),
         *(milliseconds(getattr(point.stats(name), p)) for p in PERCENTILES),
         milliseconds(point.stats(name).max))
        for run, point in points
    ]  # fmt: skip
    how = "Down is better."
    if of == "messages":
        how += " A message may hold several tokens: no figure here is one of tokens."
    strokes = ("p50", "p90", "p99") if len(runs) <= FEW else ("p50", "p99")
    columns = ("mean", *PERCENTILES, "max")
    return _figure(drawn, how, _table(drawn.title, runs, columns, rows), strokes)


def _tails(
    index: int,
    measured: Sequence[tuple[RunEvidence, LoadPoint]],
    name: str,
    load_of: LoadOf,
    full: bool,
) -> Series:
    """The median over the load, with the p99 line, and in full with p90 and the band between."""
    points = [
        (load, point.stats(name), _tip(run, point))
        for run, point in measured
        if (load := load_of(point)) and point.stats(name).p50 is not None
    ]
    marks = [Mark(load, spread.p50 or 0, "", tip) for load, spread, tip in points]
    p90 = tuple((load, s.p90) for load, s, _ in points if s.p90 is not None)
    p99 = tuple((load, s.p99) for load, s, _ in points if s.p99 is not None)
    band = tuple((load, s.p50 or 0, s.p99) for load, s, _ in points if s.p99 is not None)
    if not full:
        return Series(index, tuple(marks), (("line p99", p99),))
    return Series(index, tuple(marks), (("line p90", p90), ("line p99", p99)), band)


def _load(runs: Sequence[RunEvidence]) -> tuple[LoadOf, str]:
    """The load as concurrency where any point has one, else as the request rate."""
    if any(point.concurrency for run in runs for point in run.bench.points):
        return (lambda point: point.concurrency), "requests at a time"
    return (lambda point: point.rate_per_s), "requests per second"


def _series(index: int, run: RunEvidence, coordinates: Coordinates) -> Series:
    marks = []
    for point in run.bench.points:
        x, y = coordinates(run, point)
        if x is not None and y is not None:
            marks.append(Mark(x, y, f"{point.label}:{_plain(point)}", _tip(run, point)))
    return Series(index, tuple(marks))


def _plain(point: LoadPoint) -> str:
    rate = point.rate("output_tokens_per_s")
    return "" if rate is None else f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"


def _figure(drawn: Chart, how: str, its_table: PageTable, strokes: tuple[str, ...] = ()) -> Figure:
    if not any(one.marks for one in drawn.series):
        return Figure(drawn.name, drawn.title, how, None, None, its_table)
    linear, logarithmic = chart.svg(drawn, False), chart.svg(drawn, True)
    return Figure(drawn.name, drawn.title, how, linear, logarithmic, its_table, strokes)


def _table(
    caption: str,
    runs: Sequence[RunEvidence],
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
) -> PageTable:
    heads = [("load", "code"), *((title, NUMERIC) for title in columns)]
    return without_empty_columns(runs_table(caption, len(runs), heads, rows))


def _points(runs: Sequence[RunEvidence]) -> Iterator[tuple[RunEvidence, LoadPoint]]:
    for run in runs:
        for point in run.bench.points:
            yield run, point


def _rate(point: LoadPoint, name: str) -> str:
    return number(point.rate(name))


def _tip(run: RunEvidence, point: LoadPoint) -> tuple[str, ...]:
    """The tooltip of a point: all values that the charts show."""
    e2e, ttft, itl = (point.stats(name) for name in ("e2e_ms", "ttft_ms", "itl_ms"))
    lines = [
        f"{run.title}, {point.label}",
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


def _published_marks(
    runs: Sequence[RunEvidence], coordinates: Callable[[PublishedFigure], XY]
) -> tuple[Mark, ...]:
    """Published figures, once each. A miniature on CPU is not drawn beside a real GPU."""
    rows = (row for run in runs if not run.rehearsal for row in published.for_run(run))
    unique = {(row.source, row.label, row.note): row for row in rows}.values()
    drawn = ((*coordinates(row), row) for row in unique)
    return tuple(Mark(x, y, row.label, _published_tip(row)) for x, y, row in drawn if x and y)


def _published_tip(row: PublishedFigure) -> tuple[str, ...]:
    lines = [
        f"Published: {row.source}",
        f"{unit(row.output_tokens_per_s, 'output tokens/s')} at {row.label.partition(':')[0]}",
        *([f"median latency {milliseconds(row.e2e_ms)}"] if row.e2e_ms else []),
        row.workload,
        *(f"differs: {cause}" for cause in row.causes if cause.is_known),
    ]
    return tuple(line for line in lines if line)
