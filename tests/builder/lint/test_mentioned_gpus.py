"""The GPU that a node's label or a remark means, where it means a board whose facts are known."""

from __future__ import annotations

import pytest

from builder.lint.read.gpu_names import of_label, of_text

PRODUCT, GKE, TYPE = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "node.kubernetes.io/instance-type",
)


@pytest.mark.parametrize(
    ("key", "label", "kind"),
    [
        (PRODUCT, "NVIDIA-H100-80GB-HBM3", "h100"),
        (PRODUCT, "NVIDIA-H100-80GB-HBM3-SHARED", "h100"),
        (PRODUCT, "NVIDIA-H100-SXM5-80GB", "h100"),
        (PRODUCT, "NVIDIA-A100-SXM4-80GB", "a100"),
        (PRODUCT, "NVIDIA-GH200-480GB", "gh200"),
        (GKE, "nvidia-h200-141gb", "h200"),
        (GKE, "nvidia-a100-80gb", "a100"),
        (TYPE, "p5.48xlarge", "h100"),
        (TYPE, "Standard_ND96isr_H100_v5", "h100"),
        ("gpu", "h100", "h100"),
        (PRODUCT, "NVIDIA-H100-NVL", None),
        (PRODUCT, "NVIDIA-H100-PCIe", None),
        (PRODUCT, "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", None),
        (PRODUCT, "NVIDIA-A100-SXM4-40GB", None),
        (PRODUCT, "NVIDIA-A100-PCIE-40GB", None),
        (PRODUCT, "NVIDIA-H200-NVL", None),
        (GKE, "nvidia-tesla-a100", None),
        (TYPE, "Standard_NC40ads_H100_v5", None),
        ("gpu", "not-h100", None),
        ("gpu", "no-h200-here", None),
        ("team", "h100", None),
    ],
)
def test_a_label_names_a_known_board(key: str, label: str, kind: str | None) -> None:
    assert of_label(key, label) == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("# 8x H100\n", "h100"),
        ("#SBATCH --partition=h100\n", "h100"),
        ("reuse: no\n# H200 nodes\n", "h200"),
        ("# Not for A100\nname: 8xH200\n", "h200"),
        ("# do not run on H100; this file is for Blackwell\n", None),
        ("# This does not\n# fit on H100\n", None),
        ("# use Blackwell instead of H100\n", None),
        ("# doesn't fit on H100\n", None),
        ("# twice as fast as 8x A100 and 8x H100\n", None),
        ("# 8x H100 NVL\n", None),
        ("# 2x A100-PCIe\n", None),
        ("# 8x H100 NVL here, H200 is for the other cluster\n", None),
        ("# GB200 NVL72\n", "gb200"),
    ],
)
def test_a_remark_names_the_gpu_that_it_is_for(text: str, kind: str | None) -> None:
    found = of_text(text)
    assert (found.kind if found else None) == kind
