"""How one server can spread a model over its GPUs, in the options of its release."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..facts.checkpoint import Checkpoint
from ..facts.release import Release

SIZE = "tensor_parallel_size"
_COPIES = "data_parallel_size"  # of the attention, in an engine that counts them


@dataclass(frozen=True, slots=True)
class Layout:
    """`ep` GPUs share the routed experts as a whole; with attention DP each has whole requests."""

    num_gpus: int
    attention_dp: bool
    ep: int

    @property
    def tp(self) -> int:
        """The GPUs that share the attention of a request."""
        return 1 if self.attention_dp else self.num_gpus

    @property
    def ranks(self) -> int:
        """The number of GPU groups that take requests in turn, each with a separate batch."""
        return self.num_gpus if self.attention_dp else 1

    def settings(self, release: Release, checkpoint: Checkpoint) -> dict[str, Any]:
        """The options that make the layout."""
        has_experts = checkpoint.architecture.experts_field is not None
        if _COPIES in release.paths:
            found: dict[str, Any] = {SIZE: self.tp, _COPIES: self.ranks}
            return found | ({"enable_expert_parallel": self.ep > 1} if has_experts else {})
        found = {SIZE: self.num_gpus}
        if has_experts:
            found |= {
                "enable_attention_dp": self.attention_dp,
                "moe_expert_parallel_size": self.ep,
            }
        return found


def layouts(checkpoint: Checkpoint, num_gpus: int) -> Iterator[Layout]:
    """Every layout of a server: attention whole or split, experts whole or split."""
    shared = checkpoint.architecture.experts_field is not None and num_gpus > 1
    for attention_dp in (False, True) if shared else (False,):
        for ep in (1, num_gpus) if shared else (1,):
            yield Layout(num_gpus, attention_dp, ep)
