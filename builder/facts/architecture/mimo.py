"""MiMo-V2 of Xiaomi: windows in most layers, with heads of their own, and values that are narrower
than keys.

Names and shapes: mimo_v2_flash of Hugging Face transformers 5.23 with its table of published names;
of V2.5 and V2.6 the weights that vLLM (model_executor/models/mimo_v2.py) and radixark/miles
(tools/convert_mimo_v2_to_bf16.py) read. The three layers for multi-token prediction, which not
every file counts, and the towers for pictures and sound are left out.
"""

from __future__ import annotations

from dataclasses import replace

from .fields import Config, layer_kinds
from .grouped_query import Decoder
from .mixtures import Experts, shared_width
from .tensors import COMMON, GQA, Architecture, Layers, Tensors, linear

_PERIOD = 6  # every sixth layer and the first see all tokens, where the file does not list them


def _is_windowed(config: Config, layer: int) -> bool:
    kinds, listed = layer_kinds(config), config.get("hybrid_layer_pattern")
    if kinds:
        return kinds[layer] == "sliding_attention"
    if isinstance(listed, list):
        return bool(listed[layer])
    return layer != 0 and (layer + 1) % _PERIOD != 0


def _is_dense(config: Config, layer: int) -> bool:
    kinds, listed = config.get("mlp_layer_types"), config.get("moe_layer_freq")
    if isinstance(kinds, list):
        return bool(kinds[layer] == "dense")
    return not listed[layer] if isinstance(listed, list) else layer == 0


def _sizes(config: Config, windowed: bool) -> tuple[int, int, int, int]:
    """Heads, key-value heads, and the channels of a key and of a value, of the layers of a kind."""

    def size(name: str, otherwise: int) -> int:
        own = config.get(f"swa_{name}") if windowed else config.get(name)
        return int(own or otherwise)

    heads = size("num_attention_heads", config["num_attention_heads"])
    keys = size("num_key_value_heads", config["num_key_value_heads"])
    width = size("head_dim", config["head_dim"])
    return heads, keys, width, size("v_head_dim", config.get("v_head_dim") or width)


def _attention(layer: str, config: Config, layers: Layers, windowed: bool) -> list[Tensors]:
    hidden, module = config["hidden_size"], f"{layer}.self_attn"
    heads, keys, width, value = _sizes(config, windowed)
    rows = {"q_proj": heads * width, "k_proj": keys * width, "v_proj": keys * value}
    shards = 1
    if config.get("attention_projection_layout") == "fused_qkv":
        rows, shards = {"qkv_proj": sum(rows.values())}, config["num_key_value_heads"]
    tensors = [
        replace(linear(f"{module}.{name}", size, hidden, "attention", layers), shards=shards)
        for name, size in rows.items()
    ]
    tensors.append(linear(f"{module}.o_proj", hidden, heads * value, "attention", layers))
    sinks = "add_swa_attention_sink_bias" if windowed else "add_full_attention_sink_bias"
    if config.get(sinks, windowed):
        tensors.append(Tensors(f"{module}.attention_sink_bias", (heads,), "attention", layers))
    return tensors


def _cached_heads(config: Config) -> list[tuple[int, int]]:
    """Keys and values have widths of their own: half of both together is what one of them has."""
    found = (_sizes(config, _is_windowed(config, i)) for i in range(config["num_hidden_layers"]))
    return [(keys, (width + value) // 2) for _, keys, width, value in found]


_DECODER = Decoder(
    bias="none",
    mlps=Experts(
        "n_routed_experts",
        score="gate.e_score_correction_bias",
        shared_width=shared_width,
        is_dense=_is_dense,
    ),
)


def _mimo(config: Config) -> list[Tensors]:
    layer, every = "model.layers.{layer}", tuple(range(config["num_hidden_layers"]))
    windowed = tuple(i for i in every if _is_windowed(config, i))
    whole = tuple(i for i in every if i not in set(windowed))
    return [
        *_DECODER.without_attention(config),
        *_attention(layer, config, windowed, windowed=True),
        *_attention(layer, config, whole, windowed=False),
    ]


ROWS = tuple(
    Architecture(
        name,
        "gqa_window",
        (
            *(*COMMON, *GQA, "head_dim", "intermediate_size"),
            *("moe_intermediate_size", "n_routed_experts", "num_experts_per_tok"),
        ),
        _mimo,
        experts_field="n_routed_experts",
        cached_heads=_cached_heads,
    )
    for name in ("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM")
)
