"""Outcomes of starts: what each measured, or how it failed and which candidates that rules out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .candidates import Candidate

Kind = Literal[
    "measured",
    "memory_at_load",  # out of memory while the weights are loaded
    "memory_at_graphs",  # out of memory later: KV cache, warm-up, CUDA graphs
    "refused_option",  # the engine refuses `Outcome.option`
    "timeout",
    "died_under_load",
    "wrong_answer",
    "unknown",
]
_OUT_OF_MEMORY = ("memory_at_load", "memory_at_graphs")
_TRIED_AGAIN = ("timeout", "unknown")  # once


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """One measured load of one server: times in ms at the percentile of the limits, or the median
    without limits; output tokens/s of all its GPUs together."""

    concurrency: int
    ttft_ms: float
    tpot_ms: float
    output_tok_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the start of a candidate ended. `option` is the path of the refused option, if the
    diagnosis names it."""

    candidate: str
    kind: Kind
    loads: tuple[MeasuredLoad, ...] = ()
    gpu_hours: float = 0.0
    option: str = ""


def ruled_out(
    candidates: Mapping[str, Candidate], outcomes: Sequence[Outcome]
) -> Mapping[str, str]:
    """Candidates that no start can use any more, by id, with the reason.

    `candidates` has every candidate of the outcomes.
    """
    found: dict[str, str] = {}
    for number, outcome in enumerate(outcomes):
        failed = candidates[outcome.candidate]
        if not _is_open(outcomes[: number + 1]):
            found.setdefault(failed.id, outcome.kind)
        for other, reason in _also(failed, outcome, candidates.values()):
            found.setdefault(other, reason)
    return found


def _is_open(outcomes: Sequence[Outcome]) -> bool:
    """Whether the last candidate gets a second start."""
    last = outcomes[-1]
    before = [row.kind for row in outcomes[:-1] if row.candidate == last.candidate]
    return last.kind in _TRIED_AGAIN and not before


def _also(
    failed: Candidate, outcome: Outcome, candidates: Iterable[Candidate]
) -> Iterator[tuple[str, str]]:
    """Every candidate that fails for the same reason."""
    refused = failed.options.get(outcome.option)
    for other in candidates:
        needs_more = other.used_gib >= failed.used_gib
        if outcome.kind == "memory_at_graphs":
            needs_more &= other.kv_share >= failed.kv_share
        if outcome.kind in _OUT_OF_MEMORY and needs_more:
            yield other.id, f"needs at least the memory of {failed.title}, which ran out of it"
        is_refused = outcome.kind == "refused_option" and refused is not None
        if is_refused and other.options.get(outcome.option) == refused:
            yield other.id, f"the engine refuses {outcome.option}: {refused}"


def to_repeat(outcomes: Sequence[Outcome]) -> str | None:
    """The candidate that timed out at its first start and gets twice the time now."""
    if outcomes and outcomes[-1].kind == "timeout" and _is_open(outcomes):
        return outcomes[-1].candidate
    return None


def ended_unknown(outcomes: Sequence[Outcome]) -> bool:
    """Whether the last two starts failed for unknown reasons: then the machine is suspect."""
    return [row.kind for row in outcomes[-2:]] == ["unknown", "unknown"]
