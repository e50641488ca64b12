"""DeepSeek-V3 and V3.2, and Kimi-K2: latent attention, sparse or not, and MTP layers."""

from __future__ import annotations

from .tensors import (
    COMMON,
    Architecture,
    Config,
    Role,
    Tensors,
    as_mtp,
    ends,
    gated_mlp,
    layer_norms,
    linear,
)


def _mla(layer: str, config: Config, layers: tuple[int, ...]) -> list[Tensors]:
    """Multi-head latent attention, with the sparse-attention indexer where the config has one."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    q_rank, kv_rank = config["q_lora_rank"], config["kv_lora_rank"]
    nope, rope, value = (
        config["qk_nope_head_dim"],
        config["qk_rope_head_dim"],
        config["v_head_dim"],
    )
    attention = f"{layer}.self_attn"

    def part(name: str, out_features: int, in_features: int, role: Role) -> Tensors:
        return linear(f"{attention}.{name}", out_features, in_features, role, layers)

    tensors = [
        part("q_a_proj", q_rank, hidden, "attention_replicated"),
        Tensors(f"{attention}.q_a_layernorm.weight", (q_rank,), "norm", layers),
        part("q_b_proj", heads * (nope + rope), q_rank, "attention"),
        part("kv_a_proj_with_mqa", kv_rank + rope, hidden, "attention_replicated"),
        Tensors(f"{attention}.kv_a_layernorm.weight", (kv_rank,), "norm", layers),
        part("kv_b_proj", heads * (nope + value), kv_rank, "attention"),
        part("o_proj", hidden, heads * value, "attention"),
    ]
    if "index_head_dim" in config:
        index_heads, index_dim = config["index_n_heads"], config["index_head_dim"]
        norm = f"{attention}.indexer.k_norm"
        tensors += [
            part("indexer.wq_b", index_heads * index_dim, q_rank, "indexer"),
            part("indexer.wk", index_dim, hidden, "indexer"),
            Tensors(f"{norm}.weight", (index_dim,), "norm", layers),
            Tensors(f"{norm}.bias", (index_dim,), "norm", layers),
            part("indexer.weights_proj", index_heads, hidden, "indexer"),
        ]
    return tensors


def _deepseek_moe(layer: str, config: Config, layers: tuple[int, ...]) -> list[Tensors]:
    hidden, experts = config["hidden_size"], config["n_routed_experts"]
    width = config["moe_intermediate_size"]
    bias = f"{layer}.mlp.gate.e_score_correction_bias"
    return [
        Tensors(f"{layer}.mlp.gate.weight", (experts, hidden), "router", layers),
        Tensors(bias, (experts,), "router", layers),
        *gated_mlp(
            f"{layer}.mlp.experts.{{expert}}", hidden, width, "routed_expert", layers, experts
        ),
        *gated_mlp(
            f"{layer}.mlp.shared_experts",
            hidden,
            width * config["n_shared_experts"],
            "shared_expert",
            layers,
        ),
    ]


def _deepseek(config: Config) -> list[Tensors]:
    """DeepSeek-V3 and V3.2; the MTP layers follow the last decoder layer in the numbering."""
    layer, hidden = "model.layers.{layer}", config["hidden_size"]
    num_layers, dense = config["num_hidden_layers"], config["first_k_dense_replace"]
    every, sparse = tuple(range(num_layers)), tuple(range(dense, num_layers))
    mtp = tuple(range(num_layers, num_layers + (config.get("num_nextn_predict_layers") or 0)))
    tensors = [
        *ends(config),
        *layer_norms(layer, config, every),
        *_mla(layer, config, every),
        *gated_mlp(f"{layer}.mlp", hidden, config["intermediate_size"], "dense_mlp", every[:dense]),
        *_deepseek_moe(layer, config, sparse),
    ]
    if mtp:
        vocabulary = config["vocab_size"]
        tensors += as_mtp(
            Tensors(f"{layer}.embed_tokens.weight", (vocabulary, hidden), "embedding", mtp),
            Tensors(f"{layer}.enorm.weight", (hidden,), "norm", mtp),
            Tensors(f"{layer}.hnorm.weight", (hidden,), "norm", mtp),
            linear(f"{layer}.eh_proj", hidden, 2 * hidden, "mtp_projection", mtp),
            Tensors(f"{layer}.shared_head.norm.weight", (hidden,), "norm", mtp),
            linear(f"{layer}.shared_head.head", vocabulary, hidden, "lm_head", mtp),
            *layer_norms(layer, config, mtp),
            *_mla(layer, config, mtp),
            *_deepseek_moe(layer, config, mtp),
        )
    return tensors


_MLA = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_REQUIRED = (
    *COMMON,
    *_MLA,
    "intermediate_size",
    "moe_intermediate_size",
    "n_routed_experts",
    "n_shared_experts",
    "first_k_dense_replace",
)

ROWS = (
    Architecture(
        "DeepseekV3ForCausalLM",
        "mla",
        _REQUIRED,
        _deepseek,
        experts_field="n_routed_experts",
        mtp_field="num_nextn_predict_layers",
        splits_embedding=False,
    ),
    Architecture(
        "DeepseekV32ForCausalLM",
        "mla_dsa",
        (*_REQUIRED, "index_n_heads", "index_head_dim"),
        _deepseek,
        experts_field="n_routed_experts",
        mtp_field="num_nextn_predict_layers",
        splits_embedding=False,
    ),
)
