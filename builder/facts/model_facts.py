"""The facts of a published model that ship under its hub name: `builder/data/models`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypedDict, TypeVar

from .architecture import ARCHITECTURES
from .schema import Positive, Sourced, Text

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


class TextConfig(TypedDict, total=False):
    """The fields of a `config.json` that the toolkit or the stand-in engine reads.

    Other ones are left out of a file of facts: a misspelt field would be passed over.
    """

    model_type: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    hidden_act: str
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    rope_parameters: dict[str, Any]
    rotary_dim: int
    partial_rotary_factor: float
    sliding_window: int | None
    layer_types: tuple[str, ...]
    tie_word_embeddings: bool
    torch_dtype: str
    mamba_ssm_dtype: str
    dtype: str
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts: int
    num_local_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_intermediate_size: int
    shared_expert_intermediate_size: int
    first_k_dense_replace: int
    n_group: int
    topk_group: int
    scoring_func: str
    full_attention_interval: int
    linear_conv_kernel_dim: int
    linear_key_head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_value_head_dim: int
    attn_output_gate: bool
    num_nextn_predict_layers: int
    num_mtp_modules: int
    mtp_num_hidden_layers: int
    mtp_transformer_layers: int
    use_mtp: bool
    draft_vocab_size: int
    target_hidden_size: int


class ModelConfig(TextConfig, total=False):
    """A whole `config.json`; the language model of a multimodal one has a part of its own."""

    architectures: tuple[Text, ...]
    text_config: TextConfig
    quantization_config: dict[str, Any]


class QuantizationValues(TypedDict, total=False):
    """The fields of a `hf_quant_config.json`."""

    quant_algo: Text
    kv_cache_quant_algo: Literal["FP8", "NVFP4"] | None
    group_size: int
    exclude_modules: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model; `name` is the one on the hub, `checkpoint_bytes` what its publisher says."""

    name: Text
    config: SourcedValues[ModelConfig]
    license: License
    quantization: SourcedValues[QuantizationValues] | None = None
    checkpoint_bytes: Sourced[Positive] | None = None
    notes: tuple[Text, ...] = ()

    def inconsistencies(self) -> Iterator[tuple[str, str]]:
        """An architecture that no row describes, and fields that its row needs."""
        config = self.config.values
        name = next(iter(config.get("architectures", ())), None)
        if name not in ARCHITECTURES:
            where = "config.values.architectures"
            yield where, f"{name} is not supported; one of {', '.join(ARCHITECTURES)}"
            return
        for missing in ARCHITECTURES[name].missing_fields(config):
            yield f"config.values.{missing}", "is missing or not a count; add it"
