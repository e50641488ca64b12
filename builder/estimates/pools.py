"""Pools: the speed of separate prefill and decode servers, from measurements of such servers.

A decode step takes what its roofline asks for at the load of one server. A first token takes its
prompt, the prompts before it, and the wait that Little's law leaves where the prefill servers are
slower than the decode servers. Kriging over load, pools and lengths adds what the measurements say
beyond both. Only measurements with known servers and known drafting count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from heapq import nsmallest
from math import exp, inf, log, log2, sqrt
from typing import NamedTuple

from ..diagnostics import Diagnostic
from ..errors import BadFacts
from . import measurements, names, refusals, roofline
from .cells import REACH, Key, key_of, median
from .interpolation import Curve, Field, Kernel, Point, PoolScales
from .intervals import MOST_HALF_WIDTH, Interval, Times
from .least_squares import robust
from .measurements import DisaggregatedRow, Row, layout_text
from .question import Look, Neighbor, Question, Refusal
from .roofline import Shape, speeds

ENOUGH_ROWS = 120  # a cell uses all its own rows, and others up to this number
FEW_ROWS = 40  # of an engine: with fewer, the factors of all engines are used
BUSIEST = 0.97  # quantile of the measured prefill rates that counts as the most a pool reaches
BUSY = 0.8  # share of that rate from which on the prefill servers limit
SHOWN = 3
# Scales of decode GPUs, GPUs of a decode server, ratio of prefill to decode GPUs, ISL and OSL; then
# of GPU, engine, precision, model, attention DP and drafting. Found by leaving out one layout after
# another.
TPOT = PoolScales(4.9, (12.0,) * 5, (0.16, 1.0, 0.63, 3.2, 0.54, 0.56), 0.35, 0.1, 0.04)
TTFT = PoolScales(3.1, (1.8, 12.0, 4.8, 8.0, 1.5), (0.16, 4.0, 2.6, 4.0, 0.16, 0.35), 0.8, 0.6, 0.1)
PROMISED = 0.84  # standard deviations of the one-sided 80 % bound of TPOT
LIKELY = 0.8  # of the estimated TTFT: what a choice compares with its limit
QUANTILES = 1.2, 1.7  # standard deviations of an 80 % interval, of TPOT and TTFT


class Pools(NamedTuple):
    """A question about prefill and decode servers, with the fields of `DisaggregatedRow`: `server`
    is one decode server with the load of all."""

    server: Question
    decode_workers: int
    prefill_workers: int
    prefill_tp: int
    prefill_attention_dp: int
    prefill_ep: int

    @property
    def prefill_server(self) -> Question:
        tp, attention_dp, ep = self[3:]
        return replace(self.server, tp=tp, attention_dp=attention_dp, ep=ep)

    @property
    def title(self) -> str:
        """Both sides in a few letters: 2 x DP4/EP4 + 1 x DP8/EP8."""
        sides = (self.prefill_workers, self[3:]), (self.decode_workers, self.server.layout)
        return " + ".join(f"{count} x {layout_text(*layout)}" for count, layout in sides)


Load = DisaggregatedRow | Pools


@dataclass(frozen=True, slots=True)
class PoolEstimate:
    """Times in ms and output tokens/s of all GPUs, with intervals.

    `prefill_use` is the prompt rate as a share of the most that measured prefill GPUs reached,
    `decode_use` the share of a request's time that it spends on decode servers.
    """

    question: Pools
    tpot_ms: Interval
    ttft_ms: Interval
    e2e_ms: Interval
    output_tok_s: Interval
    rows: int
    prefill_use: float
    decode_use: float
    look: Look = field(repr=False, compare=False)

    @property
    def nearest(self) -> tuple[Neighbor, ...]:
        return self.look()

    @property
    def tok_s_per_gpu(self) -> Interval:
        return self.output_tok_s.map(1 / num_gpus(self.question))

    @property
    def tok_s_per_user(self) -> Interval:
        return self.tpot_ms.inverse(1000)

    @property
    def limit(self) -> str:
        """The side that more GPUs would help."""
        return "prefill" if self.prefill_use >= BUSY else "decode"


def drafts(load: Load) -> str:
    """Whether a load drafts: "on", "off", or "" if that is unknown."""
    if load.server.mtp is not None:
        return "on" if load.server.mtp else "off"
    return load.server.drafting if isinstance(load, DisaggregatedRow) else ""


def prefill_gpus(load: Load) -> int:
    return (load.prefill_workers or 0) * load.prefill_tp * load.prefill_attention_dp


def decode_gpus(load: Load) -> int:
    return (load.decode_workers or 0) * load.server.num_gpus


def num_gpus(load: Load) -> int:
    return prefill_gpus(load) + decode_gpus(load)


@cache
def _shape(model: str) -> Shape:
    if (facts := names.facts_of(model)) is None:
        what = "the rows name a model without facts"
        raise BadFacts(Diagnostic(model, what, "add it to builder/data/models"))
    return roofline.shape_of(facts)


def _decode_server(load: Load) -> Row | Question:
    """A decode server under its share of the load."""
    one = load.server
    share = -(-one.concurrency // (load.decode_workers or 1))
    if isinstance(one, Row):
        return one._replace(concurrency=share)
    return replace(one, concurrency=share)


def _kv_share(load: Load) -> float:
    one = _decode_server(load)
    return roofline.kv_cache_share(one, _shape(one.model), one.gpu)


def is_known(row: DisaggregatedRow) -> bool:
    """Whether a measurement says what an estimate needs, and its servers can exist."""
    said = row.decode_workers and row.prefill_workers and row.server.ttft_ms and drafts(row)
    return bool(said) and _kv_share(row) < roofline.FULL


@cache
def known() -> Sequence[DisaggregatedRow]:
    """The shipped measurements that count."""
    return [row for row in measurements.read_disaggregated() if is_known(row)]


def _decode_terms(load: Load) -> tuple[float, ...]:
    """Terms of a decode step, without prompts in it; the last one is of several nodes."""
    one = _decode_server(load)
    terms = roofline.decode_terms(one, _shape(one.model), speeds(one.gpu, one.precision))
    mixed = roofline.DECODE_TERMS.index("mixed")
    nodes = terms[0] * log2(max(1.0, one.num_gpus / 8))
    return (*terms[:mixed], *terms[mixed + 1 :], nodes)


def _prompt_ms(load: Load) -> float:
    """Time of a prompt on all prefill GPUs at the speed of their arithmetic."""
    one, model = load.server, _shape(load.server.model)
    operations = 2 * model.active * one.isl + model.attention * one.isl**2
    return operations / speeds(one.gpu, one.precision).flops_per_ms / prefill_gpus(load)


def _first_terms(load: Load, tpot_ms: float, slower: float) -> tuple[float, ...]:
    """Terms of the time to the first token; `slower` is the least measured time of a prompt over
    that of the arithmetic."""
    one, each = load.server, _prompt_ms(load)
    alone = each * prefill_gpus(load) / load.prefill_tp
    wait = max(0.0, one.concurrency * each * slower - (one.osl - 1) * tpot_ms)
    return 1.0, alone, each * one.concurrency, each * sqrt(one.concurrency), wait, tpot_ms


def _point(load: Load) -> Point:
    one, gpus = load.server, decode_gpus(load)
    sizes = gpus, one.num_gpus, prefill_gpus(load) / gpus, one.isl, one.osl
    kinds = one.gpu, one.engine, one.precision, one.model, str(one.attention_dp > 1), drafts(load)
    return Point(Curve(tuple(map(log2, sizes)), kinds), log2(one.concurrency / gpus))


def _times(row: DisaggregatedRow) -> tuple[float, float]:
    assert row.server.ttft_ms is not None
    return row.server.tpot_ms, row.server.ttft_ms


def _rate(load: Load, tpot_ms: float, ttft_ms: float) -> float:
    """Requests per ms, by Little's law."""
    return load.server.concurrency / (ttft_ms + (load.server.osl - 1) * tpot_ms)


