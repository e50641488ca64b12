"""Cells: the times of a model on a GPU, in a precision, with an engine, over load and lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import islice, product
from math import exp, log, log2
from typing import NamedTuple

from ..facts.published_results import acceptance_lengths
from . import fits as fitting
from . import roofline
from .fits import Fit, Fits
from .interpolation import Curve, Field, Kernel, Point, Surface, doublings, knots
from .intervals import Interval, Spread
from .measurements import OWN, Layout, Row, layout_text, time_text
from .question import Question
from .roofline import Load, Shape, Speeds, speeds

# A cell uses all its own rows, and others up to this number.
ENOUGH_ROWS = 100
# A public row whose log residual is farther off the median of its cell is not used: 85 ms a token
# where four times the load has 21 ms. It stays in the file, and is asked about like others.
TPOT_OFF, TTFT_OFF = 0.95, 2.0
REACH = 2  # sizes up to so many times beyond the measured ones are still answered
SHADOW = 4  # loads up to so many times around a contradicted row of the same lengths are in doubt
STEP_ERROR = 0.08  # half width of the log of the roofline's error for a step of several tokens
SLOWER = 1.05  # from here on, a run is slower than another beyond their usual difference
_DEPTH_NOTE = "the measurements used speculative decoding but do not record the draft length"
_OWN_NOTE = "your runs do not record whether they draft; that is assumed to be as in the question"

Terms = Callable[[Load, Shape, Speeds], tuple[float, ...]]


class Key(NamedTuple):
    model: str
    gpu: str
    precision: str
    engine: str


def key_of(load: Load) -> Key:
    return Key(load.model, load.gpu, load.precision, load.engine)


def drafts(row: Row) -> str:
    """ "on" for rows that draft, which have curves of their own."""
    return "on" if row.drafting == "on" else ""


def minor(release: str) -> str:
    """1.2 for 1.2.0rc6, "" for an unknown release."""
    return ".".join(release.split(".")[:2]) if release[:1].isdigit() else ""


def point_of(row: Row, with_release: bool) -> Point:
    release = minor(row.release) if with_release else ""
    return point(row, release, drafts(row))


def point(load: Load, release: str, drafting: str) -> Point:
    return Point(curve_of(load, release, drafting), log2(load.concurrency))


def curve_of(load: Load, release: str, drafting: str) -> Curve:
    sizes = (load.isl, load.osl, load.tp, load.attention_dp, load.ep)
    of_engine = f"{load.engine} {release}" if release else ""
    kinds = (load.gpu, load.engine, load.precision, of_engine, drafting)
    return Curve(tuple(map(log2, sizes)), kinds)


def uncontradicted(rows: Sequence[Row], residuals: Sequence[float], limit: float) -> list[int]:
    """Indices of rows that are not far off all others of their cell, and of the user's own."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for row, residual in zip(rows, residuals, strict=True):
        groups.setdefault((*key_of(row), drafts(row)), []).append(residual)
    middles = {group: median(values) for group, values in groups.items()}
    kept = []
    for index, (row, residual) in enumerate(zip(rows, residuals, strict=True)):
        middle = middles[(*key_of(row), drafts(row))]
        if row.source == OWN or abs(residual - middle) <= limit:
            kept.append(index)
    return kept


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of both; `statistics` takes long to import."""
    half, found = len(values) // 2, sorted(values)
    return found[half] if len(values) % 2 else (found[half - 1] + found[half]) / 2


def _tpot_ms(row: Row) -> float:
    return row.tpot_ms


def is_held(row: Row, shape: Shape) -> bool:
    """Whether no request of a row waits for memory, which is assumed of the user's own rows."""
    return row.source == OWN or roofline.kv_cache_share(row, shape, row.gpu) < roofline.FULL


