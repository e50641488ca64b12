"""Refusals: why a question has no answer, and which measurements would answer it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import exp, inf, log2

from ..facts import hardware
from . import names, roofline
from .cells import REACH, Cell, Drafting
from .interpolation import FAR, Kernel
from .measurements import DisaggregatedRow, Row
from .question import Question
from .roofline import FULL, Shape

BOARD = 8  # GPUs of the usual server: a layout of so many is estimated from smaller ones
MODES_APART = 1.2  # from here on, drafting or not is another answer
UNMARKED_APART = 1.5  # from here on, rows around a load are two modes that nobody marked
MEASUREMENTS = 4  # runs of some minutes each
LOADS = (1, 4, 16, 64, 256)


def impossible(asked: Question) -> str:
    """Why no server can have the layout of a question; its model has its name in the rows."""
    facts = names.facts_of(asked.model)
    heads = int(facts.text_config["num_attention_heads"]) if facts else 0
    experts = names.experts_of(facts) if facts else 0
    if heads % asked.tp:
        return f"{heads} attention heads cannot be shared by {asked.tp} GPUs"
    if asked.num_gpus % asked.ep:
        return f"{asked.num_gpus} GPUs cannot be shared by EP {asked.ep}"
    if experts % asked.ep:
        return f"{experts} experts cannot be shared by EP {asked.ep}"
    return ""


def doubt(asked: Question, cell: Cell, draft: Drafting) -> tuple[str, str] | None:
    """The kind and the reason of the first refusal that needs no interval, if there is one."""
    has_run = cell.has_run(asked.layout)
    full = 0.0 if has_run else roofline.kv_cache_share(asked, cell.shape, asked.gpu)
    if full == inf:
        return (
            "layout",
            f"the weights leave no room for a KV cache on {asked.num_gpus} {asked.gpu}",
        )
    if reason := outside(asked, cell, full):
        return "outside", reason
    if draft.missing:
        return "acceptance", draft.missing
    reason = two_modes(asked, cell, draft)
    return ("modes", reason) if reason else None


def outside(asked: Question, cell: Cell, full: float) -> str:
    """Which load, length or number of GPUs is outside the measured range; or that requests wait, as
    they need the share `full` of the KV cache."""
    for name in ("concurrency", "isl", "osl"):
        low, high = cell.ends(name)
        least = low if name == "concurrency" else max(1, low // REACH)
        size = getattr(asked, name)
        if not (least <= size <= high * REACH and (name != "osl" or size > 1)):
            return f"{name} {size:,} is outside the measured range {low:,} to {high:,}"
    most = max(row.num_gpus for row in cell.own)
    joined = hardware.load(asked.gpu).nvlink_domain_gpus.value
    if asked.num_gpus > max(most, min(max(most * REACH, BOARD), joined)):
        return f"a server of {asked.num_gpus} GPUs is larger than the measured ones (up to {most})"
    if full > FULL:
        return (
            f"these requests need {full:.0%} of the KV cache of {asked.num_gpus} {asked.gpu}: "
            "some wait, and no measurement tells how long"
        )
    return ""


def two_modes(asked: Question, cell: Cell, draft: Drafting) -> str:
    """Why the rows give two answers to one question, if they do."""
    if draft.is_open:
        apart = cell.spread(asked, draft.curve).times(asked.osl).e2e.value
        apart /= cell.spread(asked, "on").times(asked.osl).e2e.value
        if max(apart, 1 / apart) > MODES_APART:
            return (
                "the measurements have two modes, with and without draft tokens (MTP), "
                f"{apart:.1f} times apart: give mtp, the number of draft tokens or 0"
            )
    if (apart := cell.modes_apart(asked, draft.curve)) > UNMARKED_APART:
        return (
            f"measurements of this curve around that load are {apart:.1f} times apart "
            "for an unknown reason"
        )
    if row := cell.contradicted(asked):
        return f"a measurement nearby contradicts all others: {row.describe()}"
    return ""


@cache
def _shape(model: str) -> Shape | None:
    facts = names.facts_of(model)
    return roofline.shape_of(facts) if facts else None


def floor_ms(asked: Question) -> dict[str, float] | None:
    """The least times that peak arithmetic and bandwidth allow a request alone on its GPUs, by the
    names of targets; `None` for a model of unknown shape. Every draft token is taken."""
    model = _shape(asked.model)
    if model is None or asked.precision not in roofline.WEIGHT_BYTES:
        return None
    gpu = roofline.speeds(asked.gpu, asked.precision)
    first, step = roofline.least_ms(replace(asked, concurrency=1), model, gpu)
    each = step / (1 + (asked.mtp or 0))
    return {"ttft_ms": first, "itl_ms": each, "e2e_ms": first + (asked.osl - 1) * each}


def unused_text(unused: Sequence[Row | DisaggregatedRow], gpu: str) -> str:
    """The measurements of a model that no estimate uses, as text."""
    few = sum(isinstance(row, Row) for row in unused)
    apart = len(unused) - few
    parts = [f"{few} that are too few of their kind"] if few else []
    parts += [f"{apart} of separate prefill and decode servers"] if apart else []
    here = all(row.server.gpu == gpu for row in unused)
    return f", only {' and '.join(parts)}{'' if here else ' on other GPUs'}"


def measurements(question: Question, kernel: Kernel) -> tuple[Question, ...]:
    """Loads of the deployment to measure: that of the question, then the most informative ones.

    Each is the one that reduces the variance over all loads most, after those before it.
    """
    loads = sorted({*LOADS, question.concurrency})
    unknown = _covariances(kernel, loads)
    left = list(range(len(loads)))
    chosen: list[int] = []
    while left and len(chosen) < MEASUREMENTS:
        gains = [_gain(unknown, index, kernel) for index in range(len(loads))]
        asked = loads.index(question.concurrency)
        best = max(left, key=gains.__getitem__) if chosen else asked
        left.remove(best)
        chosen.append(loads[best])
        unknown = _after(unknown, best, kernel)
    return tuple(replace(question, concurrency=load) for load in chosen)


def command(isl: int, osl: int, loads: Sequence[int]) -> str:
    """The command that measures loads of a bundle, in their order."""
    concurrency = ",".join(map(str, loads))
    sizes = f"--isl {isl} --osl {osl} --concurrency {concurrency}"
    return f"python -m launch bench BUNDLE {sizes}"


def _covariances(kernel: Kernel, loads: Sequence[int]) -> list[list[float]]:
    """Covariances between the loads of one curve without any measurement."""

    def covariance(one: int, other: int) -> float:
        distance = kernel.slope * abs(log2(one / other))
        return kernel.far * exp(-distance / FAR) + kernel.near * exp(-distance)

    return [[covariance(load, other) for other in loads] for load in loads]


def _gain(unknown: Sequence[Sequence[float]], index: int, kernel: Kernel) -> float:
    """How much a measurement there lowers the variances of all loads."""
    measured = unknown[index][index] + kernel.scales.noise**2
    return sum(cell**2 for cell in unknown[index]) / measured


def _after(unknown: Sequence[Sequence[float]], index: int, kernel: Kernel) -> list[list[float]]:
    """The covariances once that load is measured."""
    row, measured = unknown[index], unknown[index][index] + kernel.scales.noise**2
    return [
        [cell - row[i] * row[j] / measured for j, cell in enumerate(line)]
        for i, line in enumerate(unknown)
    ]