class _Fitted:
    """One time of requests: factors of its terms by engine, and the field of what is left."""

    def __init__(
        self,
        rows: Sequence[DisaggregatedRow],
        terms: Sequence[Sequence[float]],
        times: Sequence[float],
        used: Sequence[int],
        scales: PoolScales,
    ) -> None:
        self._factors: dict[str, list[float]] = {}
        for engine in {row.server.engine for row in rows}:
            own = [i for i, row in enumerate(rows) if row.server.engine == engine]
            own = own if len(own) >= FEW_ROWS else list(range(len(rows)))
            self._factors[engine] = robust([terms[i] for i in own], [times[i] for i in own])
        left = [log(times[i] / self._roofline(rows[i], terms[i])) for i in used]
        points = [_point(rows[i]) for i in used]
        self._field = Field(Kernel(scales), points, left, median(left))

    def _roofline(self, load: Load, terms: Sequence[float]) -> float:
        return max(1e-3, roofline.total(self._factors[load.server.engine], terms))

    def time(self, load: Load, terms: Sequence[float]) -> float:
        where = _point(load)
        (mean,) = self._field.means(where.curve, (where.concurrency,))
        return self._roofline(load, terms) * exp(mean)

    def deviation(self, load: Load) -> float:
        """Of the log of the time."""
        return self._field.at(_point(load))[1]


