"""The facts of a GPU and its node, a file of `builder/data/hardware`, and its measured memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ..diagnostics import Diagnostic, nearest
from ..documents import DATA
from ..errors import BadInput
from ..schema import Bounds, Positive, Sourced, Strict, Text, one_of
from .data_file import load as load_file
from .data_file import names

HARDWARE = DATA / "hardware"

# Those of GPUs with matrix units for 16 bits, times ten (NVIDIA, CUDA GPU Compute Capability).
COMPUTE_CAPABILITIES = (70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)

ComputeCapability = Annotated[int, one_of(COMPUTE_CAPABILITIES)]
# What a GPU computes in, by the engine's names; formats of weights name the one that they need.
Precision = Literal["BF16", "FP8", "FP8_BLOCK_SCALES", "NVFP4", "MXFP4"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU.

    `memory_cuda_mib` is the total that CUDA reports to an engine, less than nvidia-smi shows and
    another unit than the number in the product's name. Where CPU and GPU share one memory,
    `memory_system_mib` is what the operating system holds of it. `sm` is the compute capability
    times ten. `nvlink_domain_gpus` is 1 without NVLink. `cpu_arch` is that of the node, as
    `uname -m` prints it. `kubernetes_product` is the node label `nvidia.com/gpu.product`, which GPU
    feature discovery makes of the driver's name; other variants of a board have other names.
    """

    name: str
    product: Text
    sm: Sourced[ComputeCapability]
    precisions: Sourced[tuple[Precision, ...]]
    memory_cuda_mib: Sourced[Annotated[int, Bounds(ge=1024)]]
    memory_nvidia_smi_mib: Sourced[Annotated[int, Bounds(ge=1024)] | None]
    memory_nominal_gb: Sourced[Positive]
    gpus_per_node: Sourced[Positive]
    nvlink_domain_gpus: Sourced[Positive]
    cpu_arch: Sourced[Literal["x86_64", "aarch64"]]
    hbm_bandwidth_gb_per_s: Sourced[Positive]
    tdp_w: Sourced[Positive]
    tflops_dense: Sourced[dict[Literal["bf16", "fp8", "fp4", "int8"], float | None]]
    kubernetes_product: Sourced[Text]
    memory_system_mib: Sourced[Positive] | None = None

    @property
    def memory_gib(self) -> float:
        """The memory that an engine can use."""
        system_mib = self.memory_system_mib.value if self.memory_system_mib else 0
        return (self.memory_cuda_mib.value - system_mib) / 1024


def known() -> list[str]:
    return list(names(HARDWARE, ".yaml"))


def named(name: str) -> str:
    """The name that a GPU has here, whatever its case and separators; another name as it is.

    >>> named("RTX PRO 6000")
    'rtx_pro_6000'
    """
    found = re.sub(r"[\s_-]+", "_", name.strip().lower())
    return found if found in known() else name


def load(name: str) -> Gpu:
    """The facts of a GPU. Raises `BadInput` with the nearest name if it is unknown."""
    name = named(name)
    if name not in known():
        raise BadInput(Diagnostic("hardware.gpu", f"{name} is unknown", nearest(name, known())))
    return load_file(HARDWARE / f"{name}.yaml", Gpu)


_Gib = Annotated[float, Bounds(gt=0, exact=False)]
_LongText = Annotated[str, Bounds(min_length=1, max_length=1000)]
_Name = Annotated[str, Bounds(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=128)]


class MeasuredMemory(Strict):
    """Sizes in GiB on one GPU, from the log of a start with the same checkpoint, GPUs and options.

    `kv_cache_gib` is the KV cache of one GPU; with the share of memory that it was given
    (`kv_cache_fraction` where the engine logged another one than planned) it says what everything
    else took. `options` are the planned values by path.
    """

    source: _LongText
    checkpoint: _LongText
    gpu: _Name
    num_gpus: Annotated[int, Bounds(ge=1)]
    engine: _Name
    release: _Name
    kv_cache_gib: _Gib
    weights_gib: _Gib | None = None
    kv_cache_fraction: Annotated[float, Bounds(gt=0, le=1, exact=False)] | None = None
    options: dict[str, Any]
