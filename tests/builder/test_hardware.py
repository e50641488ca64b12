"""GPUs: one file each, with what every deployment and every target needs of it."""

from __future__ import annotations

import pytest

from builder import pipeline
from builder.facts import hardware

# From public specifications; a GPU without FP8 or FP4 tensor cores has no such precision.
FP8, BLOCKS, FP4 = "FP8", "FP8_BLOCK_SCALES", "NVFP4"
EXPECTED = {
    "a100": (80, 80, set()),
    "l40s": (89, 48, {FP8}),
    "h20": (90, 96, {FP8, BLOCKS}),
    "h100": (90, 80, {FP8, BLOCKS}),
    "h200": (90, 141, {FP8, BLOCKS}),
    "gh200": (90, 96, {FP8, BLOCKS}),
    "b100": (100, 192, {FP8, BLOCKS, FP4}),
    "b200": (100, 180, {FP8, BLOCKS, FP4}),
    "gb200": (100, 186, {FP8, BLOCKS, FP4}),
    "b300": (103, 288, {FP8, BLOCKS, FP4}),
    "gb300": (103, 288, {FP8, BLOCKS, FP4}),
    "rtx_pro_6000": (120, 96, {FP8, FP4}),
    "gb10": (121, 128, {FP8, FP4}),
}


def test_every_gpu_that_ships_is_known() -> None:
    assert set(hardware.known()) == set(EXPECTED)


@pytest.mark.parametrize(
    ("written", "name"),
    [("H100", "h100"), ("GB200", "gb200"), ("RTX PRO 6000", "rtx_pro_6000"), ("b-100x", None)],
)
def test_a_gpu_is_found_as_its_maker_writes_it(written: str, name: str | None) -> None:
    assert hardware.named(written) == (name or written)


def test_a_bundle_has_the_name_that_the_gpu_has_here() -> None:
    planned = [pipeline.plan("llama-tiny", [f"hardware.gpu={name}"]) for name in ("h100", "H100")]
    assert planned[0].plan.deployment == planned[1].plan.deployment


@pytest.mark.parametrize("name", hardware.known())
def test_a_gpu_is_what_its_maker_says(name: str) -> None:
    gpu = hardware.load(name)
    sm, memory_gb, precisions = EXPECTED[name]
    assert gpu.name == name
    assert (gpu.sm.value, gpu.memory_nominal_gb.value) == (sm, memory_gb)
    assert {FP8, BLOCKS, FP4} & set(gpu.precisions.value) == precisions
    assert "BF16" in gpu.precisions.value


@pytest.mark.parametrize("name", hardware.known())
def test_what_an_engine_can_use_is_less_than_the_product_promises(name: str) -> None:
    gpu = hardware.load(name)
    nominal_gib = gpu.memory_nominal_gb.value
    assert 0.75 * nominal_gib < gpu.memory_gib <= nominal_gib
    if (smi := gpu.memory_nvidia_smi_mib.value) is not None:
        assert 0.985 < gpu.memory_cuda_mib.value / smi < 1


def test_unified_memory_is_shared_with_the_operating_system() -> None:
    gpu = hardware.load("gb10")
    assert gpu.memory_system_mib is not None
    assert gpu.memory_gib == pytest.approx(101.3, abs=0.1)


@pytest.mark.parametrize("name", hardware.known())
def test_a_tensor_core_that_is_not_there_has_no_rate(name: str) -> None:
    gpu = hardware.load(name)
    rates = gpu.tflops_dense.value
    assert (rates["fp8"] is not None) == (FP8 in gpu.precisions.value)
    assert (rates["fp4"] is not None) == (FP4 in gpu.precisions.value)
