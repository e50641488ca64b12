"""The facts of a published model that ship under its hub name: `builder/data/models`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, TypeVar

from ..schema import Plain, Positive, Sourced, Text, one_of
from .architecture import Config, architectures
from .weight_layouts import FORMATS, MIXED

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class License:
    """`note` is what a deployment has to know of its terms, `url` where they are."""

    name: Text
    source: Text
    verified: bool
    note: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class SourcedValues(Generic[V]):
    """Values of one file of the checkpoint; `other_sources` is who says the ones that it lacks."""

    source: Text
    verified: bool
    values: V
    other_sources: Mapping[str, str] = field(default_factory=dict)


# The fields of a `config.json` that the toolkit or the stand-in engine reads. Other ones are left
# out of a file of facts: a misspelt field would be passed over.
_INTEGERS = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "max_position_embeddings", "rotary_dim"),
    *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("index_n_heads", "index_head_dim", "index_topk", "n_group", "topk_group"),
    *("n_routed_experts", "n_shared_experts", "num_experts", "num_local_experts"),
    *("num_experts_per_tok", "moe_intermediate_size", "shared_intermediate_size"),
    *("shared_expert_intermediate_size", "first_k_dense_replace", "full_attention_interval"),
    *("linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads"),
    *("linear_num_value_heads", "linear_value_head_dim", "num_nextn_predict_layers"),
    *("num_mtp_modules", "mtp_num_hidden_layers", "mtp_transformer_layers"),
    *("draft_vocab_size", "target_hidden_size", "moe_latent_size", "mamba_num_heads"),
    *("mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel", "num_hash_layers", "hc_mult"),
    *("moe_shared_expert_intermediate_size", "o_groups", "o_lora_rank", "hc_sinkhorn_iters"),
    *("dense_intermediate_size", "routed_expert_hidden_size", "compress_rope_theta", "expand"),
    *("chunk_size", "index_topk_freq", "index_skip_topk_offset", "num_expert_group"),
)
_TEXTS = (
    *("model_type", "hidden_act", "torch_dtype", "mamba_ssm_dtype", "dtype", "scoring_func"),
    *("expert_dtype", "hybrid_override_pattern", "mamba_hidden_act", "mamba_ssm_cache_dtype"),
    *("mlp_hidden_act", "mtp_hybrid_override_pattern", "topk_method", "qk_norm_type"),
)
_NUMBERS = (
    *("rms_norm_eps", "rope_theta", "partial_rotary_factor", "routed_scaling_factor", "hc_eps"),
    *("layer_norm_epsilon", "norm_eps", "swiglu_limit", "swiglu_alpha"),
)
_FLAGS = (
    *("tie_word_embeddings", "attn_output_gate", "use_mtp", "attention_bias", "mlp_bias"),
    *("use_bias", "use_conv_bias", "mamba_proj_bias", "norm_topk_prob", "use_qk_norm"),
    *("indexer_rope_interleave", "rope_interleave", "use_gemma_norm", "use_routing_bias"),
    *("mla_use_output_gate", "mla_use_nope", "latent_moe_use_norm", "moe_renormalize"),
)
_TEXT_CONFIG: Any = {
    **{f"{name}?": int for name in _INTEGERS},
    **{f"{name}?": str for name in _TEXTS},
    **{f"{name}?": float for name in _NUMBERS},
    **{f"{name}?": bool for name in _FLAGS},
    "rope_scaling?": dict[str, Any] | None,
    "rope_parameters?": dict[str, Any],
    "sliding_window?": int | None,
    **dict.fromkeys(("linear_attn_config?", "sparse_attention_config?"), dict[str, Any]),
    **{f"{name}?": [str] for name in ("layer_types", "layers_block_type", "indexer_types")},
    **{f"{name}?": [int] for name in ("compress_ratios", "moe_layer_freq")},
}
# A whole `config.json`; a multimodal one nests its language model.
_MODEL_CONFIG: Any = {
    **_TEXT_CONFIG,
    "architectures?": [Text],
    "text_config?": _TEXT_CONFIG,
    "quantization_config?": dict[str, Any],
}
# The fields of a `hf_quant_config.json`.
_QUANTIZATION: Any = {
    "quant_algo?": Annotated[str, one_of((*FORMATS, MIXED))],
    "kv_cache_quant_algo?": Literal["FP8", "NVFP4"] | None,
    "group_size?": int,
    "exclude_modules?": [Text],
    # Of a mixed checkpoint; `*` matches a number, and a name includes the modules below it.
    "quantized_layers?": {"*": {"quant_algo": Annotated[str, one_of(FORMATS)], "group_size?": int}},
}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model; `name` is the one on the hub, `checkpoint_bytes` what its publisher says.

    `aliases` are its other names on the hub, in the second line of the file, so that a search needs
    not read the rest. The parsers have the engine's names; they extract tool calls and reasoning
    from the text. The source of a `null` says why there is no parser.
    """

    name: Text
    config: SourcedValues[Annotated[Config, Plain(_MODEL_CONFIG)]]
    license: License
    quantization: SourcedValues[Annotated[Config, Plain(_QUANTIZATION)]] | None = None
    checkpoint_bytes: Sourced[Positive] | None = None
    tool_parser: Sourced[Text | None] | None = None
    reasoning_parser: Sourced[Text | None] | None = None
    notes: tuple[Text, ...] = ()
    aliases: tuple[Text, ...] = ()

    def inconsistencies(self) -> Iterator[tuple[str, str]]:
        """An architecture that no row describes, and fields that its row needs."""
        config = self.config.values
        name = next(iter(config.get("architectures", ())), "none")
        if name not in architectures():
            where = "config.values.architectures"
            yield where, f"{name} is not supported; one of {', '.join(architectures())}"
            return
        for missing in architectures()[name].of(config).missing_fields(config):
            yield f"config.values.{missing}", "is missing or not a count; add it"
