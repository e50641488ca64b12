"""A question about the speed of a deployment, and its answer: an estimate or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .intervals import Interval
from .measurements import OWN, DisaggregatedRow, Layout, Row


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

    @property
    def layout(self) -> Layout:
        return self.tp, self.attention_dp, self.ep


def rows_text(count: int) -> str:
    return f"{count} measurement" if count == 1 else f"{count} measurements"


@dataclass(frozen=True, slots=True)
class Neighbor:
    """A row near a question, and its distance: 0 for the same point."""

    row: Row | DisaggregatedRow
    distance: float

    def __str__(self) -> str:
        is_own = self.row.server.source == OWN
        return f"yours: {self.row.describe()}" if is_own else self.row.describe()


# Finds the rows to show with an answer, which takes longer than most answers.
Look = Callable[[], tuple[Neighbor, ...]]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Times in ms and output tokens/s of all GPUs together, with their intervals.

    `rows` is the number of rows behind it and `nearest` the closest of them. `notes` tell what was
    read differently, and what was assumed.
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
        """Output tokens/s of one request after its first token."""
        return self.tpot_ms.inverse(1000)

    @property
    def tok_s_per_gpu(self) -> Interval:
        return self.output_tok_s.map(1 / self.question.num_gpus)

    def usd_per_million_tokens(self, usd_per_gpu_hour: float) -> Interval:
        """Cost of a million output tokens while the load lasts."""
        return self.tok_s_per_gpu.inverse(usd_per_gpu_hour / 3600 * 1e6)


LIFTS = {
    "unmeasured": "measure it",
    "layout": "choose a layout that divides heads and experts, or more GPUs",
    "outside": "ask inside the measured range, or measure it",
    "acceptance": "give the acceptance length",
    "modes": "give mtp, or measure it",
    "wide": "measure it",
}


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

    @property
    def lift(self) -> str:
        """What would give an answer."""
        return LIFTS[self.kind]
