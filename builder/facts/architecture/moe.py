"""Mixtures of experts with grouped-query attention: Qwen3-MoE, MiniMax-M2 and gpt-oss."""

from __future__ import annotations

from .row import COMMON, GQA, Architecture
from .tensors import Config, Tensors, ends, gated_mlp, gqa, layer_norms, linear, qk_norms


def _qwen3_moe(config: Config) -> list[Tensors]:
    layer, every = "model.layers.{layer}", tuple(range(config["num_hidden_layers"]))
    hidden, experts, head_dim = config["hidden_size"], config["num_experts"], config["head_dim"]
    width = config["moe_intermediate_size"]
    return [
        *ends(config),
        *layer_norms(layer, config, every),
        *gqa(layer, config, every),
        *qk_norms(layer, head_dim, head_dim, every),
        linear(f"{layer}.mlp.gate", experts, hidden, "router", every),
        *gated_mlp(
            f"{layer}.mlp.experts.{{expert}}", hidden, width, "routed_expert", every, experts
        ),
    ]


def _minimax_m2(config: Config) -> list[Tensors]:
    layer, every = "model.layers.{layer}", tuple(range(config["num_hidden_layers"]))
    hidden, experts = config["hidden_size"], config["num_local_experts"]
    head_dim, width = config["head_dim"], config["intermediate_size"]
    moe = f"{layer}.block_sparse_moe"
    return [
        *ends(config),
        *layer_norms(layer, config, every),
        *gqa(layer, config, every),
        *qk_norms(
            layer,
            config["num_attention_heads"] * head_dim,
            config["num_key_value_heads"] * head_dim,
            every,
        ),
        linear(f"{moe}.gate", experts, hidden, "router", every),
        Tensors(f"{moe}.e_score_correction_bias", (experts,), "router", every),
        *gated_mlp(
            f"{moe}.experts.{{expert}}",
            hidden,
            width,
            "routed_expert",
            every,
            experts,
            names=("w1", "w3", "w2"),
        ),
    ]


def _gpt_oss(config: Config) -> list[Tensors]:
    """All experts of a layer in one tensor, `[experts, in_features, out_features]`.

    Gate and up projection interleave in the columns of `gate_up_proj`.
    """
    layer, every = "model.layers.{layer}", tuple(range(config["num_hidden_layers"]))
    hidden, width = config["hidden_size"], config["intermediate_size"]
    experts, mlp = config["num_local_experts"], f"{layer}.mlp"
    gate_up, down = f"{mlp}.experts.gate_up_proj", f"{mlp}.experts.down_proj"
    heads = (config["num_attention_heads"],)
    return [
        *ends(config),
        *layer_norms(layer, config, every),
        *gqa(layer, config, every, bias=True),
        Tensors(f"{layer}.self_attn.sinks", heads, "attention", every),
        Tensors(f"{mlp}.router.weight", (experts, hidden), "router", every),
        Tensors(f"{mlp}.router.bias", (experts,), "router", every),
        Tensors(gate_up, (experts, hidden, 2 * width), "routed_expert", every, linear=True),
        Tensors(f"{gate_up}_bias", (experts, 2 * width), "routed_expert", every),
        Tensors(down, (experts, width, hidden), "routed_expert", every, linear=True),
        Tensors(f"{down}_bias", (experts, hidden), "routed_expert", every),
    ]


ROWS = (
    Architecture(
        "Qwen3MoeForCausalLM",
        "gqa",
        (*COMMON, *GQA, "head_dim", "num_experts", "moe_intermediate_size"),
        _qwen3_moe,
        experts_field="num_experts",
    ),
    # Its config counts three MTP modules, but no repository of the family holds their weights:
    # MiniMax-AI/MiniMax-M2.5 issue 8 (2026-03-02).
    Architecture(
        "MiniMaxM2ForCausalLM",
        "gqa",
        (*COMMON, *GQA, "head_dim", "num_local_experts", "intermediate_size"),
        _minimax_m2,
        experts_field="num_local_experts",
    ),
    Architecture(
        "GptOssForCausalLM",
        "gqa_window",
        (*COMMON, *GQA, "head_dim", "num_local_experts", "intermediate_size", "sliding_window"),
        _gpt_oss,
        experts_field="num_local_experts",
    ),
)
