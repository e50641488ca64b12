"""The tensors of each supported model architecture: names, shapes and roles, from its config.

A row of `ARCHITECTURES` is all that the rest of the toolkit knows about an architecture. Checkpoint
checks, the memory budget and miniatures read the same rows.

Sources of the tensor names: the published `config.json` and weight names of DeepSeek-V3/V3.2,
Llama-3, Qwen3-MoE, Qwen3.5-MoE and MiniMax-M2 as loaded by Hugging Face transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

Config = Mapping[str, Any]
"""The fields of `config.json`; of its `text_config` where a model nests the language model."""

Role = Literal[
    "embedding",
    "lm_head",
    "norm",
    "attention",  # split over tensor-parallel ranks
    "attention_replicated",  # latent projections of MLA, whole on every rank
    "indexer",  # sparse attention, whole on every rank
    "linear_attention",
    "router",
    "routed_expert",
    "shared_expert",
    "dense_mlp",
    "mtp_projection",
]

Attention = Literal["mla", "mla_dsa", "gqa", "hybrid"]

_LINEAR_ATTENTION: Role = "linear_attention"


@dataclass(frozen=True, slots=True)
class Tensors:
    """All tensors that share a name pattern, a shape and a role.

    `pattern` holds `{layer}` and `{expert}` where those numbers stand. `shape` is the shape before
    quantization, `[out_features, in_features]` for a linear layer.
    """

    pattern: str
    shape: tuple[int, ...]
    role: Role
    layers: tuple[int, ...] = ()
    experts: int = 0
    linear: bool = False
    mtp: bool = False

    @property
    def count(self) -> int:
        return max(1, len(self.layers)) * max(1, self.experts)

    @property
    def parameters(self) -> int:
        return self.count * prod(self.shape)

    def names(self) -> Iterator[str]:
        for layer in self.layers or (None,):
            for expert in range(self.experts) if self.experts else (None,):
                yield self.pattern.format(layer=layer, expert=expert)


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the toolkit knows of one architecture.

    `required` are the config fields that the tensor shapes need. `mtp_field` is the config field
    that counts the multi-token-prediction layers; `None` where none are published.
    """

    name: str
    attention: Attention
    required: tuple[str, ...]
    tensors: Callable[[Config], list[Tensors]]
    experts_field: str | None = None
    mtp_field: str | None = None
    text_config: str | None = None

    def text(self, config: Config) -> Config:
        """The language model's own fields."""
        nested = config.get(self.text_config) if self.text_config else None
        return nested if isinstance(nested, Mapping) else config

    def mtp_layers(self, config: Config) -> int:
        return int(self.text(config).get(self.mtp_field) or 0) if self.mtp_field else 0


def _linear(
    pattern: str,
    out_features: int,
    in_features: int,
    role: Role,
    layers: tuple[int, ...] = (),
    experts: int = 0,
    mtp: bool = False,
) -> Tensors:
    shape = (out_features, in_features)
    return Tensors(f"{pattern}.weight", shape, role, layers, experts, linear=True, mtp=mtp)


