"""The memory of one GPU, part by part, and what is left for the KV cache: pure arithmetic.

The engine measures what a dry run with `max_num_tokens` tokens and its graphs takes, with a
temporary KV pool in place, and gives the KV cache a fraction of the rest:
`kv = (total - peak + temporary pool) * free_gpu_memory_fraction`. This holds for all of 40 GB200
logs to 0.03 GiB. The fraction is of what is left after weights, graphs and activations.

Everything is counted in GiB of what CUDA reports. Formulas and constants were checked against
published TensorRT-LLM logs of GB200 runs and capacity tables of H100 and GB300: NVIDIA CI logs of
early 2026 (HuiGao-NV/TensorRT-LLM@31d1a1e case_fraction_map.txt), tech blogs 3 and 20, and the
KV-capacity tests of ai-dynamo/aiconfigurator@095f58a. The tests compute and print the errors:

- weights of 28 logs: 0.2 to 6.6 GiB over the computed, as a log holds workspaces and graphs too;
- six outliers hold 8 to 36 GiB more: prefill servers of DeepSeek-R1 (two) and V3.2 (three) with
  attention data parallelism and MTP, explained to 0.6 GiB by the workspace of MTP's BF16 experts,
  and one of Kimi-K2.5, whose shape is assumed to be that of Kimi-K2;
- whole budgets: within 2 GiB of 15 logs of aggregated and prefill servers that tell
  `max_num_tokens`, but 8.7 GiB short for V3.2 with attention data parallelism, MTP and CUTLASS
  experts; decode servers up to 7.9 GiB short;
- capacities of 72 dense servers: 0.3 percent in the mean, 2.3 at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import Any, Literal

from .architecture import Attention, Role
from .checkpoint import Checkpoint
from .hardware import Gpu, MeasuredMemory
from .quantization import TensorGroup
from .release import Release, ServerRole
from .weight_layouts import FORMATS

GIB = 2**30
COPIES = "data_parallel_size"  # of the attention; an engine that has no such option has a switch

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
        """The GPUs that share the attention of a request."""
        return 1 if self.enable_attention_dp else self.tensor_parallel_size

    @property
    def data_parallel_ranks(self) -> int:
        """The number of GPU groups that take requests in turn, each with a separate batch."""
        return self.tensor_parallel_size if self.enable_attention_dp else 1

    @property
    def layout(self) -> tuple[int, int, int]:
        """TP, attention DP and EP, as measurements have them."""
        return self.attention_ranks, self.data_parallel_ranks, self.moe_expert_parallel_size

    def settings(self, release: Release, checkpoint: Checkpoint) -> dict[str, Any]:
        """The options that spread a model without stages."""
        has_experts = checkpoint.architecture.experts_field is not None
        is_split = self.moe_expert_parallel_size > 1
        if COPIES in release.paths:
            found: dict[str, Any] = {
                "tensor_parallel_size": self.attention_ranks,
                COPIES: self.data_parallel_ranks,
            }
            return found | ({"enable_expert_parallel": is_split} if has_experts else {})
        names = ("enable_attention_dp", "moe_expert_parallel_size") if has_experts else ()
        return {name: getattr(self, name) for name in ("tensor_parallel_size", *names)}


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


# How many layers of KV cache MTP needs, which the release's table says: one per draft token in
# releases up to early 2026 (temporary pools of 62 and 64 layers at one and three draft tokens in
# GB200 logs), one in later code, which uses its one MTP layer again for every draft token.
MtpLayers = Literal["per_draft_token", "one"]

_INDEXER_BLOCK = 128  # channels per FP32 scale in the indexer's FP8 key cache

# Bytes of one value by the words of `kv_cache_config.dtype` and of checkpoints. NVFP4 keeps half a
# byte and, for every 16 values, an FP8 scale, which the engine charges as well (TensorRT-LLM,
# _torch/pyexecutor/resource_manager.py: calculate_scaling_factor_size_bytes). The packed format of
# sparse attention has 656 bytes where FP8 has 576 (FlashMLA), and the rest as FP8 has it.
_PLAIN_BYTES = 2.0
_DTYPE_BYTES: dict[str, float] = {
    "nvfp4": 1 / 2 + 1 / 16,
    **dict.fromkeys(("fp8", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"), 1.0),
    "fp8_ds_mla": 656 / 576,
    **dict.fromkeys(("float16", "half", "bfloat16", "int16", "uint16"), _PLAIN_BYTES),
    **dict.fromkeys(("float32", "float", "int32", "uint32"), 4.0),
    **dict.fromkeys(("float64", "double", "int64", "uint64"), 8.0),
}


def kv_dtype_bytes(dtype: str, kv_cache_quant_algo: str | None) -> float:
    """Bytes of one value of the KV cache; `auto` is what the checkpoint is quantized for.

    An unknown word counts as two bytes, the most that a model uses by default.
    """
    word = dtype.lower()
    if word == "auto":
        word = (kv_cache_quant_algo or "bfloat16").lower()
    return _DTYPE_BYTES.get(word, _PLAIN_BYTES)


def kv_bytes_per_token(
    checkpoint: Checkpoint,
    sharding: Sharding,
    kv_dtype_bytes: float,
    mtp_draft_tokens: int,
    mtp_kv_layers: MtpLayers = "per_draft_token",
    max_attention_window: Sequence[int] = (),
) -> int:
    """KV-cache bytes per token on one GPU, of all layers that keep every token.

    Sliding-window attention is sized on all layers unless `max_attention_window` is given: the
    engine does so too (a temporary pool of 131,072 tokens of gpt-oss on 36 layers in a GB200 log).
    """
    drafts = min(1, mtp_draft_tokens) if mtp_kv_layers == "one" else mtp_draft_tokens
    layers = layer_bytes(checkpoint, sharding, kv_dtype_bytes)
    whole = layers
    if max_attention_window:
        longest, windows = max(max_attention_window), _windows(max_attention_window, len(layers))
        whole = [size for size, window in zip(layers, windows, strict=True) if window == longest]
    share = ceil(len(whole) / sharding.pipeline_parallel_size) + drafts
    return ceil(share * fmean(whole or layers))


def layer_bytes(checkpoint: Checkpoint, sharding: Sharding, kv_dtype_bytes: float) -> list[float]:
    """KV-cache bytes of one token on one GPU, of each layer that has a KV cache.

    With sparse attention the indexer keeps FP8 keys and FP32 scales whatever the KV dtype; the
    engine charges them by that dtype all the same.
    """
    config, architecture = checkpoint.text_config, checkpoint.architecture
    layers = architecture.attention_layers(config)
    if architecture.code.cached_values is not None:
        return [architecture.code.cached_values(config) * kv_dtype_bytes] * layers
    match architecture.attention:
        case "mla" | "mla_hybrid":
            elements = config["kv_lora_rank"] + config["qk_rope_head_dim"]
        case "mla_dsa":
            index_dim = config["index_head_dim"]
            elements = config["kv_lora_rank"] + config["qk_rope_head_dim"]
            elements += index_dim + 4 * index_dim // _INDEXER_BLOCK
        case _:
            # Keys and values; heads are duplicated when there are fewer than ranks.
            ranks = sharding.attention_ranks
            return [
                2 * ceil(heads / ranks) * width * kv_dtype_bytes
                for heads, width in architecture.key_value_heads(config)
            ]
    return [float(elements * kv_dtype_bytes)] * layers


def _windows(pattern: Sequence[int], layers: int) -> list[int]:
    return [pattern[layer % len(pattern)] for layer in range(layers)]


def state_bytes_per_request(
    checkpoint: Checkpoint,
    sharding: Sharding,
    kv_dtype_bytes: float = 1,
    max_attention_window: Sequence[int] = (),
) -> int:
    """What one request keeps on one GPU whatever its length.

    Full windows of sliding-window layers; with linear attention the FP32 recurrent state and the
    BF16 convolution window.
    """
    in_windows = 0
    if max_attention_window:
        layers = layer_bytes(checkpoint, sharding, kv_dtype_bytes)
        windows = _windows(max_attention_window, len(layers))
        pairs = zip(layers, windows, strict=True)
        in_windows = ceil(sum(size * window for size, window in pairs if window < max(windows)))
    recurrent = checkpoint.architecture.code.recurrent
    if recurrent is None:
        return in_windows
    kept = recurrent(checkpoint.text_config)
    states = kept.layers * (kept.state * 4 + kept.window * 2) / sharding.attention_ranks
    return in_windows + int(states)


# What the engine itself takes: activations, expert workspaces, graphs, buffers. None of this is
# documented. The constants are fits to 72 capacities of dense models on H100 and GB300
# (aiconfigurator's KV-capacity tests) and to 40 logs of GB200 runs in NVIDIA's CI of early 2026
# (DeepSeek-R1 and V3.2, Kimi-K2, Qwen3-235B, gpt-oss), ten of them with `max_num_tokens`.

# Bytes per token of BF16 values of the hidden size. Dense models also hold values of the
# intermediate size. 72 capacities: mean error 0.2 percent.
_DENSE_HIDDEN, _DENSE_INTERMEDIATE = 6, 6
# Mixtures of experts: 15 hidden states of every token, and 18 more of the first 4096 with latent
# attention. Peaks in logs of DeepSeek-R1: 0.58 GiB at 1536 tokens, 2.74 at 8192, 3.59 at 12288,
# 4.28 at 16384, 28.4 at 131,104.
_MOE_HIDDEN = 15
_MLA_FIRST, _MLA_FIRST_TOKENS = 18, 4096
# Sparse attention adds per head what 7 GiB at 16384 tokens and 13.9 at 32784 leave over.
_DSA_HEAD_BYTES = 1600

# Outside of torch: CUDA context, NCCL, buffers of the reductions over NVLink. By ranks, fitted to
# the dense capacities; 2.0, 4.4 and 5.8 GiB in logs of gpt-oss with one, two and four ranks.
_BASE_GIB = {1: 2.3, 2: 3.3}
_BASE_MANY_GIB = 4.3
# Hidden states per token that are reduced over ranks, which attention-DP ranks do for MTP only:
# 5.6 and 6.1 GiB at 8192 and 12288 tokens of R1, 6.5 and 9.6 at 16384 and 32784 of V3.2.
_REDUCTION_HIDDEN = 10
_EXPERT_PARALLEL_GIB = 1.2  # TEP4 against TP4 of DeepSeek-R1
_DSA_GIB = 1.2  # DeepSeek-V3.2 against R1
# A decode server also holds what it receives KV blocks and exchanges tokens with: 0 to 9 GiB over
# the rest in 15 logs.
_DECODE_GIB = 2.5

# One captured CUDA graph: 9.5 to 12 MB on DeepSeek-R1, 23 MB on DeepSeek-V3.2 (tech blog 20); the
# other kinds are assumed to take as much as R1.
_GRAPH_MB: dict[Attention, float] = {"mla_dsa": 23.1}
_OTHER_GRAPH_MB = 11.0

# The largest errors of whole budgets: of the dense capacities, and of the logs by role. The worst
# are a V3.2 server with attention DP and MTP (8.7 GiB more than computed), a Qwen3-235B prefill
# server (6.3) and a decode server for 128k contexts (7.9).
_DENSE_UNCERTAINTY_GIB = 1.0
_UNCERTAINTY_GIB: dict[ServerRole, float] = {"agg": 2.0, "prefill": 6.5, "decode": 8.0}
_ATTENTION_DP_UNCERTAINTY_GIB = 9.0

# Compute capabilities of the GPUs in those logs and tables: Hopper and Blackwell for servers.
MEASURED_SM = (90, 100, 103)


def activations_gib(checkpoint: Checkpoint, sharding: Sharding, max_num_tokens: int) -> float:
    """The peak of one step of `max_num_tokens` tokens, expert workspace not counted."""
    config, tokens = checkpoint.text_config, max_num_tokens
    hidden = 2 * config["hidden_size"]
    if checkpoint.architecture.experts_field is None:
        width = 2 * config["intermediate_size"] / sharding.tensor_parallel_size
        return float(tokens * (_DENSE_HIDDEN * hidden + _DENSE_INTERMEDIATE * width) / GIB)
    peak = hidden * _MOE_HIDDEN * tokens
    if checkpoint.architecture.attention.startswith("mla"):
        peak += hidden * _MLA_FIRST * min(tokens, _MLA_FIRST_TOKENS)
    if checkpoint.architecture.attention == "mla_dsa":
        heads = config["num_attention_heads"] / sharding.attention_ranks
        peak += tokens * heads * _DSA_HEAD_BYTES
    return float(peak / GIB)


def expert_workspace_gib(
    checkpoint: Checkpoint,
    sharding: Sharding,
    max_num_tokens: int,
    with_mtp: bool,
    moe_backend: str | None = None,
    moe_max_num_tokens: int | None = None,
) -> float:
    """Buffers of the routed experts, for the tokens of all attention-DP ranks.

    Kernels that copy every token once per expert it is routed to (all but TRTLLM, and those for
    BF16 experts, as NVFP4 checkpoints keep them in their MTP layer) hold its input, the outputs of
    gate and up projection and of the down projection: for BF16 `4 * (hidden + intermediate)` bytes
    per token and expert. This meets the logs: 2.25 of 2.35 GiB at 8192 tokens of DeepSeek-R1 on
    TP4, 18.0 of 18.0 at 16384 tokens of four attention-DP ranks, 6.75 of 6.64 at 1536 tokens of 16.
    TRTLLM kernels hold about four hidden states per token: 3.55 to 3.94 GiB at 4 x 16384 tokens.
    """
    config, architecture = checkpoint.text_config, checkpoint.architecture
    if architecture.experts_field is None:
        return 0.0
    hidden = config["hidden_size"]
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    tokens = max_num_tokens * sharding.data_parallel_ranks
    if moe_max_num_tokens is not None:
        tokens = min(tokens, moe_max_num_tokens)
    plain = any(
        group.role == "routed_expert" and group.dtype == "BF16" and (with_mtp or not group.mtp)
        for group in checkpoint.groups
        if group.mtp or checkpoint.precision == "BF16"
    )
    if not plain and moe_backend in (None, "TRTLLM"):
        return float(tokens * 4 * 2 * hidden / GIB)
    inputs = 2.0 if plain else FORMATS[checkpoint.precision].activation_bytes
    slots = tokens * config["num_experts_per_tok"]
    return float(slots * ((inputs + 2) * hidden + 4 * width) / GIB)


def cuda_graphs_gib(checkpoint: Checkpoint, num_cuda_graphs: int) -> float:
    megabytes = _GRAPH_MB.get(checkpoint.architecture.attention, _OTHER_GRAPH_MB)
    return num_cuda_graphs * megabytes * 1e6 / GIB


def other_gib(
    checkpoint: Checkpoint,
    sharding: Sharding,
    max_num_tokens: int,
    with_mtp: bool,
    decode: bool = False,
) -> float:
    """Context, communication and their buffers."""
    ranks = sharding.tensor_parallel_size
    other = _BASE_GIB.get(ranks, _BASE_MANY_GIB)
    if checkpoint.architecture.experts_field is None:
        return other
    if ranks > 1 and (with_mtp or not sharding.enable_attention_dp):
        hidden = 2 * checkpoint.text_config["hidden_size"]
        other += _REDUCTION_HIDDEN * hidden * max_num_tokens / GIB
    if not sharding.enable_attention_dp:
        other += _EXPERT_PARALLEL_GIB if sharding.moe_expert_parallel_size > 1 else 0.0
        other += _DSA_GIB if checkpoint.architecture.attention == "mla_dsa" else 0.0
    return other + (_DECODE_GIB if decode else 0.0)


def uncertainty_gib(checkpoint: Checkpoint, sharding: Sharding, role: ServerRole) -> float:
    """The largest difference between such a budget and a log of such a server."""
    if checkpoint.architecture.experts_field is None:
        return _DENSE_UNCERTAINTY_GIB
    if role == "agg" and sharding.enable_attention_dp:
        return _ATTENTION_DP_UNCERTAINTY_GIB
    return _UNCERTAINTY_GIB[role]


@dataclass(frozen=True, slots=True)
class Load:
    """The settings of one server under the engine's names, and its requests.

    `kv_cache_dtype` and `max_attention_window` are those of `kv_cache_config`, `moe_backend` and
    `moe_max_num_tokens` those of `moe_config`. `mtp_draft_tokens` are drafted by the model's own
    layer; how many of its layers a release keeps a cache for is `mtp_kv_layers`. `concurrency` are
    the requests that the server is to hold at once, each of `tokens_per_request`. What the share
    for the KV cache is of is `share_of`: what is left, or the whole GPU with all that lies in it.
    """

    max_num_tokens: int
    tokens_per_request: int
    free_gpu_memory_fraction: float
    concurrency: int = 1
    role: ServerRole = "agg"
    max_batch_size: int | None = None
    max_seq_len: int | None = None
    num_cuda_graphs: int = 0
    kv_cache_dtype: str = "auto"
    tokens_per_block: int = 32
    max_attention_window: Sequence[int] = ()
    mtp_draft_tokens: int = 0
    mtp_kv_layers: MtpLayers = "per_draft_token"
    moe_backend: str | None = None
    moe_max_num_tokens: int | None = None
    share_of: Literal["left", "total"] = "left"


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory of one GPU in GiB of what CUDA reports, and what its KV cache holds.

    `activations_gib` includes the experts' workspace. `temporary_kv_gib` is the pool of the dry
    run, which the KV cache replaces; the engine shrinks it if it must. `needed_gib` is the cache
    for all concurrent requests of the workload, `request_gib` for one. `cached_requests` fit into
    the cache of all GPUs of one server, and `max_concurrency` of them run concurrently: at most a
    batch on every rank. `uncertainty_gib` is the largest error of such budgets against logs; of
    sizes that were `measured`, whose source this is, there is none.
    """

    total_gib: float
    weights_gib: float
    activations_gib: float
    cuda_graphs_gib: float
    other_gib: float
    kv_cache_gib: float
    kv_bytes_per_token: int
    kv_tokens: int
    cached_requests: int
    max_concurrency: int
    request_gib: float
    needed_gib: float
    temporary_kv_gib: float
    uncertainty_gib: float
    free_gpu_memory_fraction: float
    measured: str = ""

    @property
    def used_gib(self) -> float:
        """Everything but the KV cache."""
        return self.weights_gib + self.activations_gib + self.cuda_graphs_gib + self.other_gib

    @property
    def margin_gib(self) -> float:
        """KV cache that the workload leaves free; below zero, some of its requests wait."""
        return self.kv_cache_gib - self.needed_gib

    @property
    def fits(self) -> bool:
        """Whether one request fits, if the error is no larger than any that was seen."""
        slack = self.uncertainty_gib * self.free_gpu_memory_fraction
        left = self.total_gib - self.used_gib
        return min(left, self.kv_cache_gib) + slack >= self.request_gib

    @property
    def tight(self) -> bool:
        """Whether an error as large as one that was seen would make the workload wait."""
        return self.margin_gib < self.uncertainty_gib * self.free_gpu_memory_fraction


