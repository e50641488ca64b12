"""The memory budget, against figures that engines printed on real GPUs."""

from __future__ import annotations

import pytest

from builder import checkpoint, hardware, pipeline
from builder.memory import GIB, Sharding, kv_bytes_per_token, state_bytes_per_request, weights_bytes

R1 = "nvidia/DeepSeek-R1-0528-NVFP4-v2"
V32 = "nvidia/DeepSeek-V3.2-NVFP4"
QWEN3 = "nvidia/Qwen3-235B-A22B-NVFP4"
QWEN35 = "nvidia/Qwen3.5-397B-A17B-NVFP4"


@pytest.mark.parametrize(
    ("name", "tp", "draft", "expected"),
    [
        (R1, 4, 0, 35_136),  # "kv size is 35136" in engine logs
        (V32, 4, 0, 43_188),  # tech blog 20: 43187.0 and 43186.7
        (V32, 4, 3, 45_312),  # 64 layers in temporary pools
        (QWEN3, 1, 0, 96_256),
        (QWEN35, 1, 0, 15_360),
        (QWEN35, 4, 0, 7_680),  # two key-value heads, duplicated over four ranks
    ],
)
def test_kv_bytes_per_token(name: str, tp: int, draft: int, expected: int) -> None:
    facts = checkpoint.gather(name)
    assert kv_bytes_per_token(facts, Sharding(tp), 1, draft) == expected


def test_attention_data_parallelism_keeps_all_heads_on_a_rank() -> None:
    facts = checkpoint.gather(QWEN3)
    split = kv_bytes_per_token(facts, Sharding(4), 1, 0)
    whole = kv_bytes_per_token(facts, Sharding(4, enable_attention_dp=True), 1, 0)
    assert whole == 4 * split == 96_256


def test_linear_attention_keeps_a_state_per_request() -> None:
    facts = checkpoint.gather(QWEN35)
    assert state_bytes_per_request(facts, Sharding(1)) / 1e6 == pytest.approx(192.1, abs=0.1)
    assert state_bytes_per_request(facts, Sharding(4)) / 1e6 == pytest.approx(48.0, abs=0.1)
    assert state_bytes_per_request(checkpoint.gather(V32), Sharding(1)) == 0


@pytest.mark.parametrize(
    ("name", "sharding", "with_mtp", "logged_gib"),
    [
        # "memory after loading weights (inside torch)" of GB200 runs, which holds workspaces too
        (R1, Sharding(4), True, 100.86),
        (V32, Sharding(4), True, 103.03),
        (V32, Sharding(4, enable_attention_dp=True), False, 109.71),
    ],
)
def test_weights_of_a_rank_are_close_to_the_logs(
    name: str, sharding: Sharding, with_mtp: bool, logged_gib: float
) -> None:
    predicted = weights_bytes(checkpoint.gather(name), sharding, with_mtp) / GIB
    assert -0.7 <= logged_gib - predicted <= 7


def test_the_mtp_layer_shares_embedding_and_head() -> None:
    """Its copies in the checkpoint, 3.7 GB of a vocabulary of 129,280, are not loaded."""
    facts, one = checkpoint.gather(V32), Sharding(1)
    extra = weights_bytes(facts, one, True) - weights_bytes(facts, one, False)
    mtp = sum(group.nbytes for group in facts.groups if group.mtp)
    assert mtp - extra == 2 * 129_280 * 7_168 * 2


def test_pipeline_parallelism_splits_layers() -> None:
    facts = checkpoint.gather(V32)
    whole, half = Sharding(2), Sharding(2, pipeline_parallel_size=2)
    assert weights_bytes(facts, half, False) == weights_bytes(facts, whole, False) / 2
    assert kv_bytes_per_token(facts, half, 1, 3) == 32 * 708  # of 64 layers


def test_attention_data_parallelism_multiplies_the_concurrency() -> None:
    preset, dp = "deepseek-v3.2-nvfp4-gb200", "engine_config.enable_attention_dp=true"
    alone = pipeline.plan(preset).plan.budget
    spread = pipeline.plan(preset, [dp]).plan.budget
    assert spread.weights_gib > alone.weights_gib
    assert spread.max_concurrency == 4 * (spread.max_concurrency // 4)
    assert spread.max_concurrency > 2 * alone.max_concurrency


def test_linear_attention_state_limits_the_concurrency() -> None:
    overrides = ["checkpoint=Qwen/Qwen3.5-397B-A17B", "hardware.gpu=b300", "hardware.num_gpus=8"]
    overrides += ["engine.release=main-00043967", "workload.isl=1", "workload.osl=1"]
    budget = pipeline.plan("deepseek-v3.2-nvfp4-gb200", overrides).plan.budget
    assert budget.max_concurrency < budget.kv_tokens / 1000


def test_the_kv_cache_of_the_first_preset_is_close_to_a_log() -> None:
    """56.08 GiB in a log of the same checkpoint and GPUs at the same fraction."""
    budget = pipeline.plan("deepseek-v3.2-nvfp4-gb200").plan.budget
    assert budget.kv_cache_gib == pytest.approx(56.08, rel=0.06)


def test_the_parts_add_up_to_the_total() -> None:
    budget = pipeline.plan("deepseek-v3.2-nvfp4-gb200").plan.budget
    left = budget.total_gib - budget.used_gib
    assert budget.kv_cache_gib == pytest.approx(left * 0.8)


@pytest.mark.parametrize(
    "preset", ["deepseek-v3.2-nvfp4-gb200", "deepseek-v3.2-fp8-gb200", "deepseek-v3.2-fp8-h200"]
)
def test_no_published_deployment_is_refused(preset: str) -> None:
    assert pipeline.plan(preset).plan.budget.fits


@pytest.mark.parametrize("name", hardware.known())
def test_memory_is_what_cuda_reports_not_what_the_name_says(name: str) -> None:
    gpu = hardware.load(name)
    assert gpu.name == name
    assert 75 * 1024 < gpu.memory_cuda_mib < 290 * 1024
    assert gpu.memory_source
