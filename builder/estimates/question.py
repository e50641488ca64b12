"""What is asked of the measured rows, and the two kinds of answer: an estimate or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, hypot, log

from .measurements import OWN, DisaggregatedRow, Row


@dataclass(frozen=True, slots=True)
class Question:
    """How fast is this deployment of one engine on one pool of GPUs under this load?

    `model` is the name of a checkpoint, in whatever precision; `precision` is that of its weights
    (`measurements.PRECISIONS`). `tp` GPUs share the attention of a request and `attention_dp` such
    groups take requests in turn, so that the pool has `tp` times `attention_dp` GPUs; `ep` of them
    share the routed experts as a whole. `isl` and `osl` are tokens of a prompt and of an answer,
    `concurrency` is requests at a time over the whole pool. `mtp` is the number of draft tokens of
    a step, `None` where it is not said; `acceptance` the tokens that a step gives with them, the
    target model's own among them.
    """

    model: str
    gpu: str
    precision: str
    engine: str
    tp: int
    ep: int
    attention_dp: int
    isl: int
    osl: int
    concurrency: int
    release: str | None = None
    mtp: int | None = None
    acceptance: float | None = None

    @property
    def num_gpus(self) -> int:
        return self.tp * self.attention_dp


def number(value: float) -> str:
    """Three digits, and no more decimals than that."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def rows_text(count: int) -> str:
    return f"{count} measured row" if count == 1 else f"{count} measured rows"


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the ends of its 80 % interval."""

    low: float
    value: float
    high: float

    def __str__(self) -> str:
        return f"{number(self.value)} ({number(self.low)} to {number(self.high)})"

    def map(self, factor: float) -> Interval:
        """The interval of the value times a factor above zero."""
        return Interval(self.low * factor, self.value * factor, self.high * factor)

    def inverse(self, amount: float) -> Interval:
        """The interval of an amount over the value."""
        return Interval(amount / self.high, amount / self.value, amount / self.low)

    @property
    def half_width(self) -> float:
        """The larger of both sides as a share of the value."""
        return max(self.high / self.value - 1, 1 - self.low / self.value)


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of a request: of an output token after the first, to the first, to the last."""

    tpot: Interval
    ttft: Interval
    e2e: Interval

    @classmethod
    def of(cls, first: Interval, rest: Interval, whole_ms: float, osl: int) -> Times:
        """Of the time to the first token and that of all others, whose errors are independent."""
        low = hypot(first.value - first.low, rest.value - rest.low)
        high = hypot(first.high - first.value, rest.high - rest.value)
        whole = Interval(whole_ms - low, whole_ms, whole_ms + high)
        return cls(rest.map(1 / (osl - 1)), first, whole)

    def drafted(self, gain: Interval) -> Times:
        """The same with drafts, which divide the time per output token by a gain."""
        tpot = self.tpot
        value = tpot.value / gain.value
        low = value * exp(-hypot(log(tpot.value / tpot.low), log(gain.high / gain.value)))
        high = value * exp(hypot(log(tpot.high / tpot.value), log(gain.value / gain.low)))
        others = (self.e2e.value - self.ttft.value) / tpot.value
        rest = Interval(low, value, high).map(others)
        found = Times.of(self.ttft, rest, self.ttft.value + rest.value, 2)
        return Times(Interval(low, value, high), found.ttft, found.e2e)


@dataclass(frozen=True, slots=True)
class Neighbor:
    """A measured row beside a question, and how far it is: 0 is the same point."""

    row: Row | DisaggregatedRow
    distance: float

    def __str__(self) -> str:
        is_own = self.row.server.source == OWN
        return f"yours: {self.row.describe()}" if is_own else self.row.describe()


# Looks for the rows that an answer names, which takes longer than most answers.
Look = Callable[[], tuple[Neighbor, ...]]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Times in milliseconds and output tokens a second of all GPUs together, with their intervals.

    `rows` counts the measured rows that carry it and `nearest` has the first of them. `notes` say
    what was read otherwise than it was asked, and what was assumed.
    """

    question: Question
    tpot_ms: Interval
    ttft_ms: Interval
    e2e_ms: Interval
    output_tok_s: Interval
    rows: int
    look: Look = field(repr=False, compare=False)
    notes: tuple[str, ...] = ()

    @property
    def nearest(self) -> tuple[Neighbor, ...]:
        return self.look()

    @property
    def tok_s_per_user(self) -> Interval:
        """Output tokens a second that one request sees after its first token."""
        return self.tpot_ms.inverse(1000)

    @property
    def tok_s_per_gpu(self) -> Interval:
        return self.output_tok_s.map(1 / self.question.num_gpus)

    def usd_per_million_tokens(self, usd_per_gpu_hour: float) -> Interval:
        """Cost of a million output tokens while the load lasts."""
        return self.tok_s_per_gpu.inverse(usd_per_gpu_hour / 3600 * 1e6)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no number, the nearest rows, and what to measure on the user's GPUs.

    `kind` is one of unmeasured, layout, outside, acceptance, modes and wide: the first that
    applies.
    `measure` holds the measurements that would answer, the one that tells most first.
    """

    question: Question
    kind: str
    reason: str
    measure: tuple[Question, ...]
    look: Look = field(default=tuple, repr=False, compare=False)
    notes: tuple[str, ...] = ()

    @property
    def nearest(self) -> tuple[Neighbor, ...]:
        return self.look()
