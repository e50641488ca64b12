"""A model's shape and a GPU's speeds, as the roofline reads them from the facts."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ..facts import hardware
from ..facts.architecture import Config
from ..facts.checkpoint import Checkpoint

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
        """The share of the routed experts that a step with so many tokens reads."""
        return 1.0 - float((1.0 - self.experts_per_token / self.experts) ** tokens)


class Speeds(NamedTuple):
    """Of a GPU: bytes of its memory and floating-point operations in a millisecond."""

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
    """Of the layers without a sliding window, which may have heads of their own."""
    config, architecture = facts.text_config, facts.architecture
    heads, kinds = architecture.key_value_heads(config), config.get("layer_types")
    if architecture.cached_heads is None or not kinds:
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
    """The speeds of a GPU with weights of a precision: where it has no arithmetic of that one,
    weights are unpacked to the next."""
    facts = hardware.load(gpu)
    flops = facts.tflops_dense.value
    order = (*_ARITHMETIC.get(precision, ()), "bf16")
    tflops = next(value for name in order if (value := flops.get(name)))  # type: ignore[call-overload]
    return Speeds(facts.hbm_bandwidth_gb_per_s.value * 1e6, tflops * 1e9)