class Cell:
    """Computes the times of one cell from its rows and the nearest of the same model."""

    def __init__(
        self, key: Key, rows: Sequence[Row], fits: Fits, shape: Shape, with_release: bool
    ) -> None:
        """`rows` are all of the model. `with_release` makes rows of other releases farther."""
        self.key, self.fits, self.shape, self.with_release = key, fits, shape, with_release
        self.own = [row for row in rows if key_of(row) == key]
        self._others = [row for row in rows if key_of(row) != key]
        self.speeds = speeds(key.gpu, key.precision)
        self.surface = lru_cache(maxsize=1024)(self._new_surface)
        self.ends = cache(self._ends)

    @cached_property
    def is_untried(self) -> bool:
        """Whether only the user measured anything in the cell."""
        return all(row.source == OWN for row in self.own)

    @cached_property
    def disagreement(self) -> tuple[Row, float] | None:
        """The user's row with the median difference from the published rows, and its TPOT over
        theirs; `None` unless both have rows of the cell."""
        own = [row for row in self.own if row.source == OWN]
        if not own or self.is_untried:
            return None
        published = self._of([row for row in (*self.own, *self._others) if row.source != OWN])
        apart = []
        for index, residual in enumerate(self._tpot_residuals(own)):
            told, _ = published.tpot.at(point_of(own[index], self.with_release))
            apart.append((residual - told, index))
        times, index = sorted(apart)[len(apart) // 2]
        return own[index], exp(times)

    def of_user(self) -> Cell:
        """The cell without its published rows."""
        return self._of([*(row for row in self.own if row.source == OWN), *self._others])

    def _of(self, rows: Sequence[Row]) -> Cell:
        return Cell(self.key, rows, self.fits, self.shape, self.with_release)

    def has_run(self, layout: Layout) -> bool:
        """Whether the user ran this layout."""
        return any(row.source == OWN and row.layout == layout for row in self.own)

    @cached_property
    def tpot(self) -> Field:
        rows = self._used(self.fits.tpot)
        return self._field(self.fits.tpot, rows, self._tpot_residuals(rows), TPOT_OFF)

    @cached_property
    def ttft(self) -> Field:
        rows = [row for row in self._used(self.fits.ttft) if row.ttft_ms is not None]
        times = [row.ttft_ms for row in rows if row.ttft_ms is not None]
        residuals = self._log_residuals(self.fits.ttft, rows, roofline.first_terms, times)
        return self._field(self.fits.ttft, rows, residuals, TTFT_OFF)

    def _used(self, fit: Fit) -> list[Row]:
        """The cell's own rows, then others, the most similar kinds first."""
        scales = fit.scales(self.with_release)

        def apart(row: Row) -> float:
            return (
                (row.gpu != self.key.gpu) * scales.gpu
                + (row.engine != self.key.engine) * scales.engine
                + (row.precision != self.key.precision) * scales.precision
            )

        own = [row for row in self.own if is_held(row, self.shape)]
        others = (row for row in sorted(self._others, key=apart) if is_held(row, self.shape))
        return [*own, *islice(others, max(0, ENOUGH_ROWS - len(own)))]

    def _field(
        self, fit: Fit, rows: Sequence[Row], residuals: Sequence[float], limit: float
    ) -> Field:
        kept = uncontradicted(rows, residuals, limit)
        points = [point_of(rows[index], self.with_release) for index in kept]
        values = [residuals[index] for index in kept]
        kernel = Kernel(fit.scales(self.with_release))
        return Field(kernel, points, values, median(values) if values else 0.0)

    def _tpot_residuals(self, rows: Sequence[Row]) -> list[float]:
        times = [row.tpot_ms for row in rows]
        return self._log_residuals(self.fits.tpot, rows, roofline.decode_terms, times)

    def _log_residuals(
        self, fit: Fit, rows: Sequence[Row], terms: Terms, times: Sequence[float]
    ) -> list[float]:
        """Logs of measured over roofline times."""
        return [
            log(time / fit.time(row.engine, terms(row, self.shape, speeds(row.gpu, row.precision))))
            for row, time in zip(rows, times, strict=True)
        ]

    def spread(self, asked: Question, drafting: str) -> Spread:
        """The times of a load on the curve with or without drafts."""
        release = minor(asked.release or "")
        here = point(asked, release, drafting)
        wider = self.fits.untried if self.is_untried else 1.0
        surface = self.surface(asked.layout, release, drafting)
        return Spread(
            surface.at((asked.concurrency, asked.isl, asked.osl)),
            wider * self.tpot.at(here)[1],
            wider * self.ttft.at(here)[1],
            fitting.of_cell(self.fits.intervals, self.key, self.with_release),
        )

    def _measured(self, load: Question, drafting: str, *without: str) -> Iterator[Row]:
        """The rows of the cell that are like a load but for some of its sizes."""
        same = {"layout", "concurrency", "isl", "osl"}.difference(without)
        for row in self.own:
            if drafts(row) == drafting and all(
                getattr(row, name) == getattr(load, name) for name in same
            ):
                yield row

    def slower(self, load: Question, drafting: str) -> Iterator[str]:
        """A note if fewer GPUs were measured faster at this load."""
        mine = min(self._measured(load, drafting), key=_tpot_ms, default=None)
        others = self._measured(load, drafting, "layout")
        fewer = (row for row in others if row.num_gpus < load.num_gpus)
        best = min(fewer, key=_tpot_ms, default=None)
        if mine and best and best.tpot_ms * SLOWER < mine.tpot_ms:
            yield (
                f"measured slower than with fewer GPUs: {layout_text(*mine.layout)} "
                f"{time_text(mine.tpot_ms)} per token ({mine.date or 'no date'}), "
                f"{layout_text(*best.layout)} {time_text(best.tpot_ms)} "
                f"({best.date or 'no date'}); the runs may differ in more than their GPUs"
            )

    @property
    def promised(self) -> Sequence[float]:
        """The distance of the conservative bounds in standard deviations, of TPOT and TTFT."""
        return fitting.of_cell(self.fits.promises, self.key, self.with_release)

    def modes_apart(self, load: Question, drafting: str) -> float:
        """The largest ratio of rows of one curve near a load, after division by the roofline."""
        curve = (*load.layout, drafting, load.isl, load.osl)
        near = [
            residual
            for concurrency, residual in self._residuals.get(curve, ())
            if load.concurrency / 2 <= concurrency <= load.concurrency * 2
        ]
        apart = exp(max(near) - min(near)) if near else 1.0
        return max(apart, self._own_apart(curve, load.concurrency))

    def _own_apart(self, curve: tuple[object, ...], concurrency: int) -> float:
        """The largest ratio of the user's own rows of one load near this one."""
        times: dict[tuple[int, str], list[float]] = {}
        for row in self.own:
            is_on = (*row.layout, drafts(row), row.isl, row.osl) == curve
            is_near = concurrency / 2 <= row.concurrency <= concurrency * 2
            if row.source == OWN and is_on and is_near:
                times.setdefault((row.concurrency, row.release), []).append(row.tpot_ms)
        return max((max(rows) / min(rows) for rows in times.values()), default=1.0)

    @cached_property
    def _residuals(self) -> dict[tuple[object, ...], list[tuple[int, float]]]:
        """The loads of each measured curve, and the logs of measured over roofline TPOT."""
        found: dict[tuple[object, ...], list[tuple[int, float]]] = {}
        # The user's own rows are from one machine and one setting.
        rows = [row for row in self.own if row.source != OWN]
        for row, residual in zip(rows, self._tpot_residuals(rows), strict=True):
            curve = (*row.layout, drafts(row), row.isl, row.osl)
            found.setdefault(curve, []).append((row.concurrency, residual))
        return found

    def contradicted(self, load: Load) -> Row | None:
        """A row of these lengths and a similar load that all others of the cell contradict."""
        for row in self._dropped:
            apart = max(row.concurrency / load.concurrency, load.concurrency / row.concurrency)
            if (row.isl, row.osl) == (load.isl, load.osl) and apart <= SHADOW:
                return row
        return None

    @cached_property
    def _dropped(self) -> list[Row]:
        rows = [row for row in self._used(self.fits.tpot) if key_of(row) == self.key]
        kept = set(uncontradicted(rows, self._tpot_residuals(rows), TPOT_OFF))
        return [row for index, row in enumerate(rows) if index not in kept]

    def _ends(self, name: str) -> tuple[int, int]:
        sizes = [getattr(row, name) for row in self.own]
        return min(sizes), max(sizes)

    def _new_surface(self, layout: Layout, release: str, drafting: str) -> Surface:
        same = [row for row in self.own if (row.layout, drafts(row)) == (layout, drafting)]
        loads, isls, osls = (self._axis(name, same) for name in ("concurrency", "isl", "osl"))
        tp, attention_dp, ep = layout
        columns = []
        for isl, osl in product(isls, osls):
            load = Question(*self.key, tp, ep, attention_dp, isl, osl, concurrency=1)
            columns.append(self._column(load, loads, release, drafting))
        return Surface((loads, isls, osls), columns)

    def _axis(self, name: str, same: Sequence[Row]) -> list[int]:
        """Knots: sizes of the layout's own rows, and beyond them those of others.

        Between two measured lengths time grows by the token; between two loads also as experts
        fill, which the doublings follow.
        """
        low, high = self.ends(name)
        own = {getattr(row, name) for row in same}
        others = {getattr(row, name) for row in self.own}
        if own:
            others = {size for size in others if not min(own) <= size <= max(own)}
        if name == "concurrency":
            others |= {*doublings(low, high * REACH)}
            return knots((low, high * REACH), own, others)
        return knots((max(1, low // REACH), high * REACH), own, others)

    def _inside(self, name: str, size: int) -> int:
        low, high = self.ends(name)
        return min(max(size, low), high)

    def _column(
        self, load: Question, loads: Sequence[int], release: str, drafting: str
    ) -> Iterator[tuple[float, float]]:
        """The first and the other tokens' milliseconds over the loads, at one pair of lengths."""
        shape, gpu, engine = self.shape, self.speeds, self.key.engine
        # Beyond the measured lengths only the roofline changes, so that the effect of the rows at
        # their ends does not fade there.
        isl, osl = self._inside("isl", load.isl), self._inside("osl", load.osl)
        curve = curve_of(replace(load, isl=isl, osl=osl), release, drafting)
        logs = [log2(size) for size in loads]
        fields = zip(loads, self.ttft.means(curve, logs), self.tpot.means(curve, logs), strict=True)
        for size, ttft, tpot in fields:
            asked = replace(load, concurrency=size)
            first = self.fits.ttft.time(engine, roofline.first_terms(asked, shape, gpu))
            each = self.fits.tpot.time(engine, roofline.decode_terms(asked, shape, gpu))
            yield first * exp(ttft), each * exp(tpot) * (load.osl - 1)


@dataclass(frozen=True, slots=True)
class Drafting:
    """Which curve of a cell answers: "on" is that of rows that draft.

    `is_open` marks an unknown curve. `gain` divides the time per token of rows without drafts, and
    `missing` is the reason if it is unknown.
    """

    curve: str = ""
    is_open: bool = False
    gain: Interval | None = None
    missing: str = ""
    notes: tuple[str, ...] = ()


def drafting(asked: Question, cell: Cell) -> Drafting:
    marks = {row.drafting for row in cell.own}
    if asked.mtp is None:
        return _unsaid(asked, cell, marks)
    if not asked.mtp:
        return Drafting()
    if "on" in marks and (asked.acceptance is None or "off" not in marks):
        if asked.acceptance is None:
            return Drafting("on", notes=(_DEPTH_NOTE,))
        unused = f"{asked.acceptance:g} tokens per step are not used"
        return Drafting("on", notes=(f"{_DEPTH_NOTE}; {unused}",))
    if cell.is_untried and "off" not in marks:
        return Drafting(notes=(_OWN_NOTE,))
    return _computed(asked, cell, asked.mtp)


def _unsaid(asked: Question, cell: Cell, marks: set[str]) -> Drafting:
    """For a question without `mtp`: the mode that all rows of its release have, or all rows."""
    of_release = {row.drafting for row in cell.own if row.release == asked.release}
    if asked.release and of_release in ({"on"}, {"off"}):
        mode = of_release.pop()
        note = f"drafting is assumed {mode}, as in all measurements of {asked.release}"
        return Drafting("on" if mode == "on" else "", notes=(note,))
    if marks == {"on"}:
        return Drafting("on", notes=("all measurements used speculative decoding",))
    return Drafting(is_open="on" in marks)


def _computed(asked: Question, cell: Cell, draft_tokens: int) -> Drafting:
    """The gain: tokens per step over how much longer a step takes."""
    if asked.acceptance is not None:
        lengths: Sequence[float] = [asked.acceptance]
        source = f"{asked.acceptance:g} tokens per step, as given"
    else:
        lengths = acceptance_lengths(asked.model, "MTP", draft_tokens)
        source = f"{' to '.join(f'{x:g}' for x in _ends(lengths))} tokens per step, published"
    if not lengths:
        return Drafting(
            missing=f"no measurement of {asked.model} drafts tokens here, and no acceptance is "
            f"published for {draft_tokens} draft tokens: give acceptance, the tokens per step"
        )
    longer = _step(asked, cell, draft_tokens) / _step(asked, cell, 0)
    low, high, spread = min(lengths) / longer, max(lengths) / longer, exp(STEP_ERROR)
    gain = Interval(low / spread, (low * high) ** 0.5, high * spread)
    note = (
        f"computed from measurements without drafts: {source}, each step {longer:.2f} times as long"
    )
    return Drafting(gain=gain, notes=(note,))


def _ends(lengths: Sequence[float]) -> list[float]:
    return sorted({min(lengths), max(lengths)}) if lengths else []


def _step(asked: Question, cell: Cell, draft_tokens: int) -> float:
    """A step's time in milliseconds, with the layers that draft."""
    terms = roofline.decode_terms(asked, cell.shape, cell.speeds, draft_tokens)
    return cell.fits.tpot.time(asked.engine, terms) * (1 + draft_tokens / cell.shape.layers)
