"""Latent attention, sparse or not, over a mixture of experts, with MTP layers.

DeepSeek-V2, V3 and V3.2, Kimi-K2, GLM-4.7-Flash and GLM-5 are of this kind.
"""

from __future__ import annotations

from collections.abc import Callable

from .fields import Config
from .tensors import (
    COMMON,
    Architecture,
    Role,
    Tensors,
    as_mtp,
    ends,
    gated_mlp,
    layer_norms,
    linear,
)


def mla(
    layer: str, config: Config, layers: tuple[int, ...], module: str = "self_attn"
) -> list[Tensors]:
    """Multi-head latent attention, with the sparse-attention indexer where the config has one."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    q_rank, kv_rank = config["q_lora_rank"], config["kv_lora_rank"]
    nope, rope, value = (
        config["qk_nope_head_dim"],
        config["qk_rope_head_dim"],
        config["v_head_dim"],
    )
    attention = f"{layer}.{module}"

    def part(name: str, out_features: int, in_features: int, role: Role) -> Tensors:
        return linear(f"{attention}.{name}", out_features, in_features, role, layers)

    queries = [
        part("q_a_proj", q_rank, hidden, "attention_replicated"),
        Tensors(f"{attention}.q_a_layernorm.weight", (q_rank,), "norm", layers),
        part("q_b_proj", heads * (nope + rope), q_rank, "attention"),
    ]
    tensors = [
        *(queries if q_rank else [part("q_proj", heads * (nope + rope), hidden, "attention")]),
        part("kv_a_proj_with_mqa", kv_rank + rope, hidden, "attention_replicated"),
        Tensors(f"{attention}.kv_a_layernorm.weight", (kv_rank,), "norm", layers),
        part("kv_b_proj", heads * (nope + value), kv_rank, "attention"),
        part("o_proj", hidden, heads * value, "attention"),
    ]
    return tensors + _indexer(f"{attention}.indexer", config, layers)


def _indexer(indexer: str, config: Config, layers: tuple[int, ...]) -> list[Tensors]:
    """What chooses the tokens that sparse attention reads.

    In GLM-5.2, layers marked `shared` use the choice of the layer before them and have none.
    """
    if "index_head_dim" not in config:
        return []
    hidden, q_rank = config["hidden_size"], config["q_lora_rank"]
    heads, dim = config["index_n_heads"], config["index_head_dim"]
    kinds = config.get("indexer_types") or ()
    own = tuple(i for i in layers if i >= len(kinds) or kinds[i] != "shared")
    return [
        linear(f"{indexer}.wq_b", heads * dim, q_rank, "indexer", own),
        linear(f"{indexer}.wk", dim, hidden, "indexer", own),
        Tensors(f"{indexer}.k_norm.weight", (dim,), "norm", own),
        Tensors(f"{indexer}.k_norm.bias", (dim,), "norm", own),
        linear(f"{indexer}.weights_proj", heads, hidden, "indexer", own),
    ]


def _deepseek_moe(layer: str, config: Config, layers: tuple[int, ...]) -> list[Tensors]:
    hidden, experts = config["hidden_size"], config["n_routed_experts"]
    width = config["moe_intermediate_size"]
    bias = f"{layer}.mlp.gate.e_score_correction_bias"
    biased = config.get("topk_method", "noaux_tc") == "noaux_tc"
    return [
        Tensors(f"{layer}.mlp.gate.weight", (experts, hidden), "router", layers),
        *([Tensors(bias, (experts,), "router", layers)] if biased else []),
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


def _deepseek(config: Config, root: str = "model", head: str = "lm_head") -> list[Tensors]:
    """The MTP layers follow the last decoder layer in the numbering."""
    layer, hidden = f"{root}.layers.{{layer}}", config["hidden_size"]
    num_layers, dense = config["num_hidden_layers"], config["first_k_dense_replace"]
    every, sparse = tuple(range(num_layers)), tuple(range(dense, num_layers))
    mtp = tuple(range(num_layers, num_layers + (config.get("num_nextn_predict_layers") or 0)))
    tensors = [
        *ends(config, root, head),
        *layer_norms(layer, config, every),
        *mla(layer, config, every),
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
            *mla(layer, config, mtp),
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


def _kimi_k25(config: Config) -> list[Tensors]:
    return _deepseek(config, "language_model.model", "language_model.lm_head")


def _row(
    name: str,
    tensors: Callable[[Config], list[Tensors]] = _deepseek,
    sparse: bool = False,
    text_config: str | None = None,
) -> Architecture:
    return Architecture(
        name,
        "mla_dsa" if sparse else "mla",
        (*_REQUIRED, "index_n_heads", "index_head_dim") if sparse else _REQUIRED,
        tensors,
        experts_field="n_routed_experts",
        mtp_field="num_nextn_predict_layers",
        splits_embedding=False,
        text_config=text_config,
    )


ROWS = (
    _row("DeepseekV3ForCausalLM"),
    _row("DeepseekV32ForCausalLM", sparse=True),
    _row("GlmMoeDsaForCausalLM", sparse=True),
    _row("DeepseekV2ForCausalLM"),
    _row("Glm4MoeLiteForCausalLM"),
    _row("KimiK2ForCausalLM"),
    _row("KimiK25ForConditionalGeneration", _kimi_k25, text_config="text_config"),
)
