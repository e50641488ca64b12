"""Step-3 of StepFun, whose queries are made in two steps for one key-value head, and the experts
that its successors have as well.

Names and shapes: vllm/model_executor/models/step3_text.py of vLLM 0.20.
"""

from __future__ import annotations

from .fields import Config
from .tensors import (
    COMMON,
    GQA,
    Architecture,
    Layers,
    Tensors,
    ends,
    gated_mlp,
    head_dim,
    layer_norms,
    linear,
)

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


def experts_and_mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
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
        *experts_and_mlps(layer, config, every),
    ]


REQUIRED = (
    *(*COMMON, *GQA, "intermediate_size"),
    *("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
)

ROWS = tuple(
    Architecture(
        name,
        "gqa",
        (*REQUIRED, "share_q_dim"),
        _step3,
        experts_field="num_experts",
        text_config=nested,
    )
    for name, nested in (
        ("Step3TextForCausalLM", None),
        ("Step3VLForConditionalGeneration", "text_config"),
    )
)
