"""Decisions: the published deployments, and what follows from other requests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder import engine, pipeline, release
from builder.errors import BadInput
from builder.plan import Decision, Facts, plan

NVFP4_GB200 = "deepseek-v3.2-nvfp4-gb200"
POST = "Microsoft and NVIDIA, DeepSeek-V3.2 on GB200 (2026-02)"


def options(preset: str, *overrides: str) -> Any:
    return pipeline.plan(preset, overrides).engine.options


def decision(path: str, preset: str, *overrides: str) -> Decision:
    (found,) = (
        row for row in pipeline.plan(preset, overrides).engine.decisions if row.path == path
    )
    return found


def test_the_first_preset_holds_exactly_the_published_values() -> None:
    assert options(NVFP4_GB200) == {
        "tensor_parallel_size": 4,
        "max_batch_size": 64,
        "cuda_graph_config": {
            "enable_padding": True,
            "batch_sizes": [*range(1, 17), 32, 64],
        },
        "kv_cache_config": {"dtype": "fp8", "free_gpu_memory_fraction": 0.8},
        "moe_config": {"backend": "TRTLLM"},
        "speculative_config": {"decoding_type": "MTP", "num_nextn_predict_layers": 3},
    }


def test_its_rules_agree_with_the_publication() -> None:
    """The rules alone, without the published row, give the same options."""
    planned = pipeline.plan(NVFP4_GB200)
    facts = planned.plan.facts
    bare = Facts(facts.checkpoint, facts.gpu, facts.release)
    alone = engine.translate(plan(planned.plan.deployment, bare))
    assert alone.options == planned.engine.options


def test_every_value_has_a_reason_evidence_and_source() -> None:
    for row in pipeline.plan(NVFP4_GB200).engine.decisions:
        assert row.reason.endswith(".")
        assert row.evidence == "documented"
        assert POST in row.source


def test_the_fp8_preset_takes_the_published_moe_backend() -> None:
    row = decision("moe_config.backend", "deepseek-v3.2-fp8-gb200")
    assert row.value == "TRTLLM"
    assert "the rule would give" in row.reason


def test_on_hopper_the_published_moe_backend_is_refused() -> None:
    planned = pipeline.plan("deepseek-v3.2-fp8-h200")
    assert planned.engine.options["moe_config"] == {"backend": "CUTLASS"}
    (difference,) = (row for row in planned.plan.differences if row.path == "moe_config.backend")
    assert difference.published == "TRTLLM"
    assert "TRTLLM is not made for FP8_BLOCK_SCALES on h200" in difference.reason


def test_remote_code_stays_off_and_the_difference_is_recorded() -> None:
    planned = pipeline.plan(NVFP4_GB200)
    assert "trust_remote_code" not in planned.engine.options
    (difference,) = planned.plan.differences
    assert (difference.path, difference.published) == ("trust_remote_code", True)


def test_an_override_wins_and_is_marked() -> None:
    path = "kv_cache_config.free_gpu_memory_fraction"
    row = decision(path, NVFP4_GB200, f"engine_config.{path}=0.7")
    assert (row.value, row.evidence) == (0.7, "override")
    assert "The rule would give 0.8" in row.reason


def test_an_override_of_a_mapping_replaces_all_below_it() -> None:
    found = options(NVFP4_GB200, "engine_config.cuda_graph_config=null")
    assert found["cuda_graph_config"] is None


def test_an_option_without_a_rule_passes_through() -> None:
    row = decision("stream_interval", NVFP4_GB200, "engine_config.stream_interval=4")
    assert (row.value, row.evidence) == (4, "override")


def test_what_follows_from_the_workload_is_not_overruled_by_a_publication() -> None:
    found = options(NVFP4_GB200, "workload.concurrency=32")
    assert found["max_batch_size"] == 32
    assert found["cuda_graph_config"]["batch_sizes"] == [*range(1, 17), 32]


@pytest.mark.parametrize(
    ("concurrency", "sizes"),
    [
        (1, [1]),
        (16, [*range(1, 17)]),
        (17, [*range(1, 17), 17]),
        (100, [*range(1, 17), 32, 64, 100]),
        (128, [*range(1, 17), 32, 64, 128]),
    ],
)
def test_graph_sizes_reach_the_batch_size(concurrency: int, sizes: list[int]) -> None:
    found = options(NVFP4_GB200, f"workload.concurrency={concurrency}")
    assert found["cuda_graph_config"]["batch_sizes"] == sizes


@pytest.mark.parametrize(("attention_dp", "draft"), [("false", 3), ("true", 1)])
def test_draft_tokens_follow_attention_data_parallelism(attention_dp: str, draft: int) -> None:
    overrides = (f"engine_config.enable_attention_dp={attention_dp}", "workload.concurrency=100")
    found = options(NVFP4_GB200, *overrides)
    assert found["speculative_config"]["num_nextn_predict_layers"] == draft


@pytest.mark.parametrize(
    ("override", "left_out"),
    [
        ("cuda_graph_config.max_batch_size=64", "cuda_graph_config.batch_sizes"),
        ("speculative_config.max_draft_len=1", "speculative_config.num_nextn_predict_layers"),
    ],
)
def test_a_rule_steps_back_for_an_option_in_its_place(override: str, left_out: str) -> None:
    planned = pipeline.plan(NVFP4_GB200, [f"engine_config.{override}"])
    assert left_out not in [row.path for row in planned.engine.decisions]


@pytest.mark.parametrize("value", ['"32"', "32.0"])
def test_numbers_in_other_spellings_count_as_numbers(value: str) -> None:
    found = options(NVFP4_GB200, f"engine_config.max_batch_size={value}")
    assert found["max_batch_size"] == 32
    assert found["cuda_graph_config"]["batch_sizes"][-1] == 32


def test_null_leaves_an_option_to_the_engine() -> None:
    found = options(NVFP4_GB200, "engine_config.max_batch_size=null")
    assert found["max_batch_size"] is None
    assert found["cuda_graph_config"]["batch_sizes"][-1] == 2048


def test_free_text_keys_stay_whole() -> None:
    found = options(NVFP4_GB200, 'engine_config.env_overrides={"a.b": "c", "D": "e"}')
    assert found["env_overrides"] == {"a.b": "c", "D": "e"}


def test_the_name_of_a_folder_decides_nothing(
    make_miniature: Callable[[str], Path], tmp_path: Path
) -> None:
    """A cached checkpoint lies in a folder that is named by a hash."""
    weights = make_miniature("deepseek-ai/DeepSeek-V3.2")
    found = []
    for name in ("DeepSeek-V3.2", "a1b2c3"):
        folder = shutil.copytree(weights, tmp_path / name)
        found.append(options("deepseek-v3.2-fp8-gb200", f"checkpoint={folder}"))
    assert found[0] == found[1]


def test_fp8_checkpoints_get_an_fp8_cache_without_a_publication() -> None:
    found = options("deepseek-v3.2-fp8-gb200", "hardware.gpu=gb300")
    assert found["kv_cache_config"]["dtype"] == "fp8"


def test_without_speculation_there_is_no_draft_length() -> None:
    found = options(NVFP4_GB200, "engine_config.speculative_config=null")
    assert found["speculative_config"] is None


def test_no_mtp_is_planned_where_no_weights_are_published() -> None:
    found = options(
        NVFP4_GB200, "checkpoint=nvidia/MiniMax-M2.5-NVFP4", "engine_config={}", "hardware.gpu=b300"
    )
    assert "speculative_config" not in found


def test_long_prompts_get_a_larger_step() -> None:
    assert options(NVFP4_GB200, "workload.isl=10000")["max_num_tokens"] == 10240


@pytest.mark.parametrize("name", [r for r in release.known() if r >= "1.2"])
def test_plans_are_valid_in_every_release_that_serves_the_model(name: str) -> None:
    found = options(NVFP4_GB200, f"engine.release={name}")
    assert release.load(name).check_options(found) == []


def test_a_dense_model_has_no_moe_options() -> None:
    assert set(options("llama-tiny")) == {
        "tensor_parallel_size",
        "max_batch_size",
        "cuda_graph_config",
        "kv_cache_config",
    }


def test_a_tight_cache_warns_with_the_numbers() -> None:
    planned = pipeline.plan("deepseek-v3.2-fp8-gb200", ["workload.isl=4000"])
    (warning,) = planned.plan.warnings
    assert warning.severity == "warning"
    assert "the workload has 64" in warning.what


def test_all_impossible_demands_are_named_together() -> None:
    with pytest.raises(BadInput) as caught:
        pipeline.plan(NVFP4_GB200, ["hardware.gpu=h200", "workload.isl=200000"])
    assert len(caught.value.problems) == 2


def test_the_server_gets_the_tokenizer_that_the_model_needs() -> None:
    (flag,) = pipeline.plan(NVFP4_GB200).plan.flags
    assert (flag.path, flag.value) == ("--custom_tokenizer", "deepseek_v32")
    assert pipeline.plan("llama-tiny").plan.flags == ()
