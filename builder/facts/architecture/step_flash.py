"""Step-3.5 and 3.7 Flash of StepFun: windows in three of four layers and a gate on every head.

Names and shapes: step3p7 of Hugging Face transformers 5.23 with its table of published names, and
TensorRT-LLM's _torch/models/modeling_step3p7.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from .fields import Config, layer_kinds
from .step import REQUIRED, experts_and_mlps
from .tensors import (
    Architecture,
    Layers,
    Tensors,
    as_mtp,
    ends,
    head_dim,
    layer_norms,
    linear,
    qk_norms,
)

_PERIOD = 4  # every fourth layer sees all tokens, where the file does not list the kinds


def _is_windowed(config: Config, layer: int) -> bool:
    kinds = layer_kinds(config)
    return kinds[layer] == "sliding_attention" if layer < len(kinds) else layer % _PERIOD != 0


def _heads(config: Config, windowed: bool) -> tuple[int, int]:
    """Heads and key-value heads of the layers of a kind."""
    other = config.get("attention_other_setting") if windowed else None
    own = other if isinstance(other, Mapping) else {}
    heads = own.get("num_attention_heads") or config["num_attention_heads"]
    return int(heads), int(own.get("num_attention_groups") or config["num_key_value_heads"])


def _gated_attention(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, width, module = config["hidden_size"], head_dim(config), f"{layer}.self_attn"
    tensors = qk_norms(layer, width, width, layers)
    for windowed in (True, False):
        chosen = tuple(i for i in layers if _is_windowed(config, i) == windowed)
        heads, keys = _heads(config, windowed)
        tensors += [
            linear(f"{module}.q_proj", heads * width, hidden, "attention", chosen),
            linear(f"{module}.k_proj", keys * width, hidden, "attention", chosen),
            linear(f"{module}.v_proj", keys * width, hidden, "attention", chosen),
            linear(f"{module}.o_proj", hidden, heads * width, "attention", chosen),
            linear(f"{module}.g_proj", heads, hidden, "attention", chosen),
        ]
    return tensors


def _flash(config: Config) -> list[Tensors]:
    """The MTP layers follow the last decoder layer in the numbering, and have an MLP."""
    layer, hidden = "model.layers.{layer}", config["hidden_size"]
    count = config["num_hidden_layers"]
    mtp = tuple(range(count, count + config.get("num_nextn_predict_layers", 0)))
    head = f"{layer}.transformer.shared_head"

    def decoder(layers: Layers) -> list[Tensors]:
        return [
            *layer_norms(layer, config, layers),
            *_gated_attention(layer, config, layers),
            *experts_and_mlps(layer, config, layers),
        ]

    tensors = [*ends(config), *decoder(tuple(range(count)))]
    if not mtp:
        return tensors
    return tensors + as_mtp(
        Tensors(f"{layer}.enorm.weight", (hidden,), "norm", mtp),
        Tensors(f"{layer}.hnorm.weight", (hidden,), "norm", mtp),
        linear(f"{layer}.eh_proj", hidden, 2 * hidden, "mtp_projection", mtp),
        Tensors(f"{head}.norm.weight", (hidden,), "norm", mtp),
        linear(f"{head}.output", config["vocab_size"], hidden, "lm_head", mtp),
        *decoder(mtp),
    )


def _cached_heads(config: Config) -> list[tuple[int, int]]:
    width = head_dim(config)
    return [
        (_heads(config, _is_windowed(config, i))[1], width)
        for i in range(config["num_hidden_layers"])
    ]


ROWS = tuple(
    Architecture(
        name,
        "gqa_window",
        REQUIRED,
        _flash,
        experts_field="num_experts",
        mtp_field="num_nextn_predict_layers",
        text_config=nested,
        cached_heads=_cached_heads,
    )
    for name, nested in (
        ("Step3p5ForCausalLM", None),
        ("Step3p7ForConditionalGeneration", "text_config"),
    )
)
