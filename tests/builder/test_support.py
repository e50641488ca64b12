"""Support has three states, and none of them is taken from the absence of another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builder import pipeline
from builder.errors import BadInput
from builder.facts import engines, hardware, release, weight_layouts
from builder.facts.hardware import Gpu
from builder.facts.quantization import Quantization
from builder.facts.release import support, weight_formats
from builder.planning import Facts, Plan, plan
from builder.rules.constraints import violations
from builder.rules.context import RuleContext
from tests.tables import by_table

DEEPSEEK_GB200 = "deepseek-v3.2-nvfp4-gb200"


def planned(preset: str, **facts: Any) -> Plan:
    """A preset on other facts; nothing is published for those."""
    found = pipeline.plan(preset).plan
    return plan(found.deployment, replace(found.facts, published=(), **facts))


def with_architecture(name: str) -> Plan:
    facts = pipeline.plan(DEEPSEEK_GB200).plan.facts
    model = facts.checkpoint
    renamed = replace(model, architecture=replace(model.architecture, name=name))
    return planned(DEEPSEEK_GB200, checkpoint=renamed)


def gpu(sm: int) -> Gpu:
    known = pipeline.plan(DEEPSEEK_GB200).plan.facts.gpu
    return replace(known, name="new_gpu", sm=replace(known.sm, value=sm))


def test_an_architecture_that_no_source_names_warns_with_what_is_known() -> None:
    (warning,) = (
        row
        for row in with_architecture("GlmMoeDsaForCausalLM").warnings
        if "GlmMoeDsaForCausalLM" in row.message
    )
    assert warning.where == "engine.release"
    assert "nothing is known of GlmMoeDsaForCausalLM in release 1.2.1" in warning.message
    assert "its sources name 28 others" in warning.message
    assert "release 1.3.0rc23, 1.3.0rc24, 1.3.0rc29 or main-00043967" in warning.fix
    assert "; or serve it with vLLM 0.20.0 or 0.32.0" in warning.fix


def test_an_architecture_that_the_release_refuses_is_an_error() -> None:
    with pytest.raises(BadInput) as caught:
        with_architecture("Qwen3_5MoeForConditionalGeneration")
    assert [str(row) for row in caught.value.diagnostics] == [
        "engine.release: release 1.2.1 does not serve Qwen3_5MoeForConditionalGeneration: not in "
        "its list of supported models; choose release 1.3.0rc23, 1.3.0rc24, 1.3.0rc29 or "
        "main-00043967; or serve it with vLLM 0.20.0 or 0.32.0"
    ]


AWQ = Quantization("W4A16_AWQ", writer=weight_layouts.AWQ)
PACKED = Quantization("NVFP4", writer=weight_layouts.COMPRESSED_TENSORS)
STATIC = Quantization("FP8", writer=weight_layouts.STATIC_FP8)
MXFP4_PACKED = replace(PACKED, quant_algo="MXFP4")
BY_BLOCK = Quantization("FP8_BLOCK_SCALES", writer="ModelOpt by block")
PUBLISHED_MXFP8 = Quantization("MXFP8", writer="published mxfp8")
MIXED = Quantization("NVFP4", parts={"a": "NVFP4", "b": "MXFP8"})


@pytest.mark.parametrize(
    ("name", "engine", "quantization", "experts", "sm", "state"),
    [
        ("1.2.1", "tensorrt_llm", AWQ, False, 90, "unsupported"),
        ("0.32.0", "vllm", AWQ, True, 90, "supported"),
        ("1.2.1", "tensorrt_llm", Quantization("W4A16_AWQ"), False, 90, "supported"),
        ("1.2.1", "tensorrt_llm", Quantization("W4A16_AWQ"), True, 90, "unknown"),
        ("1.3.0rc24", "tensorrt_llm", Quantization("W4A16_AWQ"), True, 90, "unsupported"),
        ("1.2.1", "tensorrt_llm", Quantization("W4A8_AWQ"), True, 80, "unsupported"),
        ("1.2.1", "tensorrt_llm", Quantization("W4A8_AWQ"), True, None, "supported"),
        ("1.2.1", "tensorrt_llm", PACKED, False, 100, "unsupported"),
        ("1.3.0rc17", "tensorrt_llm", PACKED, False, 100, "unknown"),
        ("1.3.0rc23", "tensorrt_llm", PACKED, False, 100, "supported"),
        ("main-00043967", "tensorrt_llm", PACKED, False, 100, "supported"),
        ("1.2.1", "tensorrt_llm", STATIC, False, 90, "unknown"),
        ("1.3.0rc23", "tensorrt_llm", MIXED, True, 100, "supported"),
        ("1.3.0rc23", "tensorrt_llm", MIXED, True, 90, "unknown"),
        ("1.3.0rc23", "tensorrt_llm", Quantization("MXFP8"), True, 90, "unsupported"),
        ("1.3.0rc24", "tensorrt_llm", AWQ, False, 90, "unsupported"),
        ("1.3.0rc29", "tensorrt_llm", AWQ, False, 90, "unknown"),
        ("0.14.1", "vllm", MXFP4_PACKED, False, 90, "supported"),
        ("0.14.1", "vllm", MXFP4_PACKED, True, 90, "unsupported"),
        ("0.32.0", "vllm", BY_BLOCK, False, 90, "supported"),
        ("0.32.0", "vllm", BY_BLOCK, True, 90, "unknown"),
        ("0.20.0", "vllm", PUBLISHED_MXFP8, True, 100, "unknown"),
        ("0.32.0", "vllm", PUBLISHED_MXFP8, True, 100, "supported"),
        ("1.2.1", "tensorrt_llm", Quantization(), False, 90, None),
    ],
)
def test_weights_are_read_by_release_writer_layers_and_gpu(
    name: str,
    engine: str,
    quantization: Quantization,
    experts: bool,
    sm: int | None,
    state: str | None,
) -> None:
    table = release.load(name, engine=engines.load(engine))
    found = weight_formats.reading(table, quantization, experts, sm)
    assert getattr(found, "state", None) == state


@pytest.mark.parametrize("name", engines.names())
def test_what_an_engine_refuses_was_read(name: str) -> None:
    rows = weight_formats.table(release.of_engine(engines.load(name))[0]).rows
    assert not [row for row in rows if row.state == "unsupported" and row.confidence != "read"]


def test_weights_that_the_release_does_not_read_name_who_does() -> None:
    model = replace(pipeline.plan(DEEPSEEK_GB200).plan.facts.checkpoint, quantization=AWQ)
    with pytest.raises(BadInput) as caught:
        planned(DEEPSEEK_GB200, checkpoint=model)
    assert "does not read weights in W4A16_AWQ (AutoAWQ) on gb200" in str(caught.value)
    assert "serve it with vLLM 0.14.1, 0.20.0, 0.32.0; or export it" in str(caught.value)
    assert [row.where for row in caught.value.diagnostics] == ["checkpoint"]
    fix = weight_formats.remedy(release.load("1.2.1"), PACKED, False, 100)
    assert fix.startswith("choose release 1.3.0rc23, 1.3.0rc24, 1.3.0rc29, main-00043967")


@by_table
def test_an_architecture_is_supported_refused_or_unknown(
    release_name: str, architecture: str, state: str
) -> None:
    assert support.architecture(release.load(release_name), architecture).state == state


SMS = (80, 89, 90, 100, 103, 120, 121)
# Compute capabilities on which release 1.2.1 supports a backend, and on which it refuses it.
NVFP4 = {
    "TRTLLM": ({100, 103}, {80, 89, 90, 120, 121}),
    "CUTLASS": ({100, 103}, set()),
    "CUTEDSL": ({100, 103}, {80, 89, 90, 120, 121}),
    "WIDEEP": ({100}, set()),
    "DEEPGEMM": (set(), {80, 89, 90, 120, 121}),
    "TRITON": (set(), {80, 89, 100, 103, 120, 121}),
    "VANILLA": (set(), set()),
    "DENSEGEMM": (set(), set(SMS)),  # of a later release
}


@pytest.mark.parametrize("backend", NVFP4)
@pytest.mark.parametrize("sm", SMS)
def test_a_moe_backend_is_supported_refused_or_unknown(backend: str, sm: int) -> None:
    supported, refused = NVFP4[backend]
    state = "supported" if sm in supported else "unsupported" if sm in refused else "unknown"
    assert support.moe_backend(release.load("1.2.1"), backend, "NVFP4", sm).state == state


def test_mxfp4_weights_run_in_the_formats_that_the_release_lists() -> None:
    def backends(sm: int) -> list[str]:
        rows = support.moe_backends(release.load("1.2.1"), "MXFP4", sm)
        return [row["backend"] for row in rows]

    assert backends(90) == ["TRITON", "CUTLASS"]
    assert backends(100) == ["TRTLLM", "CUTLASS"]


@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("concurrency", [1, 512])
@pytest.mark.parametrize("role", ["agg", "prefill", "decode"])
@pytest.mark.parametrize("preset", [DEEPSEEK_GB200, "qwen3-235b-nvfp4-gb200", "gpt-oss-120b-b200"])
def test_a_plan_names_only_moe_backends_that_the_release_supports(
    preset: str, role: str, concurrency: int, sm: int
) -> None:
    found = pipeline.plan(preset).plan
    workload = found.deployment.workload.replaced(concurrency=concurrency)
    request = found.deployment.replaced(role=role, workload=workload)
    facts = Facts(found.facts.checkpoint, gpu(sm), found.facts.release)
    chosen = [row for row in plan(request, facts).decisions if row.path == "moe_config.backend"]
    for row in chosen:
        algo = facts.checkpoint.quantization.quant_algo
        assert support.moe_backend(facts.release, row.value, algo, sm).state == "supported"
    assert len(chosen) == (sm in (100, 103) or (sm, preset) == (90, "gpt-oss-120b-b200"))


def test_a_usual_backend_is_not_planned_where_the_release_has_no_kernels_of_it() -> None:
    preset = "deepseek-v3.2-fp8-h200"
    known = pipeline.plan(preset).plan.facts.release
    moe = known.table["moe"]
    rows = [row for row in moe["rows"] if row["backend"] != "CUTLASS"]
    without = replace(known, table={**known.table, "moe": {**moe, "rows": rows}})
    usual, left = (
        {row.path: row.value for row in planned(preset, release=one).decisions}
        for one in (known, without)
    )
    assert usual["moe_config.backend"] == "CUTLASS"
    assert "moe_config.backend" not in left


def test_where_no_backend_is_known_the_engines_choice_stays_with_a_warning() -> None:
    facts = replace(pipeline.plan(DEEPSEEK_GB200).plan.facts, gpu=gpu(120), published=())
    assert "moe_config.backend" not in {
        row.path for row in planned(DEEPSEEK_GB200, gpu=gpu(120)).decisions
    }
    context = facts.rule_context(pipeline.plan(DEEPSEEK_GB200).plan.deployment)
    (warning,) = (row for row in violations({}, context) if row.rule == "moe-backend-missing")
    assert "which uses CUTLASS" in warning.message
    assert "names no backend for NVFP4 on new_gpu" in warning.message


@by_table
def test_check_says_which_backends_are_refused_or_unknown(backend: str, message: str) -> None:
    context = RuleContext(release.load("1.2.1"), gpu=gpu(120), precision="NVFP4")
    options = {"moe_config": {"backend": backend}}
    rows = violations(options, context)
    found = [row.message for row in rows if row.rule in ("moe-backend-kernels", "moe-trtllm-sm120")]
    assert [message in text for text in found] == ([True] if message else [])


def test_the_support_matrix_keeps_a_feature_off() -> None:
    """Chunked prefill of DeepSeek-V3 is for compute capability 10.0 and 10.3 in release 1.2.1."""
    preset, long = "deepseek-r1-0528-nvfp4-b200", "workload.isl=40000"
    found = pipeline.plan(preset, [long, "workload.concurrency=1"]).plan
    for sm, chunked in ((100, True), (120, None)):
        card = replace(gpu(sm), gpus_per_node=found.facts.gpu.gpus_per_node)
        decisions = plan(found.deployment, replace(found.facts, gpu=card)).decisions
        values = {row.path: row.value for row in decisions}
        assert values.get("enable_chunked_prefill") is chunked


UNMEASURED = sorted(n for n in hardware.known() if hardware.load(n).sm.value not in (90, 100, 103))


@pytest.mark.parametrize("name", hardware.known())
def test_a_budget_says_where_no_log_of_such_a_gpu_is_known(name: str) -> None:
    facts = replace(pipeline.plan("llama-tiny").plan.facts, gpu=hardware.load(name), published=())
    found = plan(pipeline.plan("llama-tiny").plan.deployment, facts).warnings
    unknown = [row.message for row in found if row.where == "hardware.gpu"]
    assert len(unknown) == (name in UNMEASURED)
    assert all(f"what the engine itself takes of a {name} is unknown" in text for text in unknown)


@pytest.mark.parametrize("name", UNMEASURED)
def test_only_arithmetic_that_a_gpu_has_is_planned_for_it(name: str) -> None:
    """An FP8 KV cache, too, is for GPUs that have FP8."""
    card = hardware.load(name)
    found = pipeline.plan("gpt-oss-120b-b200").plan
    facts = replace(found.facts, gpu=replace(card, gpus_per_node=found.facts.gpu.gpus_per_node))
    try:
        decisions = plan(found.deployment, replace(facts, published=())).decisions
    except BadInput as fault:
        assert "arithmetic" in str(fault) or "does not fit" in str(fault)
        return
    values = {row.path: row.value for row in decisions}
    assert "FP8" in card.precisions.value or values.get("kv_cache_config.dtype") != "fp8"
    assert "TRTLLM" not in str(values.get("moe_config.backend"))
