"""Models with grouped-query attention: dense ones, draft heads for others, and mixtures of experts.

The mixtures are Qwen3-MoE, MiniMax-M2 and gpt-oss, and Qwen3.5-MoE with linear attention in most
layers.
"""

from __future__ import annotations

from .tensors import (
    COMMON,
    GQA,
    Architecture,
    Config,
    Role,
    Tensors,
    as_mtp,
    ends,
    gated_mlp,
    gqa,
    head_dim,
    layer_norms,
    linear,
    qk_norms,
)

_LAYER = "model.layers.{layer}"


def _layers(config: Config) -> tuple[int, ...]:
    return tuple(range(config["num_hidden_layers"]))


def _around_mlps(config: Config, bias: bool = False) -> list[Tensors]:
    """All but the MLPs of a model whose layers are alike."""
    every = _layers(config)
    norms = layer_norms(_LAYER, config, every)
    return [*ends(config), *norms, *gqa(_LAYER, config, every, bias=bias)]


def _llama(config: Config) -> list[Tensors]:
    hidden, width = config["hidden_size"], config["intermediate_size"]
    mlp = gated_mlp(f"{_LAYER}.mlp", hidden, width, "dense_mlp", _layers(config))
    return [*_around_mlps(config), *mlp]


def _qwen3(config: Config) -> list[Tensors]:
    width = head_dim(config)
    return [*_llama(config), *qk_norms(_LAYER, width, width, _layers(config))]


def _eagle3(config: Config) -> list[Tensors]:
    """A draft head: one decoder layer over the next token's embedding and fused hidden states.

    `fc` fuses the hidden states of three layers of the target model, the decoder layer's attention
    reads embedding and fused state side by side, and the head knows the most frequent tokens only,
    which `d2t` maps to those of the target. The embedding is the target's own.
    """
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    drafted = config.get("draft_vocab_size") or vocabulary
    target = config.get("target_hidden_size") or hidden
    query = config["num_attention_heads"] * head_dim(config)
    key = config["num_key_value_heads"] * head_dim(config)
    layer = "midlayer"
    tensors = [
        linear("fc", hidden, 3 * target, "draft_projection"),
        Tensors(f"{layer}.hidden_norm.weight", (hidden,), "norm"),
        Tensors(f"{layer}.input_layernorm.weight", (hidden,), "norm"),
        Tensors(f"{layer}.post_attention_layernorm.weight", (hidden,), "norm"),
        linear(f"{layer}.self_attn.q_proj", query, 2 * hidden, "attention"),
        linear(f"{layer}.self_attn.k_proj", key, 2 * hidden, "attention"),
        linear(f"{layer}.self_attn.v_proj", key, 2 * hidden, "attention"),
        linear(f"{layer}.self_attn.o_proj", hidden, query, "attention"),
        *gated_mlp(f"{layer}.mlp", hidden, config["intermediate_size"], "dense_mlp"),
        Tensors("norm.weight", (hidden,), "norm"),
        linear("lm_head", drafted, hidden, "lm_head"),
    ]
    if drafted != vocabulary:
        tensors.append(Tensors("d2t", (drafted,), "vocabulary_map", dtype="I64"))
    return tensors


_REQUIRED = (*COMMON, *GQA, "intermediate_size")


def _qwen3_moe(config: Config) -> list[Tensors]:
    layer, every = _LAYER, _layers(config)
    hidden, experts, head_dim = config["hidden_size"], config["num_experts"], config["head_dim"]
    width = config["moe_intermediate_size"]
    return [
        *_around_mlps(config),
        *qk_norms(layer, head_dim, head_dim, every),
        linear(f"{layer}.mlp.gate", experts, hidden, "router", every),
        *gated_mlp(
            f"{layer}.mlp.experts.{{expert}}", hidden, width, "routed_expert", every, experts
        ),
    ]


def _minimax_m2(config: Config) -> list[Tensors]:
    layer, every = _LAYER, _layers(config)
    hidden, experts = config["hidden_size"], config["num_local_experts"]
    width, moe = config["intermediate_size"], f"{layer}.block_sparse_moe"
    query, key = (
        config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads")
    )
    expert, names = f"{moe}.experts.{{expert}}", ("w1", "w3", "w2")
    return [
        *_around_mlps(config),
        *qk_norms(layer, query, key, every),
        linear(f"{moe}.gate", experts, hidden, "router", every),
        Tensors(f"{moe}.e_score_correction_bias", (experts,), "router", every),
        *gated_mlp(expert, hidden, width, "routed_expert", every, experts, names),
    ]