class PoolCell:
    """Computes the times of one model, GPU, precision and engine from rows of all."""

    def __init__(self, key: Key, rows: Sequence[DisaggregatedRow]) -> None:
        self.own = [row for row in rows if key_of(row.server) == key]

        def apart(index: int) -> float:
            kinds = zip(key_of(rows[index].server), key, strict=True)
            gpu, engine, precision, model, *_ = TPOT.kinds
            scales = model, gpu, precision, engine
            return sum(far for far, (one, other) in zip(scales, kinds, strict=True) if one != other)

        order = sorted(range(len(rows)), key=apart)
        used = order[: max(len(self.own), ENOUGH_ROWS)]
        busy: dict[tuple[str, str], list[float]] = {}
        for row in rows:
            rate = _rate(row, *_times(row)) * _prompt_ms(row)
            busy.setdefault((row.server.engine, row.server.precision), []).append(rate)
        self._slower = {kind: 1 / _quantile(rates, BUSIEST) for kind, rates in busy.items()}
        tpots, ttfts = zip(*map(_times, rows), strict=True)
        terms = [_decode_terms(row) for row in rows]
        self._tpot = _Fitted(rows, terms, tpots, used, TPOT)
        terms = [self._first(row, tpot) for row, tpot in zip(rows, tpots, strict=True)]
        self._ttft = _Fitted(rows, terms, ttfts, used, TTFT)

    def _slowness(self, load: Load) -> float:
        return self._slower[load.server.engine, load.server.precision]

    def _first(self, load: Load, tpot_ms: float) -> tuple[float, ...]:
        return _first_terms(load, tpot_ms, self._slowness(load))

    def values(self, asked: Load) -> tuple[float, float]:
        """TPOT and TTFT in ms."""
        tpot = self._tpot.time(asked, _decode_terms(asked))
        return tpot, self._ttft.time(asked, self._first(asked, tpot))

    def deviations(self, asked: Load) -> tuple[float, float]:
        return self._tpot.deviation(asked), self._ttft.deviation(asked)

    def estimate(self, asked: Pools) -> PoolEstimate:
        one = asked.server
        values, ends = self.values(asked), []
        for value, deviation, times in zip(values, self.deviations(asked), QUANTILES, strict=True):
            width = exp(times * deviation)
            ends.append(Interval(value / width, value, value * width))
        tpot, ttft = ends
        rest = tpot.map(one.osl - 1)
        times_ms = Times.of(ttft, rest, ttft.value + rest.value, one.osl)
        speed = times_ms.e2e.inverse(one.concurrency * one.osl * 1000)
        use = _rate(asked, *values) * _prompt_ms(asked) * self._slowness(asked)
        share = rest.value / times_ms.e2e.value
        look = cache(lambda: self.nearest(asked))
        return PoolEstimate(
            asked, tpot, ttft, times_ms.e2e, speed, len(self.own), min(use, 1.0), share, look
        )

    def nearest(self, asked: Load) -> tuple[Neighbor, ...]:
        kernel, (curve, load) = Kernel(TPOT), _point(asked)
        found = []
        for row in self.own:
            other = _point(row)
            far = kernel.apart(curve, other.curve) + kernel.slope * abs(load - other.concurrency)
            found.append(Neighbor(row, far))
        return tuple(nsmallest(SHOWN, found, key=lambda near: near.distance))

    def outside(self, asked: Pools) -> str:
        """Which size is outside the measured ones; empty if none is."""
        sizes: dict[str, Callable[[Load], float]] = {
            "concurrency": lambda load: load.server.concurrency,
            "isl": lambda load: load.server.isl,
            "osl": lambda load: load.server.osl,
            "GPUs of a decode server": lambda load: load.server.num_gpus,
            "decode GPUs": decode_gpus,
            "prefill GPUs": prefill_gpus,
        }
        for name, of in sizes.items():
            found = [of(row) for row in self.own]
            low, high, size = min(found), max(found), of(asked)
            if not low / REACH <= size <= high * REACH:
                return f"{name} {size:,} is outside the measured range {low:,} to {high:,}"
        return ""


