"""The facts of a GPU and of the node that it sits in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..diagnostics import Diagnostic, nearest
from ..documents import DATA, load_yaml
from ..errors import BadInput

HARDWARE = DATA / "hardware"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU.

    `memory_cuda_mib` is the total that CUDA reports to an engine, less than nvidia-smi shows and
    another unit than the number in the product's name. `sm` is the compute capability times ten.
    `cpu_arch` is that of the node, as `uname -m` prints it.
    """

    name: str
    product: str
    sm: int
    precisions: tuple[str, ...]
    memory_cuda_mib: int
    memory_verified: bool
    memory_source: str
    gpus_per_node: int
    nvlink_domain_gpus: int
    cpu_arch: str

    @property
    def memory_gib(self) -> float:
        return self.memory_cuda_mib / 1024


def known() -> list[str]:
    return sorted(path.stem for path in HARDWARE.glob("*.yaml"))


@cache
def load(name: str) -> Gpu:
    """The facts of a GPU. Raises `BadInput` with the nearest name if it is unknown."""
    if name not in known():
        raise BadInput(Diagnostic("hardware.gpu", f"{name} is unknown", nearest(name, known())))
    row = load_yaml((HARDWARE / f"{name}.yaml").read_text(encoding="utf-8"))
    return Gpu(
        name=row["name"],
        product=row["product"],
        sm=row["sm"]["value"],
        precisions=tuple(row["precisions"]),
        memory_cuda_mib=row["memory_cuda_mib"]["value"],
        memory_verified=row["memory_cuda_mib"]["verified"],
        memory_source=row["memory_cuda_mib"]["source"],
        gpus_per_node=row["gpus_per_node"]["value"],
        nvlink_domain_gpus=row["nvlink_domain_gpus"]["value"],
        cpu_arch=row["cpu_arch"]["value"],
    )