def _gated_mlp(
    pattern: str,
    hidden: int,
    intermediate: int,
    role: Role,
    layers: tuple[int, ...],
    experts: int = 0,
    mtp: bool = False,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> list[Tensors]:
    gate, up, down = names
    return [
        _linear(f"{pattern}.{gate}", intermediate, hidden, role, layers, experts, mtp),
        _linear(f"{pattern}.{up}", intermediate, hidden, role, layers, experts, mtp),
        _linear(f"{pattern}.{down}", hidden, intermediate, role, layers, experts, mtp),
    ]


def _ends(config: Config, prefix: str = "model") -> list[Tensors]:
    """Embedding, final norm and, unless it is tied to the embedding, the output head."""
    vocabulary, hidden = config["vocab_size"], config["hidden_size"]
    tensors = [
        Tensors(f"{prefix}.embed_tokens.weight", (vocabulary, hidden), "embedding"),
        Tensors(f"{prefix}.norm.weight", (hidden,), "norm"),
    ]
    if not config.get("tie_word_embeddings", False):
        tensors.append(_linear("lm_head", vocabulary, hidden, "lm_head"))
    return tensors


def _layer_norms(
    layer: str, config: Config, layers: tuple[int, ...], mtp: bool = False
) -> list[Tensors]:
    hidden = (config["hidden_size"],)
    return [
        Tensors(f"{layer}.input_layernorm.weight", hidden, "norm", layers, mtp=mtp),
        Tensors(f"{layer}.post_attention_layernorm.weight", hidden, "norm", layers, mtp=mtp),
    ]


def _gqa(
    layer: str, config: Config, layers: tuple[int, ...], mtp: bool = False, gated: bool = False
) -> list[Tensors]:
    """Grouped-query attention; `gated` doubles the query projection by an output gate."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    query, key = heads * head_dim, config["num_key_value_heads"] * head_dim
    attention = f"{layer}.self_attn"
    return [
        _linear(f"{attention}.q_proj", query * (1 + gated), hidden, "attention", layers, mtp=mtp),
        _linear(f"{attention}.k_proj", key, hidden, "attention", layers, mtp=mtp),
        _linear(f"{attention}.v_proj", key, hidden, "attention", layers, mtp=mtp),
        _linear(f"{attention}.o_proj", hidden, query, "attention", layers, mtp=mtp),
    ]


def _qk_norms(
    layer: str, query: int, key: int, layers: tuple[int, ...], mtp: bool = False
) -> list[Tensors]:
    attention = f"{layer}.self_attn"
    return [
        Tensors(f"{attention}.q_norm.weight", (query,), "norm", layers, mtp=mtp),
        Tensors(f"{attention}.k_norm.weight", (key,), "norm", layers, mtp=mtp),
    ]


def _mla(layer: str, config: Config, layers: tuple[int, ...], mtp: bool = False) -> list[Tensors]:
    """Multi-head latent attention, with the sparse-attention indexer where the config has one."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    q_rank, kv_rank = config["q_lora_rank"], config["kv_lora_rank"]
    nope, rope, value = (
        config["qk_nope_head_dim"],
        config["qk_rope_head_dim"],
        config["v_head_dim"],
    )
    attention = f"{layer}.self_attn"

    def linear(name: str, out_features: int, in_features: int, role: Role) -> Tensors:
        return _linear(f"{attention}.{name}", out_features, in_features, role, layers, mtp=mtp)

    tensors = [
        linear("q_a_proj", q_rank, hidden, "attention_replicated"),
        Tensors(f"{attention}.q_a_layernorm.weight", (q_rank,), "norm", layers, mtp=mtp),
        linear("q_b_proj", heads * (nope + rope), q_rank, "attention"),
        linear("kv_a_proj_with_mqa", kv_rank + rope, hidden, "attention_replicated"),
        Tensors(f"{attention}.kv_a_layernorm.weight", (kv_rank,), "norm", layers, mtp=mtp),
        linear("kv_b_proj", heads * (nope + value), kv_rank, "attention"),
        linear("o_proj", hidden, heads * value, "attention"),
    ]
    if "index_head_dim" in config:
        index_heads, index_dim = config["index_n_heads"], config["index_head_dim"]
        norm = f"{attention}.indexer.k_norm"
        tensors += [
            linear("indexer.wq_b", index_heads * index_dim, q_rank, "indexer"),
            linear("indexer.wk", index_dim, hidden, "indexer"),
            Tensors(f"{norm}.weight", (index_dim,), "norm", layers, mtp=mtp),
            Tensors(f"{norm}.bias", (index_dim,), "norm", layers, mtp=mtp),
            linear("indexer.weights_proj", index_heads, hidden, "indexer"),
        ]
    return tensors


def _deepseek_moe(
    layer: str, config: Config, layers: tuple[int, ...], mtp: bool = False
) -> list[Tensors]:
    hidden, experts = config["hidden_size"], config["n_routed_experts"]
    width = config["moe_intermediate_size"]
    bias = f"{layer}.mlp.gate.e_score_correction_bias"
    return [
        Tensors(f"{layer}.mlp.gate.weight", (experts, hidden), "router", layers, mtp=mtp),
        Tensors(bias, (experts,), "router", layers, mtp=mtp),
        *_gated_mlp(
            f"{layer}.mlp.experts.{{expert}}", hidden, width, "routed_expert", layers, experts, mtp
        ),
        *_gated_mlp(
            f"{layer}.mlp.shared_experts",
            hidden,
            width * config["n_shared_experts"],
            "shared_expert",
            layers,
            mtp=mtp,
        ),
    ]


def _deepseek(config: Config) -> list[Tensors]:
    """DeepSeek-V3 and V3.2; the MTP layers follow the last decoder layer in the numbering."""
    layer, hidden = "model.layers.{layer}", config["hidden_size"]
    num_layers, dense = config["num_hidden_layers"], config["first_k_dense_replace"]
    every, sparse = tuple(range(num_layers)), tuple(range(dense, num_layers))
    mtp = tuple(range(num_layers, num_layers + (config.get("num_nextn_predict_layers") or 0)))
    tensors = [
        *_ends(config),
        *_layer_norms(layer, config, every),
        *_mla(layer, config, every),
        *_gated_mlp(
            f"{layer}.mlp", hidden, config["intermediate_size"], "dense_mlp", every[:dense]
        ),
        *_deepseek_moe(layer, config, sparse),
    ]
    if mtp:
        vocabulary = config["vocab_size"]
        tensors += [
            Tensors(
                f"{layer}.embed_tokens.weight", (vocabulary, hidden), "embedding", mtp, mtp=True
            ),
            Tensors(f"{layer}.enorm.weight", (hidden,), "norm", mtp, mtp=True),
            Tensors(f"{layer}.hnorm.weight", (hidden,), "norm", mtp, mtp=True),
            _linear(f"{layer}.eh_proj", hidden, 2 * hidden, "mtp_projection", mtp, mtp=True),
            Tensors(f"{layer}.shared_head.norm.weight", (hidden,), "norm", mtp, mtp=True),
            _linear(f"{layer}.shared_head.head", vocabulary, hidden, "lm_head", mtp, mtp=True),
            *_layer_norms(layer, config, mtp, mtp=True),
            *_mla(layer, config, mtp, mtp=True),
            *_deepseek_moe(layer, config, mtp, mtp=True),
        ]
    return tensors


def _llama(config: Config) -> list[Tensors]:
    layer, every = "model.layers.{layer}", tuple(range(config["num_hidden_layers"]))
    hidden, width = config["hidden_size"], config["intermediate_size"]
    return [
        *_ends(config),
        *_layer_norms(layer, config, every),
        *_gqa(layer, config, every),
        *_gated_mlp(f"{layer}.mlp", hidden, width, "dense_mlp", every),
    ]


def _qwen3_moe(config: Config) -> list[Tensors]:
    layer, every = "model.layers.{layer}", tuple(range(config["num_hidden_layers"]))
    hidden, experts, head_dim = config["hidden_size"], config["num_experts"], config["head_dim"]
    width = config["moe_intermediate_size"]
    return [
        *_ends(config),
        *_layer_norms(layer, config, every),
        *_gqa(layer, config, every),
        *_qk_norms(layer, head_dim, head_dim, every),
        _linear(f"{layer}.mlp.gate", experts, hidden, "router", every),
        *_gated_mlp(
            f"{layer}.mlp.experts.{{expert}}", hidden, width, "routed_expert", every, experts
        ),
    ]


def _qwen3_5_moe_mlp(
    layer: str, config: Config, layers: tuple[int, ...], mtp: bool = False
) -> list[Tensors]:
    hidden, experts = config["hidden_size"], config["num_experts"]
    width, shared = config["moe_intermediate_size"], config["shared_expert_intermediate_size"]
    expert = f"{layer}.mlp.experts.{{expert}}"
    return [
        Tensors(f"{layer}.mlp.gate.weight", (experts, hidden), "router", layers, mtp=mtp),
        *_gated_mlp(expert, hidden, width, "routed_expert", layers, experts, mtp),
        *_gated_mlp(f"{layer}.mlp.shared_expert", hidden, shared, "shared_expert", layers, mtp=mtp),
        _linear(f"{layer}.mlp.shared_expert_gate", 1, hidden, "router", layers, mtp=mtp),
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
        _linear(f"{net}.in_proj_qkv", mixed, hidden, role, layers),
        _linear(f"{net}.in_proj_z", value, hidden, role, layers),
        _linear(f"{net}.in_proj_b", value_heads, hidden, role, layers),
        _linear(f"{net}.in_proj_a", value_heads, hidden, role, layers),
        Tensors(f"{net}.conv1d.weight", convolution, role, layers),
        Tensors(f"{net}.dt_bias", (value_heads,), role, layers),
        Tensors(f"{net}.A_log", (value_heads,), role, layers),
        Tensors(f"{net}.norm.weight", (value_dim,), "norm", layers),
        _linear(f"{net}.out_proj", hidden, value, role, layers),
    ]


def _qwen3_5_moe(config: Config) -> list[Tensors]:
    layer, hidden = "model.language_model.layers.{layer}", config["hidden_size"]
    every = tuple(range(config["num_hidden_layers"]))
    full = tuple(i for i in every if (i + 1) % config["full_attention_interval"] == 0)
    linear = tuple(i for i in every if i not in full)
    head_dim = config["head_dim"]
    tensors = [
        *_ends(config, "model.language_model"),
        *_layer_norms(layer, config, every),
        *_gated_delta_net(layer, config, linear),
        *_gqa(layer, config, full, gated=True),
        *_qk_norms(layer, head_dim, head_dim, full),
        *_qwen3_5_moe_mlp(layer, config, every),
    ]
    if mtp := tuple(range(config.get("mtp_num_hidden_layers") or 0)):
        layer = "mtp.layers.{layer}"
        tensors += [
            _linear("mtp.fc", hidden, 2 * hidden, "mtp_projection", mtp=True),
            Tensors("mtp.pre_fc_norm_embedding.weight", (hidden,), "norm", mtp=True),
            Tensors("mtp.pre_fc_norm_hidden.weight", (hidden,), "norm", mtp=True),
            Tensors("mtp.norm.weight", (hidden,), "norm", mtp=True),
            *_layer_norms(layer, config, mtp, mtp=True),
            *_gqa(layer, config, mtp, mtp=True, gated=True),
            *_qk_norms(layer, head_dim, head_dim, mtp, mtp=True),
            *_qwen3_5_moe_mlp(layer, config, mtp, mtp=True),
        ]
    return tensors


def _minimax_m2(config: Config) -> list[Tensors]:
    layer, every = "model.layers.{layer}", tuple(range(config["num_hidden_layers"]))
    hidden, experts = config["hidden_size"], config["num_local_experts"]
    head_dim, width = config["head_dim"], config["intermediate_size"]
    moe = f"{layer}.block_sparse_moe"
    return [
        *_ends(config),
        *_layer_norms(layer, config, every),
        *_gqa(layer, config, every),
        *_qk_norms(
            layer,
            config["num_attention_heads"] * head_dim,
            config["num_key_value_heads"] * head_dim,
            every,
        ),
        _linear(f"{moe}.gate", experts, hidden, "router", every),
        Tensors(f"{moe}.e_score_correction_bias", (experts,), "router", every),
        *_gated_mlp(
            f"{moe}.experts.{{expert}}",
            hidden,
            width,
            "routed_expert",
            every,
            experts,
            names=("w1", "w3", "w2"),
        ),
    ]


_COMMON = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
_GQA = ("num_key_value_heads",)
_MLA = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_DEEPSEEK = (
    *_COMMON,
    *_MLA,
    "intermediate_size",
    "moe_intermediate_size",
    "n_routed_experts",
    "n_shared_experts",
    "first_k_dense_replace",
)
_QWEN3_5 = (
    *_COMMON,
    *_GQA,
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

ARCHITECTURES: dict[str, Architecture] = {
    row.name: row
    for row in (
        Architecture(
            "DeepseekV3ForCausalLM",
            "mla",
            _DEEPSEEK,
            _deepseek,
            experts_field="n_routed_experts",
            mtp_field="num_nextn_predict_layers",
        ),
        Architecture(
            "DeepseekV32ForCausalLM",
            "mla_dsa",
            (*_DEEPSEEK, "index_n_heads", "index_head_dim"),
            _deepseek,
            experts_field="n_routed_experts",
            mtp_field="num_nextn_predict_layers",
        ),
        Architecture("LlamaForCausalLM", "gqa", (*_COMMON, *_GQA, "intermediate_size"), _llama),
        Architecture(
            "Qwen3MoeForCausalLM",
            "gqa",
            (*_COMMON, *_GQA, "head_dim", "num_experts", "moe_intermediate_size"),
            _qwen3_moe,
            experts_field="num_experts",
        ),
        Architecture(
            "Qwen3_5MoeForConditionalGeneration",
            "hybrid",
            _QWEN3_5,
            _qwen3_5_moe,
            experts_field="num_experts",
            mtp_field="mtp_num_hidden_layers",
            text_config="text_config",
        ),
        # Its config counts three MTP modules, but no repository of the family holds their weights:
        # MiniMax-AI/MiniMax-M2.5 issue 8 (2026-03-02).
        Architecture(
            "MiniMaxM2ForCausalLM",
            "gqa",
            (*_COMMON, *_GQA, "head_dim", "num_local_experts", "intermediate_size"),
            _minimax_m2,
            experts_field="num_local_experts",
        ),
    )
}