def _quantile(values: Iterable[float], share: float) -> float:
    found = sorted(values)
    return found[round(share * (len(found) - 1))]


def cell_of(key: Key, rows: Sequence[DisaggregatedRow]) -> PoolCell | None:
    """A cell of some rows; `None` if none of them is in it."""
    return PoolCell(key, rows) if any(key_of(row.server) == key for row in rows) else None


@lru_cache(maxsize=16)
def cell(key: Key) -> PoolCell | None:
    """The same of the shipped measurements that count."""
    return cell_of(key, known())


def likely(found: PoolEstimate, tpot_ms: float, ttft_ms: float) -> bool:
    """Whether TPOT meets its limit at the promised end, and TTFT likely meets its own.

    TTFT has no promise: its errors are so large that one would cost half of the throughput.
    """
    tpot = found.tpot_ms
    promised = tpot.value * (tpot.high / tpot.value) ** (PROMISED / QUANTILES[0])
    return promised <= tpot_ms and found.ttft_ms.value * LIKELY <= ttft_ms


def in_row_names(asked: Pools) -> Pools:
    return asked._replace(server=names.in_row_names(asked.server))


def estimate(question: Pools) -> PoolEstimate | Refusal:
    """An estimate from the shipped measurements, or the reason why it is refused."""
    asked = in_row_names(question)
    key = key_of(asked.server)
    if (found := cell(key)) is None:
        what = "no measurements of prefill and decode servers with known drafting"
        return refuse(asked, "unmeasured", f"{what} for {key.model} {key.precision} on {key.gpu}")
    return estimate_in(found, asked)


def estimate_in(found: PoolCell, asked: Pools) -> PoolEstimate | Refusal:
    """The same from a cell."""
    if reason := refusals.impossible(asked.server) or refusals.impossible(asked.prefill_server):
        return refuse(asked, "layout", reason)
    if (full := _kv_share(asked)) == inf:
        return refuse(asked, "layout", "the weights do not fit on a decode server")
    look = cache(lambda: found.nearest(asked))
    reason = found.outside(asked)
    if not reason and full > roofline.FULL:
        reason = f"these requests need {full:.0%} of the KV cache of the decode servers"
    if reason:
        return refuse(asked, "outside", reason, look)
    if not (mode := drafts(asked)) or all(drafts(row) != mode for row in found.own):
        what = "with draft tokens" if mode == "on" else "without draft tokens"
        reason = f"no measurements {what}" if mode else "give mtp, the number of draft tokens or 0"
        return refuse(asked, "modes", reason, look)
    answer = found.estimate(asked)
    if (width := answer.e2e_ms.half_width) > MOST_HALF_WIDTH:
        what = f"the interval is too wide: {width:.0%} of the time to the last token"
        return refuse(asked, "wide", what, look)
    return answer


def refuse(asked: Pools, kind: str, reason: str, look: Look = tuple) -> Refusal:
    """A refusal with the loads to measure: the one asked about first, then half and twice."""
    load = asked.server.concurrency
    loads = dict.fromkeys((load, max(1, load // 2), load * 2))
    measure = tuple(replace(asked.server, concurrency=one) for one in loads)
    return Refusal(asked.server, kind, reason, measure, look)
