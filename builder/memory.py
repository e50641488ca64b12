"""The memory of one GPU: weights, KV cache, graphs and the rest, as pure arithmetic.

Formulas and constants were checked against published TensorRT-LLM logs of GB200 runs and capacity
tables of H100 and GB300 (NVIDIA CI logs of early 2026, tech blogs 3 and 20, and the KV-capacity
tests of ai-dynamo/aiconfigurator@095f58a). Everything is counted in GiB of what CUDA reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from .architecture import Attention, Config, Role
from .checkpoint import Checkpoint
from .hardware import Gpu

GIB = 2**30

# How many ranks share the tensors of a role: all ranks, the tensor-parallel ranks, or none.
_SHARED_BY_ALL: frozenset[Role] = frozenset({"routed_expert"})
_REPLICATED: frozenset[Role] = frozenset(
    {"attention_replicated", "indexer", "router", "norm", "embedding", "mtp_projection"}
)

# The MTP layer uses the main model's embedding and head; the checkpoint's copies are not loaded:
# logged weights of DeepSeek with MTP are smaller by just these two.
_SHARED_WITH_MAIN: frozenset[Role] = frozenset({"embedding", "lm_head"})

# Memory outside torch and workspaces: CUDA context, NCCL, all-to-all buffers.
_BASE_OTHER_GIB = 5.0
_MOE_OTHER_GIB = 3.0
_DSA_OTHER_GIB = 1.7

# One captured CUDA graph: 9.5 to 12 MB on DeepSeek-R1, 23 MB on DeepSeek-V3.2.
_GRAPH_MB: dict[Attention, float] = {"mla": 11.0, "mla_dsa": 23.1, "gqa": 11.0, "hybrid": 11.0}

_INDEXER_BLOCK = 128  # channels per FP32 scale in the indexer's FP8 key cache


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a model is spread over GPUs. Under attention data parallelism attention is not split."""

    tensor_parallel_size: int
    pipeline_parallel_size: int = 1
    enable_attention_dp: bool = False

    @property
    def attention_ranks(self) -> int:
        return 1 if self.enable_attention_dp else self.tensor_parallel_size


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory of one GPU in GiB, and what its KV cache holds.

    `kv_cache_gib` is the fraction of what is left after weights, graphs, activations and the rest.
    `max_concurrency` counts requests of isl + osl tokens over all GPUs.
    """

    total_gib: float
    weights_gib: float
    activations_gib: float
    cuda_graphs_gib: float
    other_gib: float
    kv_cache_gib: float
    kv_bytes_per_token: int
    kv_tokens: int
    max_concurrency: int

    @property
    def used_gib(self) -> float:
        """Everything but the KV cache."""
        return self.weights_gib + self.activations_gib + self.cuda_graphs_gib + self.other_gib

    @property
    def fits(self) -> bool:
        return self.max_concurrency >= 1


def weights_bytes(checkpoint: Checkpoint, sharding: Sharding, with_mtp: bool) -> float:
    """Weight bytes of one rank, MTP layers included if they are used."""
    tp, pp = sharding.tensor_parallel_size, sharding.pipeline_parallel_size
    total = 0.0
    for group in checkpoint.groups:
        if group.mtp and (not with_mtp or group.role in _SHARED_WITH_MAIN):
            continue
        ranks = sharding.attention_ranks
        if group.role in _SHARED_BY_ALL:
            ranks = tp
        elif group.role in _REPLICATED:
            ranks = 1
        total += group.nbytes / ranks
    return (total + _copies_bytes(checkpoint, sharding)) / pp


def _copies_bytes(checkpoint: Checkpoint, sharding: Sharding) -> float:
    """Copies that the engine makes of MLA weights at load.

    A BF16 transpose of the key half of kv_b_proj; for sparse attention also wk and weights_proj of
    the indexer, fused in FP32.
    """
    config, attention = checkpoint.text_config, checkpoint.architecture.attention
    if attention not in ("mla", "mla_dsa"):
        return 0.0
    layers = config["num_hidden_layers"] + checkpoint.mtp_layers
    heads, rank = config["num_attention_heads"], config["kv_lora_rank"]
    copies = layers * heads * config["qk_nope_head_dim"] * rank * 2 / sharding.attention_ranks
    if attention == "mla_dsa":
        rows = config["index_head_dim"] + config["index_n_heads"]
        copies += layers * rows * config["hidden_size"] * 4
    return float(copies)


def kv_bytes_per_token(
    checkpoint: Checkpoint, sharding: Sharding, kv_dtype_bytes: int, mtp_draft_tokens: int
) -> int:
    """KV-cache bytes per token on one GPU.

    With MTP the engine keeps one more layer per draft token (temporary pools of 64 layers at three
    draft tokens in logs of early 2026; later code keeps one).
    """
    config, tp = checkpoint.text_config, sharding.attention_ranks
    layers: int = config["num_hidden_layers"]
    pp = sharding.pipeline_parallel_size
    match checkpoint.architecture.attention:
        case "mla":
            layer_bytes = _latent_bytes(config, kv_dtype_bytes)
        case "mla_dsa":
            index_dim = int(config["index_head_dim"])
            scales = 4 * index_dim // _INDEXER_BLOCK
            layer_bytes = _latent_bytes(config, kv_dtype_bytes) + index_dim + scales
        case "gqa":
            layer_bytes = _gqa_bytes(config, tp, kv_dtype_bytes)
        case "hybrid":
            layers //= config["full_attention_interval"]
            layer_bytes = _gqa_bytes(config, tp, kv_dtype_bytes)
    return ceil((layers + mtp_draft_tokens) / pp) * layer_bytes


def _latent_bytes(config: Config, kv_dtype_bytes: int) -> int:
    return int(config["kv_lora_rank"] + config["qk_rope_head_dim"]) * kv_dtype_bytes


def _gqa_bytes(config: Config, tp: int, kv_dtype_bytes: int) -> int:
    """Keys and values of one layer; heads are duplicated when there are fewer than ranks."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    heads = ceil(int(config["num_key_value_heads"]) / tp)
    return 2 * heads * int(head_dim) * kv_dtype_bytes


