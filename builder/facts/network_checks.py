"""What nodes must have before servers transfer KV cache between them, as rows of data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from ..diagnostics import nearest
from ..general_rules import Severity
from ..schema import Day, Expression, Text, default, one_of
from . import data_file

# Facts that a node reads of itself, in the order of `supervisor/network.py`.
FACTS = (
    *("UCX_TLS", "UCX_NET_DEVICES", "UCX_CUDA_IPC_ENABLE_MNNVL"),
    *("hcas", "hcas_active", "hca_numa", "hcas_without_numa", "devices"),
    *("peermem", "kernel_modules", "virtual", "memlock"),
    *("near_hcas", "pix_hcas", "gpus_without_near_hca"),
    *("fabric_state", "fabric_status", "cluster_uuid", "clique_id", "imex", "imex_channels"),
)
_Fact = Annotated[str, one_of(FACTS)]


@dataclass(frozen=True, slots=True)
class NetworkCheck:
    """What a fact of a node must be, and what happens otherwise.

    It counts where all facts of `when` match. `must` and `must_not` are expressions for the whole
    value; `each_in` and `none_in` compare it with another list, `same` with the job's other nodes.
    """

    id: Text
    reads: _Fact
    needs: Text
    otherwise: Text
    remedy: Text
    severity: Severity
    source: Text
    date: Day
    when: Mapping[str, Expression] = default(dict)
    must: Expression | None = None
    must_not: Expression | None = None
    each_in: _Fact | None = None
    none_in: _Fact | None = None
    same: Literal["job"] | None = None

    def inconsistencies(self) -> Iterator[tuple[str, str]]:
        """Unknown facts, and rows that require nothing."""
        for name in self.when:
            if name not in FACTS:
                yield f"when.{name}", f"is no fact of a node; {nearest(name, FACTS)}"
        required = (self.must, self.must_not, self.each_in, self.none_in, self.same)
        if all(row is None for row in required):
            yield "must", "is missing; give must, must_not, each_in, none_in or same"


def load() -> list[dict[str, Any]]:
    """The rows of `network_checks.yaml` as JSON has them; a node's supervisor applies them."""
    rows = data_file.shipped("network_checks.yaml", tuple[NetworkCheck, ...])
    return [
        {name: value for name, value in asdict(row).items() if value not in (None, {})}
        for row in rows
    ]
