"""The weights of one GPU: every tensor of the checkpoint, divided as the engine divides it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ...facts.architecture import Role
from ...facts.checkpoint import Checkpoint
from ...facts.quantization import TensorGroup

# Whole on every rank. All other roles are split over the ranks that share attention, except the
# routed experts, which all ranks share.
_REPLICATED: frozenset[Role] = frozenset(
    {
        *("attention_replicated", "indexer", "router", "norm", "mtp_projection"),
        *("vocabulary_map", "expert_projection"),
    }
)

# The MTP layer uses the main model's embedding and head; the checkpoint's copies are not loaded:
# logged weights of DeepSeek with MTP are smaller by just these two.
_ENDS: frozenset[Role] = frozenset({"embedding", "lm_head"})

# The TRTLLM kernels want MXFP4 experts padded: hidden channels to multiples of 512, the
# intermediate channels of a rank to 128 (TensorRT-LLM, _torch/auto_deploy mxfp4_weight_prep.py,
# which mirrors MXFP4WeightTRTLLMGenFusedMoEMethod).
_MXFP4_HIDDEN, _MXFP4_INTERMEDIATE = 512, 128
_PADDING_BACKENDS = (None, "AUTO", "TRTLLM")  # where none is named, the larger weights are counted


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a model is spread over GPUs. Under attention data parallelism attention is not split."""

    tensor_parallel_size: int
    pipeline_parallel_size: int = 1
    enable_attention_dp: bool = False
    moe_expert_parallel_size: int = 1

    @property
    def attention_ranks(self) -> int:
        return 1 if self.enable_attention_dp else self.tensor_parallel_size

    @property
    def data_parallel_ranks(self) -> int:
        return self.tensor_parallel_size if self.enable_attention_dp else 1


def weights_bytes(
    checkpoint: Checkpoint, sharding: Sharding, with_mtp: bool, moe_backend: str | None = None
) -> float:
    """Weight bytes of the fullest rank, MTP layers included if they are used.

    Pipeline parallelism gives a rank its share of the layers, rounded up; the last stage also
    holds the head and the MTP layers.
    """
    layers, ends, mtp = 0.0, dict.fromkeys(_ENDS, 0.0), 0.0
    for group in checkpoint.loaded_groups:
        nbytes = _group_bytes(checkpoint, group, sharding, moe_backend)
        if not group.mtp:
            if group.role in _ENDS:
                ends[group.role] += nbytes
            else:
                layers += nbytes
        elif with_mtp and group.role not in _ENDS:
            mtp += nbytes
    layers += _copies_bytes(checkpoint, sharding)
    if sharding.pipeline_parallel_size == 1:
        return layers + sum(ends.values()) + mtp
    count = int(checkpoint.text_config["num_hidden_layers"])
    stage = layers * ceil(count / sharding.pipeline_parallel_size) / count
    return stage + max(ends["embedding"], ends["lm_head"] + mtp)


def _group_bytes(
    checkpoint: Checkpoint, group: TensorGroup, sharding: Sharding, moe_backend: str | None
) -> float:
    if group.role == "routed_expert":
        padded = group.dtype == "U8" and moe_backend in _PADDING_BACKENDS
        padding = _padding(checkpoint, sharding) if padded else 1.0
        return group.nbytes * padding / sharding.tensor_parallel_size
    whole = group.role in _REPLICATED
    whole |= group.role == "embedding" and not checkpoint.architecture.splits_embedding
    return group.nbytes / (1 if whole else sharding.attention_ranks)


def _padding(checkpoint: Checkpoint, sharding: Sharding) -> float:
    """How much larger the padded experts are than those of the checkpoint."""
    if checkpoint.precision != "MXFP4":
        return 1.0
    config = checkpoint.text_config
    hidden, ranks = config["hidden_size"], sharding.tensor_parallel_size
    whole = config.get("moe_intermediate_size") or config["intermediate_size"]
    width = whole / (ranks // sharding.moe_expert_parallel_size)
    return float(
        _round_up(hidden, _MXFP4_HIDDEN) / hidden * _round_up(width, _MXFP4_INTERMEDIATE) / width
    )


def _round_up(value: float, multiple: int) -> int:
    return ceil(value / multiple) * multiple


def _copies_bytes(checkpoint: Checkpoint, sharding: Sharding) -> float:
    """Copies that the engine makes of MLA weights at load.

    A BF16 transpose of the key half of kv_b_proj; for sparse attention also wk and weights_proj of
    the indexer, fused in FP32.
    """
    config, attention = checkpoint.text_config, checkpoint.architecture.attention
    if not attention.startswith("mla"):
        return 0.0
    layers = checkpoint.architecture.attention_layers(config) + checkpoint.mtp_layers
    heads, rank = config["num_attention_heads"], config["kv_lora_rank"]
    copies = layers * heads * config["qk_nope_head_dim"] * rank * 2 / sharding.attention_ranks
    if attention == "mla_dsa":
        rows = config["index_head_dim"] + config["index_n_heads"]
        copies += layers * rows * config["hidden_size"] * 4
    return float(copies)
