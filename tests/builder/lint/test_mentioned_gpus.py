"""The GPU that a node's label or a remark means, where it means a board whose facts are known."""

from __future__ import annotations

from builder.lint.read.gpu_names import of_label, of_text
from tests.tables import by_table

PRODUCT, GKE, TYPE = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "node.kubernetes.io/instance-type",
)


@by_table
def test_a_label_names_a_known_board(key: str, label: str, kind: str | None) -> None:
    assert of_label(key, label) == kind


@by_table
def test_a_remark_names_the_gpu_that_it_is_for(text: str, kind: str | None) -> None:
    found = of_text(text)
    assert (found.kind if found else None) == kind
