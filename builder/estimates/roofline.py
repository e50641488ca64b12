"""Times that physics asks for: terms of a decode step and of the first token, in milliseconds.

Each term rises with load, context and bytes and falls with bandwidth, and their factors, fitted to
the rows by `maintenance.fit_estimates`, are not negative: so does the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, log2, sqrt
from operator import mul
from typing import NamedTuple, Protocol

from .shapes import WEIGHT_BYTES, Shape, Speeds

DECODE_TERMS = ("step", "sync", "weights", "kv", "flops", "mixed", "comm", "per_seq")
FIRST_TERMS = (
    *("step", "sync", "weights", "prompt", "few_prompts", "some_prompts", "all_prompts", "mixed"),
    "waiting",
)


class Load(Protocol):
    """A row or a question."""

    @property
    def precision(self) -> str: ...
    @property
    def tp(self) -> int: ...
    @property
    def attention_dp(self) -> int: ...
    @property
    def ep(self) -> int: ...
    @property
    def isl(self) -> int: ...
    @property
    def osl(self) -> int: ...
    @property
    def concurrency(self) -> int: ...


class _Terms(NamedTuple):
    step: float
    sync: float
    weights: float
    kv: float
    flops: float
    prompt: float
    mixed: float
    comm: float
    per_seq: float


def _terms(load: Load, model: Shape, gpu: Speeds, tokens: int = 1) -> _Terms:
    """`tokens` of each request go through a step: with drafts, more than one."""
    tp, concurrency, isl, osl = load.tp, load.concurrency, load.isl, load.osl
    gpus = tp * load.attention_dp
    weight_bytes = WEIGHT_BYTES[load.precision]
    per_rank = concurrency / load.attention_dp
    context = isl + osl / 2
    layers = model.layers / 61
    weights = model.dense / tp + model.routed * model.touched(concurrency * tokens) / gpus
    kv = per_rank * context * model.kv_values * (1.0 if model.is_latent else 1 / tp)
    active = 2 * model.active / gpus
    prompt = (active * isl + model.attention * isl**2 / gpus) / gpu.flops_per_ms
    traffic = model.layers * per_rank * tokens * 7168 * 2 * (gpus > 1) / gpu.bytes_per_ms
    decode = (active * concurrency + 2 * per_rank * context * model.attention / tp) * tokens
    return _Terms(
        step=layers,
        sync=layers * log2(gpus),
        weights=weights * weight_bytes / gpu.bytes_per_ms,
        kv=kv / gpu.bytes_per_ms,
        flops=decode / gpu.flops_per_ms,
        prompt=prompt,
        mixed=concurrency * prompt,
        comm=traffic,
        per_seq=per_rank / 64,
    )


def decode_terms(load: Load, model: Shape, gpu: Speeds, draft_tokens: int = 0) -> tuple[float, ...]:
    """Of a step, the time per output token without drafts; prompts are worked on beside."""
    t = _terms(load, model, gpu, 1 + draft_tokens)
    osl = load.osl
    mixed, comm = t.mixed / osl, t.comm * (1 + load.isl / osl)
    return t.step, t.sync, t.weights, t.kv, t.flops, mixed, comm, t.per_seq


def first_terms(load: Load, model: Shape, gpu: Speeds) -> tuple[float, ...]:
    """Terms of the time to the first token: its prompt, the prompts before it, the current step."""
    t = _terms(load, model, gpu)
    per_rank, few = load.concurrency / load.attention_dp, min(load.concurrency, 4)
    return (
        *(t.step, t.sync, t.weights, t.prompt, t.prompt * few),
        *(t.prompt * sqrt(load.concurrency), t.prompt * per_rank, t.mixed / load.osl),
        t.kv + t.per_seq,
    )


def total(factors: Sequence[float], terms: Sequence[float]) -> float:
    return fsum(map(mul, factors, terms))
