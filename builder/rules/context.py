"""The rule context: facts of the request, checkpoint, GPU and release for which options are set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from ..facts.hardware import Gpu
from ..facts.release import Release, ServerRole

if TYPE_CHECKING:  # most files that are checked name no model
    from ..facts.architecture import Architecture
    from ..facts.checkpoint import Checkpoint


@dataclass(frozen=True)
class RuleContext:
    """For what options are set; `None` is unknown, and rules that need it are not checked.

    `precision` is the checkpoint's quantization, `BF16` for one that has none; `kv_dtype` is what
    `kv_cache_config.dtype` auto means for it, in the words of that option. `isl` and `osl` are
    tokens per request. `num_gpus` and `concurrency`, requests at once, are those of one instance,
    `workload_concurrency` those of the whole service: of these only the last is the same for both
    sides of disaggregated serving. `draft_method` is that of a separate draft model. `block_size`
    are the nodes of a block of the cluster's topology.
    """

    release: Release
    role: ServerRole = "agg"
    gpu: Gpu | None = None
    architecture: Architecture | None = None
    precision: str | None = None
    kv_dtype: str | None = None
    mtp_layers: int | None = None
    num_experts: int | None = None
    isl: int | None = None
    osl: int | None = None
    concurrency: int | None = None
    block_size: int | None = None
    checkpoint: Checkpoint | None = None
    num_gpus: int | None = None
    workload_concurrency: int | None = None
    draft_method: str | None = None
    has_itl_slo: bool | None = None
    is_monitored: bool | None = None
    # Values that do not depend on options, once looked up.
    known: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, release: Release, checkpoint: Checkpoint, **known: Any) -> Self:
        """The context of a checkpoint whose facts are known."""
        experts = checkpoint.architecture.experts_field
        return cls(
            release,
            architecture=checkpoint.architecture,
            precision=checkpoint.precision,
            kv_dtype=_checkpoint_kv_dtype(checkpoint),
            mtp_layers=checkpoint.mtp_layers,
            num_experts=int(checkpoint.text_config[experts]) if experts else None,
            checkpoint=checkpoint,
            **known,
        )

    @property
    def block(self) -> int | None:
        """The nodes of a block of the cluster, or else of an NVLink domain."""
        gpu = self.gpu
        nodes = gpu.nvlink_domain_gpus.value // gpu.gpus_per_node.value if gpu else 1
        return self.block_size or (nodes if nodes > 1 else None)

    @property
    def has_experts(self) -> bool | None:
        model = self.architecture
        return None if model is None else model.experts_field is not None

    @property
    def is_quantized(self) -> bool | None:
        return None if self.precision is None else self.quant_algo is not None

    @property
    def quant_algo(self) -> str | None:
        """The quantization as the release's MoE rows name it."""
        return None if self.precision == "BF16" else self.precision


def _checkpoint_kv_dtype(checkpoint: Checkpoint) -> str:
    """The type of the KV cache that a checkpoint asks for: its quantized one, or the model's."""
    config = checkpoint.text_config
    algo = checkpoint.quantization.kv_cache_quant_algo
    return str(algo or config.get("dtype") or config.get("torch_dtype") or "bfloat16").lower()
