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
from typing import Literal

from ...facts.checkpoint import Checkpoint
from ...facts.hardware import Gpu
from ...facts.release import ServerRole
from .kv_cache import MtpLayers, kv_bytes_per_token, kv_dtype_bytes, state_bytes_per_request
from .weights import Sharding, weights_bytes
from .workspace import (
    GIB,
    MEASURED_SM,
    activations_gib,
    cuda_graphs_gib,
    expert_workspace_gib,
    other_gib,
    uncertainty_gib,
)

__all__ = [
    "GIB",
    "MEASURED_SM",
    "Budget",
    "Load",
    "MtpLayers",
    "Sharding",
    "budget",
    "kv_bytes_per_token",
    "kv_dtype_bytes",
    "state_bytes_per_request",
    "weights_bytes",
]


@dataclass(frozen=True, slots=True)
class Load:
    """How one server is set, in the engine's own words, and what its requests are.

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
    batch on every rank. `uncertainty_gib` is the largest error of such budgets against logs.
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
        """Whether one request fits, if the budget is not off by more than any was."""
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
) -> Budget:
    """The memory budget of one GPU of a server.

    `draft` is the checkpoint of a draft model, which is split like the model itself.
    """
    with_mtp = load.mtp_draft_tokens > 0 and checkpoint.mtp_layers > 0
    weights = weights_bytes(checkpoint, sharding, with_mtp, load.moe_backend) / GIB
    if draft is not None:
        weights += weights_bytes(draft, sharding, with_mtp=False) / GIB
    activations = _activations_gib(checkpoint, sharding, load, with_mtp)
    graphs = cuda_graphs_gib(checkpoint, load.num_cuda_graphs)
    decode = load.role == "decode"
    other = other_gib(checkpoint, sharding, load.max_num_tokens, with_mtp, decode)
    left = gpu.memory_gib - weights - activations - graphs - other
    taken = gpu.memory_gib - left
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
        uncertainty_gib=uncertainty_gib(checkpoint, sharding, load.role),
        free_gpu_memory_fraction=load.free_gpu_memory_fraction,
    )


def _activations_gib(
    checkpoint: Checkpoint, sharding: Sharding, load: Load, with_mtp: bool
) -> float:
    tokens, backend = load.max_num_tokens, load.moe_backend
    return activations_gib(checkpoint, sharding, tokens) + expert_workspace_gib(
        checkpoint, sharding, tokens, with_mtp, backend, load.moe_max_num_tokens
    )


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
