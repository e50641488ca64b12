"""The roofline: times that physics asks for, from a model's shape and a GPU's speeds.

Each term of a decode step and of the first token rises with load, context and bytes and falls with
bandwidth. Their factors, fitted to the rows by `maintenance.fit_estimates`, are not negative: so
the sum does too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import fsum, inf, log2, sqrt
from operator import mul
from typing import NamedTuple

from ..facts import hardware
from ..facts.architecture import Config
from ..facts.checkpoint import Checkpoint
from .measurements import Row
from .question import Question

Load = Row | Question

USABLE = 0.9  # of a GPU's memory, for weights and KV cache: engines leave that much
KV_VALUE_BYTES = 1.0  # FP8; where it is wider, fewer requests fit
FULL = 0.8  # of the KV cache: from here on, measured requests wait
DECODE_TERMS = ("step", "sync", "weights", "kv", "flops", "mixed", "comm", "per_seq")
FIRST_TERMS = (
    *("step", "sync", "weights", "prompt", "few_prompts", "some_prompts", "all_prompts", "mixed"),
    "waiting",
)

# Bytes of a weight with the scales of its block.
WEIGHT_BYTES = {
    "bf16": 2.0,
    **dict.fromkeys(("fp8", "int8", "w8a16"), 1.0),
    "fp4": 0.5625,
    **dict.fromkeys(("int4", "w4a8"), 0.53),
}
# The precisions that multiply them, best first; a GPU without any of them uses BF16.
_ARITHMETIC = {"fp4": ("fp4", "fp8"), "fp8": ("fp8",), "w4a8": ("fp8",), "int8": ("int8",)}

_ROUTED = frozenset({"routed_expert"})
_UNTOUCHED = frozenset({"embedding"})  # a step reads a few rows of it


class Shape(NamedTuple):
    """Layers; parameters that every token meets, without the routed experts, and those of all
    routed experts; experts of a layer, and how many of them a token takes; values that a token
    keeps in the KV cache over all layers, whether latent attention has every rank keep all of them,
    and multiplications of one token with one other in all attention layers."""

    layers: int
    dense: float
    routed: float
    experts: int
    experts_per_token: int
    kv_values: float
    is_latent: bool
    attention: float

    @property
    def active(self) -> float:
        return self.dense + self.routed * self.experts_per_token / self.experts

    def touched(self, tokens: float) -> float:
        """The share of the routed experts that a step with `tokens` tokens reads."""
        return 1.0 - float((1.0 - self.experts_per_token / self.experts) ** tokens)


class Speeds(NamedTuple):
    """Memory bytes and floating-point operations of a GPU per millisecond."""

    bytes_per_ms: float
    flops_per_ms: float


def shape_of(facts: Checkpoint) -> Shape:
    """The shape of a checkpoint, without its MTP layers."""
    config, architecture = facts.text_config, facts.architecture
    by_role: dict[str, float] = {}
    for tensors in architecture.tensors(config):
        if not tensors.mtp:
            by_role[tensors.role] = by_role.get(tensors.role, 0.0) + tensors.parameters
    routed = sum(by_role.get(role, 0.0) for role in _ROUTED)
    dense = sum(count for role, count in by_role.items() if role not in _ROUTED | _UNTOUCHED)
    layers = architecture.attention_layers(config)
    experts = int(config.get("num_experts") or 1) if routed else 1
    heads, size = _heads(config)
    is_latent = "kv_lora_rank" in config
    values = (
        layers * (config["kv_lora_rank"] + config["qk_rope_head_dim"]) * _window_share(config)
        if is_latent
        else _grouped_values(facts)
    )
    return Shape(
        layers=int(config["num_hidden_layers"]),
        dense=dense,
        routed=routed,
        experts=experts,
        experts_per_token=int(config.get("num_experts_per_tok") or 1) if routed else 1,
        kv_values=values,
        is_latent=is_latent,
        attention=2.0 * layers * heads * size,
    )


def _heads(config: Config) -> tuple[int, int]:
    heads = int(config["num_attention_heads"])
    if "qk_nope_head_dim" in config:
        return heads, int(config["qk_nope_head_dim"]) + int(config["qk_rope_head_dim"])
    return heads, int(config.get("head_dim") or config["hidden_size"] // heads)


def _grouped_values(facts: Checkpoint) -> float:
    """KV values per token of the layers without a sliding window, whose heads may differ."""
    config, architecture = facts.text_config, facts.architecture
    heads, kinds = architecture.key_value_heads(config), config.get("layer_types")
    if architecture.code.cached_heads is None or not kinds:
        return sum(2 * count * width for count, width in heads) * _window_share(config)
    layers = zip(heads, kinds, strict=False)  # the last ones may use the cache of others
    return sum(
        2.0 * count * width for (count, width), kind in layers if kind != "sliding_attention"
    )


def _window_share(config: Config) -> float:
    """The share of the layers that keep the whole context where others have a sliding window."""
    kinds = config.get("layer_types") or ()
    windowed = sum(kind == "sliding_attention" for kind in kinds)
    return 1.0 - windowed / len(kinds) if windowed else 1.0


@cache
def speeds(gpu: str, precision: str) -> Speeds:
    """The speeds of a GPU with weights of a precision; without arithmetic for it, weights are
    converted to the next precision."""
    facts = hardware.load(gpu)
    flops = facts.tflops_dense.value
    order = (*_ARITHMETIC.get(precision, ()), "bf16")
    tflops = next(value for name in order if (value := flops.get(name)))  # type: ignore[call-overload]
    return Speeds(facts.hbm_bandwidth_gb_per_s.value * 1e6, tflops * 1e9)


def _per_step(
    load: Load, model: Shape, gpu: Speeds, tokens: int = 1
) -> tuple[float, float, float, float, float]:
    """Layers as a share of DeepSeek's, the same times the doublings of ranks, milliseconds of the
    weights and of the KV cache, and of a prompt. `tokens` of each request are in a step."""
    gpus, layers = load.num_gpus, model.layers / 61
    per_rank = load.concurrency / load.attention_dp
    weights = model.dense / load.tp + model.routed * model.touched(load.concurrency * tokens) / gpus
    kv = per_rank * _context(load) * model.kv_values * (1.0 if model.is_latent else 1 / load.tp)
    prompt = 2 * model.active / gpus * load.isl + model.attention * load.isl**2 / gpus
    weights_ms = weights * WEIGHT_BYTES[load.precision] / gpu.bytes_per_ms
    kv_ms, prompt_ms = kv / gpu.bytes_per_ms, prompt / gpu.flops_per_ms
    return layers, layers * log2(gpus), weights_ms, kv_ms, prompt_ms


def _context(load: Load) -> float:
    """The tokens of a request half way through its answer."""
    return load.isl + load.osl / 2


def decode_terms(load: Load, model: Shape, gpu: Speeds, draft_tokens: int = 0) -> tuple[float, ...]:
    """Terms of a decode step, the time per output token without drafts; prompts run along."""
    tokens, osl, gpus = 1 + draft_tokens, load.osl, load.num_gpus
    step, sync, weights, kv, prompt = _per_step(load, model, gpu, tokens)
    per_rank, active = load.concurrency / load.attention_dp, 2 * model.active / gpus
    attention = 2 * per_rank * _context(load) * model.attention / load.tp
    flops = (active * load.concurrency + attention) * tokens / gpu.flops_per_ms
    comm = model.layers * per_rank * tokens * 7168 * 2 * (gpus > 1) / gpu.bytes_per_ms
    mixed = load.concurrency * prompt / osl
    return step, sync, weights, kv, flops, mixed, comm * (1 + load.isl / osl), per_rank / 64


def first_terms(load: Load, model: Shape, gpu: Speeds) -> tuple[float, ...]:
    """Terms of the time to the first token: its prompt, the prompts before it, the current step."""
    step, sync, weights, kv, prompt = _per_step(load, model, gpu)
    per_rank, concurrency = load.concurrency / load.attention_dp, load.concurrency
    return (
        *(step, sync, weights, prompt, prompt * min(concurrency, 4)),
        *(prompt * sqrt(concurrency), prompt * per_rank, concurrency * prompt / load.osl),
        kv + per_rank / 64,
    )


def least_ms(load: Load, model: Shape, gpu: Speeds) -> tuple[float, float]:
    """What no software is faster than: the products of a new prompt with the weights, and reading
    the weights once for a step."""
    _, _, weights, _, _ = _per_step(load, model, gpu)
    return max(2 * model.active / load.num_gpus * load.isl / gpu.flops_per_ms, weights), weights


def total(factors: Sequence[float], terms: Sequence[float]) -> float:
    return fsum(map(mul, factors, terms))


def kv_cache_share(load: Load, model: Shape, gpu: str) -> float:
    """The share of the KV cache that all requests need half way through their answers; infinite if
    the weights leave no room.

    Beyond `FULL` requests wait for others to end: the time to the first token is then that of the
    queue, many times that of the prompt, and the rows cannot predict it.
    """
    weights = model.dense / load.tp + model.routed / (load.tp * load.attention_dp)
    free = USABLE * _memory_bytes(gpu) - weights * WEIGHT_BYTES[load.precision]
    values = model.kv_values * (1.0 if model.is_latent else 1 / load.tp)
    kv = load.concurrency / load.attention_dp * _context(load) * values * KV_VALUE_BYTES
    return kv / free if free > 0 else inf


@cache
def _memory_bytes(gpu: str) -> float:
    return hardware.load(gpu).memory_nominal_gb.value * 1e9
