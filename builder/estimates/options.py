"""The layout of a server by the options of its engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SIZES = ("tensor_parallel_size", "data_parallel_size", "moe_expert_parallel_size")
STAGES = "pipeline_parallel_size"
SWITCHES = ("enable_attention_dp", "enable_expert_parallel")
# Where the number of draft tokens is: a plan's name of it, and those of releases.
DRAFTS = (
    "mtp_draft_tokens",
    *(
        f"speculative_config.{name}"
        for name in ("num_nextn_predict_layers", "max_draft_len", "num_speculative_tokens")
    ),
)


def layout_of(values: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """TP, attention DP, EP and draft tokens of the options of an engine."""
    copies = int(values.get("data_parallel_size") or 1)
    gpus = int(values.get("tensor_parallel_size") or 1) * copies
    attention_dp = gpus if values.get("enable_attention_dp") else copies
    experts = gpus if values.get("enable_expert_parallel") else 1
    drafts = [value for path in DRAFTS if isinstance(value := values.get(path), int)]
    ep = int(values.get("moe_expert_parallel_size") or experts)
    return gpus // attention_dp, attention_dp, ep, max(drafts, default=0)
