"""The memory of one GPU, part by part, and what is left for the KV cache.

The engine measures what a dry run with `max_num_tokens` tokens and its graphs takes, with a
temporary KV pool in place, and gives the KV cache a fraction of the rest:
`kv = (total - peak + temporary pool) * free_gpu_memory_fraction`. This holds for all of 40 GB200
logs to 0.03 GiB. The fraction is of what is left after weights, graphs and activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from ..checkpoint import Checkpoint
from ..hardware import Gpu
from ..release import ServerRole
from .kv_cache import MtpLayers, kv_bytes_per_token, state_bytes_per_request
from .weights import Sharding, weights_bytes
from .workspace import (
    GIB,
    activations_gib,
    cuda_graphs_gib,
    expert_workspace_gib,
    other_gib,
    uncertainty_gib,
)


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory of one GPU in GiB of what CUDA reports, and what its KV cache holds.

    `activations_gib` holds the experts' workspace too. `temporary_kv_gib` is the pool that the dry
    run wants and the KV cache replaces; the engine makes it smaller where it must. `needed_gib` is
    what the workload keeps in the cache at once, `request_gib` what one request does.
    `max_concurrency` counts requests over all GPUs of one server. `uncertainty_gib` is the largest
    error of such budgets against logs.
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
    def peak_gib(self) -> float:
        """What the dry run takes at most, as the engine logs it."""
        return self.used_gib + self.temporary_kv_gib

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
    *,
    kv_dtype_bytes: float,
    free_gpu_memory_fraction: float,
    max_num_tokens: int,
    num_cuda_graphs: int,
    mtp_draft_tokens: int,
    tokens_per_request: int,
    concurrency: int = 1,
    role: ServerRole = "agg",
    max_batch_size: int = 1,
    max_seq_len: int | None = None,
    tokens_per_block: int = 32,
    max_attention_window: Sequence[int] = (),
    mtp_kv_layers: MtpLayers = "per_draft_token",
    moe_backend: str | None = None,
    moe_max_num_tokens: int | None = None,
    draft: Checkpoint | None = None,
    instances: int = 1,
) -> Budget:
    """The memory budget of one GPU of a server.

    `draft` is the checkpoint of a draft model, which is split like the model itself.
    `instances` servers share every GPU: each sees as free what the ones before it left, and the
    budget is that of the last one.
    """
    with_mtp = mtp_draft_tokens > 0 and checkpoint.mtp_layers > 0
    window, total = max_attention_window, gpu.memory_gib
    weights = weights_bytes(checkpoint, sharding, with_mtp) / GIB
    per_token = kv_bytes_per_token(
        checkpoint, sharding, kv_dtype_bytes, mtp_draft_tokens, mtp_kv_layers, window
    )
    if draft is not None:
        weights += weights_bytes(draft, sharding, with_mtp=False) / GIB
        per_token += kv_bytes_per_token(draft, sharding, kv_dtype_bytes, 0)
    activations = activations_gib(checkpoint, sharding, max_num_tokens) + expert_workspace_gib(
        checkpoint, sharding, max_num_tokens, with_mtp, moe_backend, moe_max_num_tokens
    )
    graphs = cuda_graphs_gib(checkpoint, num_cuda_graphs)
    other = other_gib(checkpoint, sharding, max_num_tokens, with_mtp, role == "decode")
    used = weights + activations + graphs + other
    for _ in range(instances - 1):
        total -= used + _pool(total - used, free_gpu_memory_fraction)
    pool = _pool(total - used, free_gpu_memory_fraction)
    state = state_bytes_per_request(checkpoint, sharding, kv_dtype_bytes, window)
    request = ceil(tokens_per_request / tokens_per_block) * tokens_per_block * per_token + state
    ranks = sharding.data_parallel_ranks
    longest = max_seq_len or checkpoint.text_config.get("max_position_embeddings") or 0
    return Budget(
        total_gib=total,
        weights_gib=weights,
        activations_gib=activations,
        cuda_graphs_gib=graphs,
        other_gib=other,
        kv_cache_gib=pool,
        kv_bytes_per_token=per_token,
        kv_tokens=int(pool * GIB // (per_token * tokens_per_block)) * tokens_per_block,
        max_concurrency=int(pool * GIB // request) * ranks,
        request_gib=request / GIB,
        needed_gib=ceil(concurrency / ranks) * request / GIB,
        # The longest request, and a block for each other one.
        temporary_kv_gib=(longest + max_batch_size * tokens_per_block) * per_token / GIB,
        uncertainty_gib=uncertainty_gib(checkpoint, sharding, role),
        free_gpu_memory_fraction=free_gpu_memory_fraction,
    )


def _pool(left_gib: float, fraction: float) -> float:
    return max(0.0, left_gib * fraction)