def _gpt_oss(config: Config) -> list[Tensors]:
    """All experts of a layer in one tensor, `[experts, in_features, out_features]`.

    Gate and up projection interleave in the columns of `gate_up_proj`.
    """
    layer, every = _LAYER, _layers(config)
    hidden, width = config["hidden_size"], config["intermediate_size"]
    experts, mlp = config["num_local_experts"], f"{layer}.mlp"
    gate_up, down = f"{mlp}.experts.gate_up_proj", f"{mlp}.experts.down_proj"
    heads = (config["num_attention_heads"],)
    return [
        *_around_mlps(config, bias=True),
        Tensors(f"{layer}.self_attn.sinks", heads, "attention", every),
        Tensors(f"{mlp}.router.weight", (experts, hidden), "router", every),
        Tensors(f"{mlp}.router.bias", (experts,), "router", every),
        Tensors(gate_up, (experts, hidden, 2 * width), "routed_expert", every, linear=True),
        Tensors(f"{gate_up}_bias", (experts, 2 * width), "routed_expert", every),
        Tensors(down, (experts, width, hidden), "routed_expert", every, linear=True),
        Tensors(f"{down}_bias", (experts, hidden), "routed_expert", every),
    ]


_LINEAR_ATTENTION: Role = "linear_attention"


def _qwen3_5_moe_mlp(layer: str, config: Config, layers: tuple[int, ...]) -> list[Tensors]:
    hidden, experts = config["hidden_size"], config["num_experts"]
    width, shared = config["moe_intermediate_size"], config["shared_expert_intermediate_size"]
    expert = f"{layer}.mlp.experts.{{expert}}"
    return [
        Tensors(f"{layer}.mlp.gate.weight", (experts, hidden), "router", layers),
        *gated_mlp(expert, hidden, width, "routed_expert", layers, experts),
        *gated_mlp(f"{layer}.mlp.shared_expert", hidden, shared, "shared_expert", layers),
        linear(f"{layer}.mlp.shared_expert_gate", 1, hidden, "router", layers),
    ]


def _gated_delta_net(layer: str, config: Config, layers: tuple[int, ...]) -> list[Tensors]:
    """The linear attention of Qwen3.5: a convolution and a recurrent state, no KV cache."""
    hidden, role = config["hidden_size"], _LINEAR_ATTENTION
    value_heads, value_dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    value = value_heads * value_dim
    mixed = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"] + value
    net = f"{layer}.linear_attn"
    convolution = (mixed, 1, config["linear_conv_kernel_dim"])
    return [
        linear(f"{net}.in_proj_qkv", mixed, hidden, role, layers),
        linear(f"{net}.in_proj_z", value, hidden, role, layers),
        linear(f"{net}.in_proj_b", value_heads, hidden, role, layers),
        linear(f"{net}.in_proj_a", value_heads, hidden, role, layers),
        Tensors(f"{net}.conv1d.weight", convolution, role, layers),
        Tensors(f"{net}.dt_bias", (value_heads,), role, layers),
        Tensors(f"{net}.A_log", (value_heads,), role, layers),
        Tensors(f"{net}.norm.weight", (value_dim,), "norm", layers),
        linear(f"{net}.out_proj", hidden, value, role, layers),
    ]


def _qwen3_5_moe(config: Config) -> list[Tensors]:
    layer, hidden = "model.language_model.layers.{layer}", config["hidden_size"]
    every = _layers(config)
    full = tuple(i for i in every if (i + 1) % config["full_attention_interval"] == 0)
    recurrent = tuple(i for i in every if i not in full)
    head_dim = config["head_dim"]
    tensors = [
        *ends(config, "model.language_model"),
        *layer_norms(layer, config, every),
        *_gated_delta_net(layer, config, recurrent),
        *gqa(layer, config, full, gated=True),
        *qk_norms(layer, head_dim, head_dim, full),
        *_qwen3_5_moe_mlp(layer, config, every),
    ]
    if mtp := tuple(range(config.get("mtp_num_hidden_layers") or 0)):
        layer = "mtp.layers.{layer}"
        tensors += as_mtp(
            linear("mtp.fc", hidden, 2 * hidden, "mtp_projection"),
            Tensors("mtp.pre_fc_norm_embedding.weight", (hidden,), "norm"),
            Tensors("mtp.pre_fc_norm_hidden.weight", (hidden,), "norm"),
            Tensors("mtp.norm.weight", (hidden,), "norm"),
            *layer_norms(layer, config, mtp),
            *gqa(layer, config, mtp, gated=True),
            *qk_norms(layer, head_dim, head_dim, mtp),
            *_qwen3_5_moe_mlp(layer, config, mtp),
        )
    return tensors


_QWEN3_5_REQUIRED = (
    *COMMON,
    *GQA,
    "head_dim",
    "num_experts",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "full_attention_interval",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)

ROWS = (
    Architecture("LlamaForCausalLM", "gqa", _REQUIRED, _llama),
    Architecture("Qwen3ForCausalLM", "gqa", _REQUIRED, _qwen3),
    Architecture("LlamaForCausalLMEagle3", "gqa", _REQUIRED, _eagle3, draft_head=True),
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
    Architecture(
        "Qwen3_5MoeForConditionalGeneration",
        "hybrid",
        _QWEN3_5_REQUIRED,
        _qwen3_5_moe,
        experts_field="num_experts",
        mtp_field="mtp_num_hidden_layers",
        text_config="text_config",
    ),
)
