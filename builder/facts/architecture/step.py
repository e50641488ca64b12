"""Step of StepFun: Step-3, whose queries are made in two steps for one key-value head, and Step-3.5
and 3.7 Flash, with windows in three of four layers and a gate on every head.

Names and shapes: step3p7 of Hugging Face transformers 5.23 with its table of published names,
TensorRT-LLM's _torch/models/modeling_step3p7.py, and for Step-3 vllm/model_executor/models/
step3_text.py of vLLM 0.20.
"""

from __future__ import annotations

from collections.abc import Mapping

from .fields import Config, layer_kinds
from .tensors import (
    COMMON,
    GQA,
    Architecture,
    Layers,
    Tensors,
    as_mtp,
    ends,
    gated_mlp,
    head_dim,
    layer_norms,
    linear,
    qk_norms,
)

_PERIOD = 4  # every fourth layer sees all tokens, where the file does not list the kinds
_DENSE = 3  # so many layers have an MLP, where the file does not list those with experts


def _sparse_layers(config: Config) -> Layers:
    """The layers with experts, which the file lists in a text or a list, or by kind."""
    every, listed = range(config["num_hidden_layers"]), config.get("moe_layers_enum")
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list):
        return tuple(i for i in every if kinds[i] == "sparse")
    if isinstance(listed, str):
        listed = [int(number) for number in listed.split(",") if number.strip()]
    if isinstance(listed, list):
        return tuple(i for i in every if i in listed)
    return tuple(every[_DENSE:])


def _mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    """All experts of a layer lie in one tensor for each projection."""
    hidden, experts = config["hidden_size"], config["num_experts"]
    wide, width = config["intermediate_size"], config["moe_intermediate_size"]
    sparse = tuple(i for i in _sparse_layers(config) if i in layers)
    dense, moe = tuple(i for i in layers if i not in set(sparse)), f"{layer}.moe"
    shapes = {
        "gate_proj": (width, hidden),
        "up_proj": (width, hidden),
        "down_proj": (hidden, width),
    }
    shared = config.get("share_expert_dim") or width
    tensors = [
        *gated_mlp(f"{layer}.mlp", hidden, wide, "dense_mlp", dense),
        *gated_mlp(f"{layer}.share_expert", hidden, shared, "shared_expert", sparse),
        linear(f"{moe}.gate", experts, hidden, "router", sparse),
        *(
            Tensors(f"{moe}.{name}.weight", (experts, *shape), "routed_expert", sparse, linear=True)
            for name, shape in shapes.items()
        ),
    ]
    if config.get("use_moe_router_bias"):
        tensors.append(Tensors(f"{moe}.router_bias", (experts,), "router", sparse))
    return tensors


# Step-3


def _factored_attention(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, width, module = config["hidden_size"], head_dim(config), f"{layer}.self_attn"
    heads, shared = config["num_attention_heads"], config["share_q_dim"]
    key = config["num_key_value_heads"] * width
    return [
        linear(f"{module}.q_proj", shared, hidden, "attention_replicated", layers),
        linear(f"{module}.k_proj", key, hidden, "attention_replicated", layers),
        linear(f"{module}.v_proj", key, hidden, "attention_replicated", layers),
        Tensors(f"{module}.inter_norm.weight", (shared,), "norm", layers),
        linear(f"{module}.wq", heads * width, shared, "attention", layers),
        linear(f"{module}.o_proj", hidden, heads * width, "attention", layers),
    ]


def _step3(config: Config) -> list[Tensors]:
    layer, every = "model.layers.{layer}", tuple(range(config["num_hidden_layers"]))
    return [
        *ends(config),
        *layer_norms(layer, config, every),
        *_factored_attention(layer, config, every),
        *_mlps(layer, config, every),
    ]


# Step-3.5 and 3.7 Flash


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
            *_mlps(layer, config, layers),
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


_REQUIRED = (
    *(*COMMON, *GQA, "intermediate_size"),
    *("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
)


ROWS = (
    *(
        Architecture(
            name,
            "gqa",
            (*_REQUIRED, "share_q_dim"),
            _step3,
            experts_field="num_experts",
            text_config=nested,
        )
        for name, nested in (
            ("Step3TextForCausalLM", None),
            ("Step3VLForConditionalGeneration", "text_config"),
        )
    ),
    *(
        Architecture(
            name,
            "gqa_window",
            _REQUIRED,
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
    ),
)
