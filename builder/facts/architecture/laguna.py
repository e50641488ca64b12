"""Laguna of Poolside: windows in most layers, which have more heads than the others, and a gate on
the attention's output.

Names and shapes: laguna of Hugging Face transformers 5.23 with its table of published names.
"""

from __future__ import annotations

from .fields import Config
from .grouped_query import Decoder
from .mixtures import Experts
from .tensors import COMMON, GQA, Architecture, Layers, Tensors, head_dim, linear, qk_norms


def _is_dense(config: Config, layer: int) -> bool:
    """Layers are listed by kind or by number, or the first one is dense."""
    kinds, only = config.get("mlp_layer_types"), config.get("mlp_only_layers")
    if isinstance(kinds, list):
        return bool(kinds[layer] == "dense")
    return layer in only if isinstance(only, list) else layer == 0


_DECODER = Decoder(
    bias="none",
    mlps=Experts(
        "num_experts",
        score="experts.e_score_correction_bias",
        shared="shared_expert",
        shared_width=lambda config: int(config.get("shared_expert_intermediate_size", 0)),
        is_dense=_is_dense,
    ),
)


def _layers_by_heads(config: Config) -> dict[int, Layers]:
    every, listed = range(config["num_hidden_layers"]), config.get("num_attention_heads_per_layer")
    heads = [listed[i] if listed else config["num_attention_heads"] for i in every]
    return {count: tuple(i for i in every if heads[i] == count) for count in dict.fromkeys(heads)}


def _gate_width(config: Config, heads: int) -> int:
    """Channels of the gate: one of a head, or one of every channel of a head; 0 without a gate."""
    gating = config.get("gating", True)
    return (heads * head_dim(config) if gating == "per-element" else heads) if gating else 0


def _laguna(config: Config) -> list[Tensors]:
    layer, hidden, width = "model.layers.{layer}", config["hidden_size"], head_dim(config)
    module, key = f"{layer}.self_attn", config["num_key_value_heads"] * width
    every = tuple(range(config["num_hidden_layers"]))
    tensors = [
        *_DECODER.without_attention(config),
        linear(f"{module}.k_proj", key, hidden, "attention", every),
        linear(f"{module}.v_proj", key, hidden, "attention", every),
        *qk_norms(layer, width, width, every),
    ]
    for heads, layers in _layers_by_heads(config).items():
        tensors += [
            linear(f"{module}.q_proj", heads * width, hidden, "attention", layers),
            linear(f"{module}.o_proj", hidden, heads * width, "attention", layers),
        ]
        if gate := _gate_width(config, heads):
            tensors.append(linear(f"{module}.g_proj", gate, hidden, "attention", layers))
    return tensors


ROWS = (
    Architecture(
        "LagunaForCausalLM",
        "gqa_window",
        (
            *(*COMMON, *GQA, "head_dim", "intermediate_size"),
            *("moe_intermediate_size", "num_experts", "num_experts_per_tok"),
        ),
        _laguna,
        experts_field="num_experts",
    ),
)
