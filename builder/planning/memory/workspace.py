"""What the engine itself takes of a GPU: activations, expert workspaces, graphs, buffers.

None of this is documented; the constants are fits, and each names its measurements: 72 capacities
of dense models on H100 and GB300 (aiconfigurator's KV-capacity tests), and 40 logs of GB200 runs in
NVIDIA's CI of early 2026 (DeepSeek-R1 and V3.2, Kimi-K2, Qwen3-235B, gpt-oss), ten of them with
`max_num_tokens`.
"""

from __future__ import annotations

from ...facts.architecture import Attention
from ...facts.checkpoint import Checkpoint
from ...facts.release import ServerRole
from ...facts.weight_layouts import FORMATS
from .weights import Sharding

GIB = 2**30

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
    """The largest difference between such a budget and a log, of servers of this kind."""
    if checkpoint.architecture.experts_field is None:
        return _DENSE_UNCERTAINTY_GIB
    if role == "agg" and sharding.enable_attention_dp:
        return _ATTENTION_DP_UNCERTAINTY_GIB
    return _UNCERTAINTY_GIB[role]