def budget(
    checkpoint: Checkpoint,
    gpu: Gpu,
    sharding: Sharding,
    load: Load,
    draft: Checkpoint | None = None,
    measured: MeasuredMemory | None = None,
) -> Budget:
    """The memory budget of one GPU of a server.

    `draft` is the checkpoint of a draft model, which is split like the model itself. `measured` is
    what a start with the same options took.
    """
    with_mtp = load.mtp_draft_tokens > 0 and checkpoint.mtp_layers > 0
    weights = weights_bytes(checkpoint, sharding, with_mtp, load.moe_backend) / GIB
    if draft is not None:
        weights += weights_bytes(draft, sharding, with_mtp=False) / GIB
    tokens, backend, most = load.max_num_tokens, load.moe_backend, load.moe_max_num_tokens
    activations = activations_gib(checkpoint, sharding, tokens)
    activations += expert_workspace_gib(checkpoint, sharding, tokens, with_mtp, backend, most)
    graphs = cuda_graphs_gib(checkpoint, load.num_cuda_graphs)
    other = other_gib(checkpoint, sharding, tokens, with_mtp, decode=load.role == "decode")
    if measured:
        taken = _taken_gib(gpu.memory_gib, load, measured)
        weights = min(measured.weights_gib or weights, taken)
        graphs = min(graphs, taken - weights)
        activations = min(activations, taken - weights - graphs)
        other = taken - weights - graphs - activations
    taken = weights + activations + graphs + other
    left = gpu.memory_gib - taken
    share = load.free_gpu_memory_fraction
    pool = max(0.0, left * share if load.share_of == "left" else gpu.memory_gib * share - taken)
    per_token = _kv_bytes_per_token(checkpoint, sharding, load, draft)
    request, block = _request_bytes(checkpoint, sharding, load, per_token), load.tokens_per_block
    ranks, held = sharding.data_parallel_ranks, int(pool * GIB // request)
    longest = load.max_seq_len or checkpoint.text_config.get("max_position_embeddings") or 0
    return Budget(
        total_gib=gpu.memory_gib,
        weights_gib=weights,
        activations_gib=activations,
        cuda_graphs_gib=graphs,
        other_gib=other,
        kv_cache_gib=pool,
        kv_bytes_per_token=per_token,
        kv_tokens=int(pool * GIB // (per_token * block)) * block,
        cached_requests=held * ranks,
        max_concurrency=min(held, load.max_batch_size or held) * ranks,
        request_gib=request / GIB,
        needed_gib=ceil(load.concurrency / ranks) * request / GIB,
        # The longest request, and a block for each other one.
        temporary_kv_gib=(longest + (load.max_batch_size or 1) * block) * per_token / GIB,
        uncertainty_gib=0.0 if measured else uncertainty_gib(checkpoint, sharding, load.role),
        free_gpu_memory_fraction=load.free_gpu_memory_fraction,
        measured=measured.source if measured else "",
    )


def _taken_gib(total_gib: float, load: Load, measured: MeasuredMemory) -> float:
    """All but the KV cache, from the size that its share of the memory came to."""
    share = measured.kv_cache_fraction or load.free_gpu_memory_fraction
    if load.share_of == "left":
        return max(0.0, total_gib - measured.kv_cache_gib / share)
    return max(0.0, total_gib * share - measured.kv_cache_gib)


def _kv_bytes_per_token(
    checkpoint: Checkpoint, sharding: Sharding, load: Load, draft: Checkpoint | None
) -> int:
    """Of the model and its draft model, each in its own dtype where that is `auto`."""
    per_token = kv_bytes_per_token(
        checkpoint,
        sharding,
        _dtype_bytes(checkpoint, load),
        load.mtp_draft_tokens,
        load.mtp_kv_layers,
        load.max_attention_window,
    )
    if draft is not None:
        per_token += kv_bytes_per_token(draft, sharding, _dtype_bytes(draft, load), 0)
    return per_token


def _request_bytes(checkpoint: Checkpoint, sharding: Sharding, load: Load, per_token: int) -> float:
    """What one request keeps on one GPU: whole blocks, and what is there whatever its length."""
    blocks = ceil(load.tokens_per_request / load.tokens_per_block)
    dtype_bytes, windows = _dtype_bytes(checkpoint, load), load.max_attention_window
    state = state_bytes_per_request(checkpoint, sharding, dtype_bytes, windows)
    return blocks * load.tokens_per_block * per_token + state


def _dtype_bytes(checkpoint: Checkpoint, load: Load) -> float:
    return kv_dtype_bytes(load.kv_cache_dtype, checkpoint.quantization.kv_cache_quant_algo)
