"""Mixtures of experts whose attention has parts or names of its own: Ling of inclusionAI, and
Trinity of Arcee.

Names and shapes: models/modeling_bailing_moe.py of github.com/inclusionAI/Ling and
models/modeling_bailing_moe_v2.py of github.com/inclusionAI/Ling-V2, the width of the shared expert
and the router's bias as SGLang reads them (python/sglang/srt/models/bailing_moe.py), and afmoe of
Hugging Face transformers 5.23. Layers for multi-token prediction, which no published file of either
was seen to have, are left out.
"""

from __future__ import annotations

from dataclasses import replace

from .fields import Config
from .grouped_query import Decoder
from .mixtures import Experts, shared_width
from .tensors import COMMON, GQA, Architecture, Layers, Tensors, head_dim, linear


def _is_dense(config: Config, layer: int) -> bool:
    return layer < int(config.get("first_k_dense_replace", 0))


_LING_EXPERTS = Experts("num_experts", shared_width=shared_width, is_dense=_is_dense)


def _ling(config: Config) -> list[Tensors]:
    """Query, key and value in one tensor, under names of GLM's."""
    scored = config.get("moe_router_enable_expert_bias")
    decoder = Decoder(ends=("word_embeddings", "norm"), mlps=_LING_EXPERTS)
    if scored:
        decoder = replace(decoder, mlps=replace(_LING_EXPERTS, score="gate.expert_bias"))
    layer, every = "model.layers.{layer}", tuple(range(config["num_hidden_layers"]))
    attention = _ling_attention(f"{layer}.attention", config, every)
    return [*decoder.without_attention(config), *attention]


def _ling_attention(module: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, width = config["hidden_size"], head_dim(config)
    query, key = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    joint = query + 2 * key
    tensors = [
        linear(f"{module}.query_key_value", joint, hidden, "attention", layers),
        linear(f"{module}.dense", hidden, query, "attention", layers),
    ]
    if config.get("use_qkv_bias"):
        tensors.append(Tensors(f"{module}.query_key_value.bias", (joint,), "attention", layers))
    if config.get("use_bias"):
        tensors.append(Tensors(f"{module}.dense.bias", (hidden,), "attention", layers))
    if config.get("use_qk_norm"):
        tensors += [
            Tensors(f"{module}.{name}_layernorm.weight", (width,), "norm", layers)
            for name in ("query", "key")
        ]
    return tensors


_TRINITY = Decoder(
    norms=(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_mlp_layernorm",
        "post_mlp_layernorm",
    ),
    qk_norm="head",
    mlps=Experts(
        "num_experts",
        gate="router.gate",
        score="expert_bias",
        shared_width=shared_width,
        is_dense=lambda config, layer: layer < int(config.get("num_dense_layers", 0)),
    ),
)


def _trinity(config: Config) -> list[Tensors]:
    """The attention's output goes through a gate of its width."""
    every = tuple(range(config["num_hidden_layers"]))
    query, hidden = config["num_attention_heads"] * head_dim(config), config["hidden_size"]
    gate = linear("model.layers.{layer}.self_attn.gate_proj", query, hidden, "attention", every)
    return [*_TRINITY(config), gate]


_REQUIRED = (*COMMON, *GQA, "num_experts", "num_experts_per_tok", "moe_intermediate_size")

ROWS = (
    *(
        Architecture(name, "gqa", _REQUIRED, _ling, experts_field="num_experts")
        for name in ("BailingMoeForCausalLM", "BailingMoeV2ForCausalLM")
    ),
    Architecture(
        "AfmoeForCausalLM",
        "gqa_window",
        (*_REQUIRED, "intermediate_size"),
        _trinity,
        experts_field="num_experts",
    ),
)
