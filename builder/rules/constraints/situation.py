"""The situation in which options are to be used: the facts that rules ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from ...facts.architecture import Architecture
from ...facts.checkpoint import Checkpoint
from ...facts.hardware import Gpu
from ...facts.release import Release, ServerRole


@dataclass(frozen=True)
class Situation:
    """Where options are to be used; what is `None` is unknown, and rules that need it are silent.

    `quant_algo` is the checkpoint's, `BF16` for one that is not quantized; `kv_dtype` is what
    `kv_cache_config.dtype` auto means for it, in the words of that option. `isl` and `osl` are
    tokens per request, `concurrency` requests at once; `block_size` are the nodes of a block of the
    cluster's topology.
    """

    release: Release
    role: ServerRole = "agg"
    gpu: Gpu | None = None
    architecture: Architecture | None = None
    quant_algo: str | None = None
    kv_dtype: str | None = None
    mtp_layers: int | None = None
    num_experts: int | None = None
    isl: int | None = None
    osl: int | None = None
    concurrency: int | None = None
    block_size: int | None = None

    @classmethod
    def of(cls, release: Release, checkpoint: Checkpoint, **known: Any) -> Self:
        """The situation of a checkpoint whose facts are known."""
        experts = checkpoint.architecture.experts_field
        return cls(
            release,
            architecture=checkpoint.architecture,
            quant_algo=checkpoint.precision,
            kv_dtype=_kv_dtype(checkpoint),
            mtp_layers=checkpoint.mtp_layers,
            num_experts=int(checkpoint.text_config[experts]) if experts else None,
            **known,
        )

    @property
    def release_name(self) -> str:
        return self.release.name

    @property
    def length(self) -> int | None:
        """Tokens of one request, prompt and answer."""
        return None if self.isl is None or self.osl is None else self.isl + self.osl

    @property
    def sm(self) -> int | None:
        """The compute capability times ten."""
        return self.gpu.sm.value if self.gpu else None

    @property
    def gpu_name(self) -> str | None:
        return self.gpu.name if self.gpu else None

    @property
    def gpus_per_node(self) -> int | None:
        return self.gpu.gpus_per_node.value if self.gpu else None

    @property
    def block(self) -> int | None:
        """The nodes of a block of the cluster, or else those that NVLink connects."""
        nodes = self.gpu.nvlink_domain_gpus.value // self.gpu.gpus_per_node.value if self.gpu else 1
        return self.block_size or (nodes if nodes > 1 else None)

    @property
    def attention(self) -> str | None:
        return self.architecture.attention if self.architecture else None

    @property
    def moe(self) -> bool | None:
        """Whether the model has experts."""
        return bool(self.architecture.experts_field) if self.architecture else None


def _kv_dtype(checkpoint: Checkpoint) -> str:
    """The type of the KV cache that a checkpoint asks for: its quantized one, or the model's."""
    config = checkpoint.text_config
    algo = checkpoint.quantization.kv_cache_quant_algo
    return str(algo or config.get("dtype") or config.get("torch_dtype") or "bfloat16").lower()
