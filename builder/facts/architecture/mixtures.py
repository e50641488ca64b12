"""Mixtures of experts with grouped-query attention.

Names and shapes: the families' modules in Hugging Face transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .fields import Config
from .grouped_query import HUNYUAN, Decoder
from .tensors import (
    COMMON,
    GQA,
    Architecture,
    Attention,
    Layers,
    Tensors,
    as_mtp,
    gated_mlp,
    head_dim,
    linear,
)

_GATED, _W = ("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")


@dataclass(frozen=True, slots=True)
class DenseLayers:
    """Tells the layers that have an MLP instead of experts, by whichever field a config has.

    `flags` names a list with a flag for each layer, set for one with experts; `numbers` a list of
    the dense layers; `field` the count of dense layers at the start, `first` where it is missing.
    """

    first: int = 0
    field: str = "first_k_dense_replace"
    flags: str = ""
    numbers: str = ""

    def __call__(self, config: Config, layer: int) -> bool:
        kinds, flags = config.get("mlp_layer_types"), config.get(self.flags)
        numbers = config.get(self.numbers)
        if isinstance(kinds, list):
            return bool(kinds[layer] == "dense")
        if isinstance(flags, list):
            return not flags[layer]
        if isinstance(numbers, list):
            return layer in numbers
        return layer < int(config.get(self.field, self.first))


@dataclass(frozen=True, slots=True)
class Experts:
    """The MLPs of a mixture of experts.

    `module` holds the experts, `gate` routes to them, `count` and `width` are their config fields.
    `score` names the bias of the router's scores, in `score_rank` dimensions, `shared` the module
    of the expert that every token takes and `shared_width` its channels, `is_dense` the layers that
    have an MLP instead, with `dense_width` channels. `fused` experts lie in one tensor,
    `[experts, in, out]`.
    """

    count: str
    width: str = "moe_intermediate_size"
    module: str = "mlp"
    gate: str = "gate"
    gate_bias: bool = False
    score: str | None = None
    score_rank: int = 1
    names: tuple[str, str, str] = _GATED
    shared: str = "shared_experts"
    shared_width: Callable[[Config], int] = lambda config: 0
    shared_gate: str | None = None
    is_dense: Callable[[Config, int], bool] = lambda config, layer: False
    dense_width: str = "intermediate_size"
    dense_module: str = "mlp"
    fused: bool = False

    def __call__(self, layer: str, config: Config, layers: Layers) -> list[Tensors]:
        dense = tuple(i for i in layers if self.is_dense(config, i))
        sparse = tuple(i for i in layers if i not in set(dense))
        hidden, tensors = config["hidden_size"], list[Tensors]()
        if dense:
            module, width = f"{layer}.{self.dense_module}", config[self.dense_width]
            tensors += gated_mlp(module, hidden, width, "dense_mlp", dense)
        return tensors + self._sparse(f"{layer}.{self.module}", config, sparse)

    def _sparse(self, moe: str, config: Config, layers: Layers) -> list[Tensors]:
        hidden, count, width = config["hidden_size"], config[self.count], config[self.width]
        tensors = [linear(f"{moe}.{self.gate}", count, hidden, "router", layers)]
        if self.gate_bias:
            tensors.append(Tensors(f"{moe}.{self.gate}.bias", (count,), "router", layers))
        if self.score:
            shape = (*(1,) * (self.score_rank - 1), count)
            tensors.append(Tensors(f"{moe}.{self.score}", shape, "router", layers))
        if self.fused:
            tensors += [
                Tensors(f"{moe}.{name}", shape, "routed_expert", layers, linear=True)
                for name, shape in (
                    ("experts.gate_up_proj", (count, hidden, 2 * width)),
                    ("experts.down_proj", (count, width, hidden)),
                )
            ]
        else:
            expert = f"{moe}.experts.{{expert}}"
            tensors += gated_mlp(expert, hidden, width, "routed_expert", layers, count, self.names)
        if shared := self.shared_width(config):
            module = f"{moe}.{self.shared}"
            tensors += gated_mlp(module, hidden, shared, "shared_expert", layers)
        if self.shared_gate:
            tensors.append(linear(f"{moe}.{self.shared_gate}", 1, hidden, "router", layers))
        return tensors


def shared_width(config: Config) -> int:
    """The channels of the expert that every token takes."""
    return int(config["moe_intermediate_size"] * config.get("n_shared_experts", 0))


def _qwen_is_dense(config: Config, layer: int) -> bool:
    """Every n-th layer is sparse unless `mlp_only_layers` lists it."""
    only = config.get("mlp_only_layers")
    step = config.get("decoder_sparse_step", 1)
    return (isinstance(only, list) and layer in only) or (layer + 1) % step != 0


def _gpt_oss(config: Config) -> list[Tensors]:
    """All experts of a layer in one tensor, `[experts, in_features, out_features]`.

    Gate and up projection interleave in the columns of `gate_up_proj`.
    """
    decoder = Decoder(bias="all", mlps=_gpt_oss_mlps)
    every = tuple(range(config["num_hidden_layers"]))
    sinks = Tensors(
        "model.layers.{layer}.self_attn.sinks", (config["num_attention_heads"],), "attention", every
    )
    return [*decoder(config), sinks]


def _gpt_oss_mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, width = config["hidden_size"], config["intermediate_size"]
    experts, mlp = config["num_local_experts"], f"{layer}.mlp"
    gate_up, down = f"{mlp}.experts.gate_up_proj", f"{mlp}.experts.down_proj"
    return [
        Tensors(f"{mlp}.router.weight", (experts, hidden), "router", layers),
        Tensors(f"{mlp}.router.bias", (experts,), "router", layers),
        Tensors(gate_up, (experts, hidden, 2 * width), "routed_expert", layers, linear=True),
        Tensors(f"{gate_up}_bias", (experts, 2 * width), "routed_expert", layers),
        Tensors(down, (experts, width, hidden), "routed_expert", layers, linear=True),
        Tensors(f"{down}_bias", (experts, hidden), "routed_expert", layers),
    ]


_QWEN3_MOE = Decoder(qk_norm="head", mlps=Experts("num_experts", is_dense=_qwen_is_dense))
_QWEN2_MOE = Decoder(
    bias="qkv",
    mlps=Experts(
        "num_experts",
        shared="shared_expert",
        shared_width=lambda config: int(config["shared_expert_intermediate_size"]),
        shared_gate="shared_expert_gate",
        is_dense=_qwen_is_dense,
    ),
)
_QWEN3_VL_MOE = replace(
    _QWEN3_MOE, root="model.language_model", mlps=Experts("num_experts", fused=True)
)
_MINIMAX_M2 = Decoder(
    qk_norm="width",
    mlps=Experts(
        "num_local_experts",
        "intermediate_size",
        "block_sparse_moe",
        score="e_score_correction_bias",
        names=_W,
    ),
)
_MIXTRAL = Decoder(
    mlps=Experts("num_local_experts", "intermediate_size", "block_sparse_moe", names=_W)
)
_PHI_MOE = replace(_MIXTRAL, norm_bias=True)
_GLM4_EXPERTS = Experts(
    "n_routed_experts",
    score="gate.e_score_correction_bias",
    shared_width=shared_width,
    is_dense=DenseLayers(),
)
_ERNIE_EXPERTS = Experts(
    "num_experts",
    score="moe_statics.e_score_correction_bias",
    score_rank=2,
    shared_width=shared_width,
    is_dense=DenseLayers(1, "moe_layer_start_index"),
)
_HUNYUAN_MOE = replace(
    HUNYUAN,
    mlps=Experts("num_experts", gate="gate.wg", shared="shared_mlp", shared_width=shared_width),
)
_LLAMA4 = Decoder(
    root="language_model.model",
    head="language_model.lm_head",
    bias="none",
    mlps=Experts(
        "num_local_experts",
        "intermediate_size",
        "feed_forward",
        "router",
        shared="shared_expert",
        shared_width=lambda config: int(config["intermediate_size"]),
        is_dense=lambda config, layer: (
            (layer + 1) % config.get("interleave_moe_layer_step", 1) != 0
        ),
        dense_width="intermediate_size_mlp",
        dense_module="feed_forward",
        fused=True,
    ),
)


def _glm4_decoder(config: Config, root: str = "model") -> Decoder:
    return Decoder(
        root=root,
        qk_norm="head" if config.get("use_qk_norm") else "none",
        bias="qkv" if config.get("attention_bias") else "none",
        mlps=_GLM4_EXPERTS,
    )


def _glm4v_moe(config: Config) -> list[Tensors]:
    """GLM-4.5V and 4.6V, which have no MTP layer."""
    return _glm4_decoder(config, "model.language_model")(config)


def _glm4_moe(config: Config) -> list[Tensors]:
    """GLM-4.5 to 4.7; the MTP layer follows the last decoder layer in the numbering."""
    decoder = _glm4_decoder(config)
    layer, hidden = "model.layers.{layer}", config["hidden_size"]
    first = config["num_hidden_layers"]
    mtp = tuple(range(first, first + config.get("num_nextn_predict_layers", 0)))
    if not mtp:
        return decoder(config)
    vocabulary = (config["vocab_size"], hidden)
    return decoder(config) + as_mtp(
        Tensors(f"{layer}.embed_tokens.weight", vocabulary, "embedding", mtp),
        Tensors(f"{layer}.enorm.weight", (hidden,), "norm", mtp),
        Tensors(f"{layer}.hnorm.weight", (hidden,), "norm", mtp),
        linear(f"{layer}.eh_proj", hidden, 2 * hidden, "mtp_projection", mtp),
        Tensors(f"{layer}.shared_head.norm.weight", (hidden,), "norm", mtp),
        linear(f"{layer}.shared_head.head", *vocabulary, "lm_head", mtp),
        *decoder.norm_tensors(layer, config, mtp),
        *decoder.attention_tensors(layer, config, mtp),
        *_GLM4_EXPERTS(layer, config, mtp),
    )


_M3_ROOT = "language_model.model"


def _minimax_m3_mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    sparse = _m3_sparse(config)
    dense = tuple(i for i in layers if i not in set(sparse))
    experts = Experts(
        "num_local_experts",
        "intermediate_size",
        "block_sparse_moe",
        score="e_score_correction_bias",
        names=_W,
        shared_width=lambda fields: int(fields.get("shared_intermediate_size") or 0),
    )
    width = config.get("dense_intermediate_size") or config["intermediate_size"]
    hidden = config["hidden_size"]
    return [
        *(gated_mlp(f"{layer}.mlp", hidden, width, "dense_mlp", dense) if dense else []),
        *experts(layer, config, sparse),
    ]


def _m3_sparse(config: Config) -> Layers:
    """The layers with experts, which are also those with sparse attention."""
    every, frequency = range(config["num_hidden_layers"]), config.get("moe_layer_freq")
    if isinstance(frequency, list):
        return tuple(i for i in every if i < len(frequency) and frequency[i])
    return tuple(every)


def _minimax_m3(config: Config) -> list[Tensors]:
    decoder = Decoder(
        root=_M3_ROOT,
        head="language_model.lm_head",
        bias="none",
        qk_norm="head",
        mlps=_minimax_m3_mlps,
    )
    index = config.get("sparse_attention_config")
    if not isinstance(index, dict):
        return decoder(config)
    heads, dim = index["sparse_num_index_heads"], index["sparse_index_dim"]
    attention, hidden = f"{_M3_ROOT}.layers.{{layer}}.self_attn", config["hidden_size"]
    layers = _m3_sparse(config)
    return [
        *decoder(config),
        linear(f"{attention}.index_q_proj", heads * dim, hidden, "indexer", layers),
        linear(f"{attention}.index_k_proj", dim, hidden, "indexer", layers),
        Tensors(f"{attention}.index_q_norm.weight", (dim,), "norm", layers),
        Tensors(f"{attention}.index_k_norm.weight", (dim,), "norm", layers),
    ]


def _row(
    name: str,
    tensors: Callable[[Config], list[Tensors]],
    experts: str,
    *required: str,
    attention: Attention = "gqa",
    nested: str | None = None,
    mtp: str | None = None,
) -> Architecture:
    return Architecture(
        name,
        attention,
        (*COMMON, *GQA, experts, "num_experts_per_tok", *required),
        tensors,
        experts_field=experts,
        mtp_field=mtp,
        text_config=nested,
    )


_WIDTH, _WIDE = "moe_intermediate_size", "intermediate_size"
_SHARED_WIDTH = "shared_expert_intermediate_size"

_OWN_ROWS = (
    _row("Qwen3MoeForCausalLM", _QWEN3_MOE, "num_experts", "head_dim", _WIDTH),
    # Its config counts three MTP modules, but no repository of the family holds their weights:
    # MiniMax-AI/MiniMax-M2.5 issue 8 (2026-03-02).
    _row("MiniMaxM2ForCausalLM", _MINIMAX_M2, "num_local_experts", "head_dim", _WIDE),
    _row(
        "GptOssForCausalLM",
        _gpt_oss,
        "num_local_experts",
        *("head_dim", _WIDE, "sliding_window"),
        attention="gqa_window",
    ),
    _row("Qwen2MoeForCausalLM", _QWEN2_MOE, "num_experts", _WIDTH, _SHARED_WIDTH),
    _row(
        "Qwen3VLMoeForConditionalGeneration",
        _QWEN3_VL_MOE,
        "num_experts",
        *("head_dim", _WIDTH),
        nested="text_config",
    ),
    _row("MixtralForCausalLM", _MIXTRAL, "num_local_experts", _WIDE),
    _row("PhiMoEForCausalLM", _PHI_MOE, "num_local_experts", _WIDE),
    _row(
        "Glm4MoeForCausalLM",
        _glm4_moe,
        "n_routed_experts",
        *("first_k_dense_replace", "n_shared_experts", _WIDE, _WIDTH),
        mtp="num_nextn_predict_layers",
    ),
    _row(
        "Glm4vMoeForConditionalGeneration",
        _glm4v_moe,
        "n_routed_experts",
        *("first_k_dense_replace", "n_shared_experts", _WIDE, _WIDTH),
        nested="text_config",
    ),
    _row(
        "Dots1ForCausalLM",
        Decoder(qk_norm="head", mlps=_GLM4_EXPERTS),
        "n_routed_experts",
        *("first_k_dense_replace", "n_shared_experts", _WIDE, _WIDTH),
    ),
    _row(
        "Ernie4_5_MoeForCausalLM",
        Decoder(mlps=_ERNIE_EXPERTS),
        "num_experts",
        *(_WIDE, _WIDTH, "n_shared_experts"),
    ),
    _row("HunYuanMoEV1ForCausalLM", _HUNYUAN_MOE, "num_experts", _WIDTH),
    _row(
        "OlmoeForCausalLM",
        Decoder(qk_norm="width", mlps=Experts("num_experts", "intermediate_size")),
        "num_experts",
        _WIDE,
    ),
    _row(
        "Llama4ForConditionalGeneration",
        _LLAMA4,
        "num_local_experts",
        *(_WIDE, "intermediate_size_mlp"),
        attention="gqa_window",
        nested="text_config",
    ),
    _row(
        "MiniMaxM3SparseForConditionalGeneration",
        _minimax_m3,
        "num_local_experts",
        *(_WIDE, "head_dim"),
        nested="text_config",
    ),
)


# LG K-EXAONE.
#
# Names and shapes: exaone_moe of Hugging Face transformers 5.23 with its table of published names.


def _shared(config: Config) -> int:
    return int(config["moe_intermediate_size"] * config.get("num_shared_experts", 1))


_K_EXAONE = Decoder(
    qk_norm="head",
    bias="none",
    mlps=Experts(
        "num_experts",
        score="e_score_correction_bias",
        shared_width=_shared,
        is_dense=DenseLayers(1, flags="is_moe_layer"),
    ),
)


_K_EXAONE_ROWS = tuple(
    Architecture(
        name,
        "gqa_window",
        (*COMMON, *GQA, "num_experts", "num_experts_per_tok", "moe_intermediate_size"),
        _K_EXAONE,
        experts_field="num_experts",
    )
    for name in ("ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM")
)


# Tencent Hy3: every layer but the first has routed experts and a shared one.
#
# Names and shapes: hy_v3 of Hugging Face transformers 5.23 with its table of published names. Its
# layer for multi-token prediction is left out.


_HY3 = Decoder(
    qk_norm="head",
    bias="none",
    mlps=Experts(
        "num_experts",
        gate="router.gate",
        score="expert_bias",
        shared="shared_mlp",
        shared_width=shared_width,
        is_dense=DenseLayers(1),
    ),
)

_HY3_ROWS = (
    Architecture(
        "HYV3ForCausalLM",
        "gqa",
        (
            *(*COMMON, *GQA, "intermediate_size", "moe_intermediate_size"),
            *("num_experts", "num_experts_per_tok"),
        ),
        _HY3,
        experts_field="num_experts",
    ),
)


# inclusionAI Ling and Arcee Trinity: mixtures of experts with unusual attention.
#
# Names and shapes: models/modeling_bailing_moe.py of github.com/inclusionAI/Ling and
# models/modeling_bailing_moe_v2.py of github.com/inclusionAI/Ling-V2, the width of the shared
# expert and the router's bias as SGLang reads them (python/sglang/srt/models/bailing_moe.py), and
# afmoe of Hugging Face transformers 5.23. Layers for multi-token prediction, which no published
# file of either was seen to have, are left out.


_LING_EXPERTS = Experts("num_experts", shared_width=shared_width, is_dense=DenseLayers())


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
        is_dense=DenseLayers(field="num_dense_layers"),
    ),
)


def _trinity(config: Config) -> list[Tensors]:
    """The attention's output goes through a gate of its width."""
    every = tuple(range(config["num_hidden_layers"]))
    query, hidden = config["num_attention_heads"] * head_dim(config), config["hidden_size"]
    gate = linear("model.layers.{layer}.self_attn.gate_proj", query, hidden, "attention", every)
    return [*_TRINITY(config), gate]


_REQUIRED = (*COMMON, *GQA, "num_experts", "num_experts_per_tok", "moe_intermediate_size")

_LING_ROWS = (
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


ROWS = (*_OWN_ROWS, *_K_EXAONE_ROWS, *_HY3_ROWS, *_LING_ROWS)