def state_bytes_per_request(checkpoint: Checkpoint, sharding: Sharding) -> int:
    """The fixed state of linear attention: FP32 recurrent state and BF16 convolution window."""
    if checkpoint.architecture.attention != "hybrid":
        return 0
    config, tp = checkpoint.text_config, sharding.attention_ranks
    value_heads, key_dim = config["linear_num_value_heads"], config["linear_key_head_dim"]
    value_dim = config["linear_value_head_dim"]
    channels = 2 * config["linear_num_key_heads"] * key_dim + value_heads * value_dim
    window = config["linear_conv_kernel_dim"] - 1
    recurrent = value_heads * key_dim * value_dim * 4
    layers = config["num_hidden_layers"]
    linear = layers - layers // config["full_attention_interval"]
    return int(linear * (recurrent + channels * window * 2) / tp)


def budget(
    checkpoint: Checkpoint,
    gpu: Gpu,
    sharding: Sharding,
    *,
    kv_dtype_bytes: int,
    free_gpu_memory_fraction: float,
    max_num_tokens: int,
    num_cuda_graphs: int,
    mtp_draft_tokens: int,
    tokens_per_request: int,
) -> Budget:
    """The memory budget of one GPU.

    The engine's fraction applies to what is left after weights, a dry run of graphs and the
    activation peak of `max_num_tokens`, not to what is left after weights alone.
    """
    architecture, config = checkpoint.architecture, checkpoint.text_config
    weights = weights_bytes(checkpoint, sharding, with_mtp=mtp_draft_tokens > 0) / GIB
    # 24 BF16 hidden states per token: 2.6 GiB at 8192 tokens of DeepSeek, 2.7 in the logs.
    activations = 24 * 2 * max_num_tokens * config["hidden_size"] / GIB
    graphs = num_cuda_graphs * _GRAPH_MB[architecture.attention] * 1e6 / GIB
    other = _BASE_OTHER_GIB
    other += _MOE_OTHER_GIB if architecture.experts_field else 0
    other += _DSA_OTHER_GIB if architecture.attention == "mla_dsa" else 0
    left = gpu.memory_gib - weights - activations - graphs - other
    pool = max(0.0, left * free_gpu_memory_fraction)
    per_token = kv_bytes_per_token(checkpoint, sharding, kv_dtype_bytes, mtp_draft_tokens)
    state = state_bytes_per_request(checkpoint, sharding)
    tokens = int(pool * GIB // per_token)
    # Under attention data parallelism each rank holds requests of its own.
    copies = sharding.tensor_parallel_size if sharding.enable_attention_dp else 1
    return Budget(
        total_gib=gpu.memory_gib,
        weights_gib=weights,
        activations_gib=activations,
        cuda_graphs_gib=graphs,
        other_gib=other,
        kv_cache_gib=pool,
        kv_bytes_per_token=per_token,
        kv_tokens=tokens,
        max_concurrency=int(pool * GIB // (per_token * tokens_per_request + state)) * copies,
    )
