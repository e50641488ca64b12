"""Decisions: what follows from requests that differ from a preset.

What a preset itself decides, with every reason, source, warning and difference, is in its golden
bundle; its numbers are in `test_preset_numbers`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder import engines as engine
from builder import pipeline
from builder.deployment import preset_names
from builder.errors import BadInput
from builder.facts import release
from builder.facts.memory import GIB, Budget
from builder.facts.published_results import flatten
from builder.planning import Decision, Facts, plan
from builder.rules.validation import validate
from tests.conftest import of_release
from tests.tables import by_table

NVFP4_GB200 = "deepseek-v3.2-nvfp4-gb200"
POST = "Microsoft and NVIDIA, DeepSeek-V3.2 on GB200 (2026-02)"


DECODING_TYPE = "speculative_config.decoding_type"


def options(preset: str, *overrides: str) -> Any:
    return pipeline.plan(preset, overrides).engine.options


def decision(path: str, preset: str, *overrides: str) -> Decision:
    (found,) = (
        row for row in pipeline.plan(preset, overrides).engine.decisions if row.path == path
    )
    return found


GRAPHS = "cuda_graph_config.batch_sizes"
DEPTH = "speculative_config.num_nextn_predict_layers"
UP_TO_16 = [*range(1, 17)]
R1_B200, LLAMA = "deepseek-r1-0528-nvfp4-b200", "llama-3.3-70b-fp8-h100"
GPT_OSS = "gpt-oss-120b-h200"
PREFILL, DECODE = "deepseek-v3.2-nvfp4-gb300-prefill", "deepseek-v3.2-nvfp4-gb300-decode"
ABSENT = "absent"
CUTLASS = {"moe_config.backend": "CUTLASS"}
H100_PREFILL = ("role=prefill", "targets=[trtllm_serve]", "hardware={gpu: h100, num_gpus: 8}")


@by_table
def test_an_option_follows_from_the_request(
    preset: str, overrides: list[str], expected: dict[str, Any]
) -> None:
    found = flatten(options(preset, *overrides))
    assert {path: found.get(path, ABSENT) for path in expected} == expected


def test_its_rules_agree_with_the_publication() -> None:
    """The rules alone, without the published row, give every published value."""
    planned = pipeline.plan(NVFP4_GB200)
    facts = planned.plan.facts
    bare = Facts(facts.checkpoint, facts.gpu, facts.release)
    alone = flatten(engine.translate(plan(planned.plan.deployment, bare)).options)
    published = flatten(planned.engine.options)
    assert {path: alone[path] for path in published} == published
    assert set(alone) - set(published) == {
        "enable_attention_dp",
        "moe_expert_parallel_size",
        "max_num_tokens",
        "max_seq_len",
        "stream_interval",
    }


def test_a_published_value_wins_over_the_rule() -> None:
    planned = pipeline.plan("deepseek-v3.2-fp8-gb200").plan
    (row,) = planned.facts.published
    changed = replace(row, options={**row.options, "moe_config.backend": "DEEPGEMM"})
    found = plan(planned.deployment, replace(planned.facts, published=(changed,)))
    (decided,) = (row for row in found.decisions if row.path == "moe_config.backend")
    assert decided.value == "DEEPGEMM"
    assert 'the rule would give "TRTLLM"' in decided.reason


def test_an_override_wins_and_is_marked() -> None:
    path = "kv_cache_config.free_gpu_memory_fraction"
    row = decision(path, NVFP4_GB200, f"engine_config.{path}=0.7")
    assert (row.value, row.evidence) == (0.7, "override")
    assert "The rule would give 0.8" in row.reason


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


@pytest.mark.parametrize("name", [r for r in release.known() if r >= "1.2"])
def test_plans_are_valid_in_every_release_that_serves_the_model(name: str) -> None:
    found = options(NVFP4_GB200, f"engine.release={name}")
    assert list(validate(release.load(name), found)) == []


def test_all_impossible_demands_are_named_together() -> None:
    with pytest.raises(BadInput) as caught:
        pipeline.plan(NVFP4_GB200, ["hardware.gpu=h200", "workload.isl=200000"])
    assert len(caught.value.diagnostics) == 2


@pytest.mark.parametrize(("role", "tokens"), [("agg", 2400), ("prefill", 800), ("decode", 2400)])
def test_a_prefill_server_hands_a_request_on_before_its_answer_grows(
    role: str, tokens: int
) -> None:
    settings = [f"role={role}", "targets=[trtllm_serve]", "workload={isl: 800, osl: 1600}"]
    settings.append("workload.concurrency=64")
    found = pipeline.plan(NVFP4_GB200, settings).plan
    assert found.limits.tokens_per_request == tokens
    assert found.budget.request_gib == pytest.approx(
        tokens * found.budget.kv_bytes_per_token / GIB, rel=0.05
    )


def test_a_publication_of_a_whole_server_is_none_for_one_side() -> None:
    found = pipeline.plan(NVFP4_GB200, ["role=decode", "targets=[trtllm_serve]"]).plan
    assert not found.facts.published
    assert not any(POST in row.source for row in found.decisions)


@by_table
def test_a_draft_model_is_spelled_for_the_release(
    name: str, method: str, decoding_type: str
) -> None:
    draft = f"draft={{checkpoint: /models/draft, tokens: 4, method: {method}}}"
    found = options("llama-tiny", draft, *of_release(name))["speculative_config"]
    path = release.load(name).option_path("draft_model").rpartition(".")[2]
    assert found == {"decoding_type": decoding_type, "max_draft_len": 4, path: "/models/draft"}


def test_a_known_draft_model_counts_in_the_memory() -> None:
    weights = {
        draft: pipeline.plan("llama-tiny", [f"draft={draft}"]).plan
        for draft in ("null", "{checkpoint: meta-llama/Llama-3.2-1B-Instruct, tokens: 2}")
    }
    without, known = weights.values()
    assert 2 < known.budget.weights_gib - without.budget.weights_gib < 3
    # 16 layers of 8 heads of 64 keys and values in BF16; the model itself drafts nothing then.
    kept = [found.budget.kv_bytes_per_token for found in (without, known)]
    assert kept[1] - kept[0] == 16 * 8 * 64 * 2 * 2
    assert not any("draft" in warning.where for warning in known.warnings)


def test_the_budget_follows_the_limits_of_the_option_file() -> None:
    def budget(*settings: str) -> Budget:
        return pipeline.plan(NVFP4_GB200, [f"engine_config.{one}" for one in settings]).plan.budget

    plain, chunked = budget(), budget("moe_config.max_num_tokens=1024")
    assert chunked.activations_gib < plain.activations_gib - 1  # the experts' share of a step
    usual, copying = (
        pipeline.plan("qwen3-235b-nvfp4-gb200", settings).plan.budget.activations_gib
        for settings in ([], ["engine_config.moe_config.backend=CUTLASS"])
    )
    assert copying == usual + 3  # kernels that copy each token once per expert
    short = budget("max_seq_len=4096", "max_batch_size=64")
    tokens = 4096 + 64 * 32  # the longest request, and a block for each other one
    assert short.temporary_kv_gib == pytest.approx(tokens * short.kv_bytes_per_token / GIB)


@pytest.mark.parametrize(("role", "off_gib"), [("agg", 2.0), ("prefill", 6.5), ("decode", 8.0)])
def test_a_budget_is_that_of_its_kind_of_server(role: str, off_gib: float) -> None:
    settings = [f"role={role}", "targets=[trtllm_serve]"]
    assert pipeline.plan(NVFP4_GB200, settings).plan.budget.uncertainty_gib == off_gib


def variables(preset: str, *overrides: str) -> dict[str, Decision]:
    rows = pipeline.plan(preset, overrides).plan.environment
    return {row.path.removeprefix("environment."): row for row in rows}


@pytest.mark.parametrize(
    ("preset", "found"), [(DECODE, False), ("deepseek-v3.2-nvfp4-b300", True), (R1_B200, True)]
)
def test_transfers_use_no_nvlink_between_nodes_that_have_none(preset: str, found: bool) -> None:
    decided = variables(preset, "role=decode", "targets=[trtllm_serve]")
    assert ("UCX_CUDA_IPC_ENABLE_MNNVL" in decided) is found
    assert decided["NCCL_GRAPH_MIXING_SUPPORT"].value == "0"


def test_an_older_release_is_not_told_what_it_does_not_know() -> None:
    assert "TLLM_NUMA_AWARE_WORKER_AFFINITY" not in variables("llama-tiny", *of_release("1.1.0"))


CHUNKED = "engine_config.enable_chunked_prefill=true"


@by_table
def test_the_longest_prompt_leaves_room_for_a_token_and_names_its_bound(
    overrides: tuple[str, ...], tokens: int, bounded_by: str
) -> None:
    limits = pipeline.plan(NVFP4_GB200, overrides).plan.limits
    assert (limits.longest_prompt_tokens, limits.bounded_by) == (tokens, bounded_by)


def test_a_decode_server_computes_no_prompt_in_a_step_of_its_own() -> None:
    limits = pipeline.plan(
        "deepseek-v3.2-nvfp4-gb300-decode", ("engine_config.max_seq_len=20000",)
    ).plan.limits
    assert limits.step_tokens_per_rank < limits.longest_prompt_tokens == 19999


def test_a_cache_smaller_than_the_context_bounds_the_prompt() -> None:
    """A share of the memory that holds fewer tokens than the model's context."""
    share = "engine_config.kv_cache_config.free_gpu_memory_fraction=0.05"
    plan_ = pipeline.plan(NVFP4_GB200, (CHUNKED, share)).plan
    assert plan_.limits.bounded_by == "the KV cache"
    assert plan_.limits.longest_prompt_tokens == plan_.budget.kv_tokens - 1


def test_graphs_take_memory_unless_they_are_off() -> None:
    """18 sizes are planned; without the key the engine captures a number of its own."""

    def graphs_gib(*overrides: str) -> float:
        return pipeline.plan(NVFP4_GB200, overrides).plan.budget.cuda_graphs_gib

    each_gib = graphs_gib() / 18
    assert each_gib > 0
    assert graphs_gib("engine_config.cuda_graph_config=null") == 0
    sizes = "engine_config.cuda_graph_config.batch_sizes=[1, 2, 4]"
    assert graphs_gib(sizes) == pytest.approx(3 * each_gib)
    # A largest size is no list of them: release 1.2.1 captures 34 then.
    largest = "engine_config.cuda_graph_config.max_batch_size=64"
    assert graphs_gib(largest) == pytest.approx(34 * each_gib)


@pytest.mark.parametrize("limit", ["the KV cache", "a batch"])
def test_as_many_requests_as_a_limit_admits_wait_for_nothing(limit: str) -> None:
    """And one more does: for the cache, which holds fewer here, or for a place in the batch."""
    fixed = ("workload.isl=4000", "engine_config.cuda_graph_config=null")
    batch = 64 if limit == "the KV cache" else 8

    def waiting(concurrency: int) -> list[str]:
        load = (f"engine_config.max_batch_size={batch}", f"workload.concurrency={concurrency}")
        return [text for text in warned("deepseek-v3.2-fp8-gb200", *fixed, *load) if limit in text]

    limits = pipeline.plan(
        "deepseek-v3.2-fp8-gb200", (*fixed, "engine_config.max_batch_size=64")
    ).plan.limits
    most = min(limits.kv_requests_per_rank, batch)
    assert not any("wait" in text for text in waiting(most))
    assert len([text for text in waiting(most + 1) if "wait" in text]) == 1


def test_the_runbook_of_operators_names_the_longest_prompt(tmp_path: Path) -> None:
    bundle = pipeline.render("llama-tiny", tmp_path / "bundle", more_targets=["handoff"])
    said = (
        "| longest prompt | 8,191 | plan | tokens, by the model's longest context; longer prompts"
    )
    assert said in (bundle.folder / "handoff/runbook.md").read_text()


def test_what_nobody_sets_is_the_engines_own_value() -> None:
    def defaults(*overrides: str) -> dict[str, Any]:
        found = pipeline.plan(NVFP4_GB200, overrides).plan.engine_defaults
        assert {row.evidence for row in found} == {"engine default"}
        return {row.path: row.value for row in found}

    assert defaults()["max_num_tokens"] == 8192
    assert defaults()["enable_chunked_prefill"] is False
    assert "max_batch_size" not in defaults()
    assert "max_num_tokens" not in defaults("engine_config.max_num_tokens=4096")
    dense = pipeline.plan("llama-tiny").plan.engine_defaults
    assert "moe_config.backend" not in {row.path for row in dense}


def refused(preset: str, *overrides: str) -> list[str]:
    with pytest.raises(BadInput) as caught:
        pipeline.plan(preset, overrides)
    return [str(problem) for problem in caught.value.diagnostics]


def warned(preset: str, *overrides: str) -> list[str]:
    return [str(problem) for problem in pipeline.plan(preset, overrides).plan.warnings]


@pytest.mark.parametrize(("name", "expected"), [("1.2.1", 45_312), ("main-00043967", 43_896)])
def test_the_release_says_how_many_layers_drafts_take_in_the_cache(
    name: str, expected: int
) -> None:
    planned = pipeline.plan(NVFP4_GB200, [f"engine.release={name}"]).plan
    assert planned.budget.kv_bytes_per_token == expected


@pytest.mark.parametrize(("dtype", "expected"), [("FP8", 35_136), ("auto", 35_136)])
def test_the_budget_reads_the_dtype_as_the_engine_does(dtype: str, expected: int) -> None:
    overrides = (
        f"engine_config.kv_cache_config.dtype={dtype}",
        "engine_config.speculative_config=null",
    )
    planned = pipeline.plan("deepseek-r1-0528-nvfp4-gb200", overrides).plan
    assert planned.budget.kv_bytes_per_token == expected


def test_windows_of_the_option_file_reach_the_budget() -> None:
    path = "engine_config.kv_cache_config.max_attention_window"
    planned = pipeline.plan(GPT_OSS, [f"{path}=[128, 131072]"]).plan
    assert planned.budget.kv_bytes_per_token == 36_864  # half of 36 layers, in BF16


def test_a_draft_model_must_run_here_too() -> None:
    draft = "draft={checkpoint: nvidia/Qwen3.5-397B-A17B-NVFP4, tokens: 4, method: eagle3}"
    unknown = "release 1.2.1 does not serve Qwen3_5MoeForConditionalGeneration"
    assert any(unknown in line for line in refused(LLAMA, draft))


@pytest.mark.parametrize("name", ["CHECKPOINT", "SERVE_HTTP_PORT", "SERVE_SHM_PREFIX"])
def test_variables_of_the_start_scripts_are_not_the_deployments(name: str) -> None:
    (line,) = refused(NVFP4_GB200, f"environment.{name}=x")
    assert f"environment.{name}: is set by the start script of" in line


def test_instances_choose_their_gpus_themselves() -> None:
    given = "environment.CUDA_VISIBLE_DEVICES=0"
    assert "start script" in refused(LLAMA, given)[0]
    assert variables(LLAMA, given, "instances=1")["CUDA_VISIBLE_DEVICES"]


def test_a_variable_of_the_option_file_wins_and_says_so() -> None:
    file = 'engine_config.env_overrides={"TRTLLM_ENABLE_PDL": "0", "WORDS": "file"}'
    found = variables(NVFP4_GB200, file, "environment.WORDS=outside")
    assert (found["TRTLLM_ENABLE_PDL"].value, found["WORDS"].value) == ("0", "file")
    assert "Set in engine_config.env_overrides" in found["TRTLLM_ENABLE_PDL"].reason
    (warning,) = warned(NVFP4_GB200, file, "environment.WORDS=outside")
    assert "outside is lost: engine_config.env_overrides sets file" in warning


def test_chunks_are_not_planned_where_the_engine_turns_them_off() -> None:
    """Multi-head latent attention on B300 in release 1.1.0."""
    long = ("workload={isl: 40000, osl: 100, concurrency: 8}", *of_release("1.1.0"))
    found = pipeline.plan(R1_B200, [*long, "hardware={gpu: b300, num_gpus: 8}"]).engine
    assert "enable_chunked_prefill" not in found.options
    assert found.options["max_num_tokens"] > 40_000


def test_a_batch_is_no_larger_than_any_published_one() -> None:
    many = ("workload={isl: 10, osl: 10, concurrency: 100000}",)
    row = decision("max_batch_size", "gpt-oss-120b-b200", *many)
    assert row.value == 2048
    assert "the rest waits" in row.reason
    planned = pipeline.plan("gpt-oss-120b-b200", many).plan
    places = 2048 * planned.facts.gpu.gpus_per_node.value
    assert planned.budget.max_concurrency <= places
    assert any("the rest waits" in line for line in warned("gpt-oss-120b-b200", *many))


def test_a_prefill_batch_is_what_its_cache_must_hold() -> None:
    """Sixty-four requests of 8192 tokens: two ranks read two of them at a time each."""
    planned = pipeline.plan(PREFILL, ["workload.isl=8192"]).plan
    budget = planned.budget
    assert options(PREFILL, "workload.isl=8192")["max_batch_size"] == 2
    assert budget.needed_gib == pytest.approx(2 * budget.request_gib)
    assert not planned.warnings


def test_pipeline_stages_leave_fewer_gpus_to_a_layer() -> None:
    found = options(LLAMA, "instances=1", "engine_config.pipeline_parallel_size=2")
    assert (found["tensor_parallel_size"], found["pipeline_parallel_size"]) == (1, 2)


@pytest.mark.parametrize(
    ("role", "able"), [("prefill", "trtllm_serve"), ("decode", "trtllm_serve, slurm, kubernetes")]
)
def test_one_side_is_not_served_by_triton(role: str, able: str) -> None:
    (line,) = refused(NVFP4_GB200, f"role={role}")
    assert f"targets.triton: does not serve the {role} side" in line
    assert f"name {able} only" in line


@by_table
def test_a_reason_holds_for_its_value(
    preset: str, overrides: tuple[str, ...], path: str, words: str
) -> None:
    assert words in decision(path, preset, *overrides).reason


def test_instances_have_no_published_server() -> None:
    """A publication is of one server on all its GPUs, not of several that share them."""
    path = "kv_cache_config.free_gpu_memory_fraction"
    found = {}
    for instances in (1, 2):
        planned = pipeline.plan("gpt-oss-120b-b200", [f"instances={instances}"]).plan
        row = replace(planned.facts.published[0], options={path: 0.5}, max_concurrency=10**6)
        decided = plan(planned.deployment, replace(planned.facts, published=(row,))).decisions
        found[instances] = next(one.value for one in decided if one.path == path)
    assert found == {1: 0.5, 2: 0.85}


def test_experts_must_divide_too() -> None:
    preset = "qwen3-235b-nvfp4-gb200"
    planned = pipeline.plan(preset).plan
    config = {**planned.facts.checkpoint.config, "moe_intermediate_size": 1538}
    odd = replace(planned.facts, checkpoint=replace(planned.facts.checkpoint, config=config))
    with pytest.raises(BadInput, match="does not divide moe_intermediate_size 1538"):
        plan(planned.deployment, odd)


def test_a_value_without_effect_is_an_error_in_what_is_rendered() -> None:
    drafts = "engine_config.speculative_config={decoding_type: MTP, max_draft_len: 3}"
    (line,) = refused(NVFP4_GB200, drafts)
    assert "3 is ignored: release 1.2.1 then drafts 1 token per step" in line


def test_a_release_from_the_command_line_is_relative_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in the file is relative to the file."""
    shutil.copy(release.load("1.2.1").path, tmp_path / "mine.json")
    monkeypatch.chdir(tmp_path)
    assert (
        pipeline.plan(NVFP4_GB200, ["engine.release=mine.json"]).plan.facts.release.name == "1.2.1"
    )


def test_the_manifest_names_whatever_can_change_the_result() -> None:
    draft = "draft={checkpoint: meta-llama/Llama-3.2-1B-Instruct, tokens: 2, method: draft_target}"
    planned = pipeline.plan(LLAMA, [draft])
    files = pipeline.manifest_facts(planned)["inputs"]["files"]
    assert {"data/rules.yaml", "data/models/llama-3.2-1b-instruct.yaml"} <= set(files)


def test_graphs_above_the_batch_take_no_memory_since_the_engine_captures_none() -> None:
    def graphs_gib(sizes: str) -> float:
        overrides = [f"engine_config.cuda_graph_config.batch_sizes={sizes}"]
        return pipeline.plan(LLAMA, overrides).plan.budget.cuda_graphs_gib

    assert (
        graphs_gib("[1, 2, 4, 512, 1024, 2048]")
        == graphs_gib("[1, 2, 4]")
        < graphs_gib("[1, 2, 4, 8]")
    )


@pytest.mark.parametrize(
    ("policy", "warned"), [("MAX_UTILIZATION", True), ("GUARANTEED_NO_EVICT", False)]
)
def test_a_scheduler_that_pauses_requests_is_warned_of_where_the_cache_is_too_small(
    policy: str, warned: bool
) -> None:
    path = "engine_config.scheduler_config.capacity_scheduler_policy"
    few, many = (
        pipeline.plan(LLAMA, [f"{path}={policy}", f"workload.concurrency={n}"]) for n in (4, 2000)
    )
    assert not any(row.where == path for row in few.plan.warnings)
    assert any(row.where == path for row in many.plan.warnings) is warned


@pytest.mark.parametrize("preset", preset_names())
def test_every_plan_says_why_a_step_holds_so_many_tokens(preset: str) -> None:
    found = pipeline.plan(preset).plan
    rows = (*found.decisions, *found.engine_defaults)
    word = found.facts.release.option_path("max_num_tokens")
    (tokens,) = (row for row in rows if row.path in ("max_num_tokens", word))
    assert "the engine's own value." not in tokens.reason
    assert "step" in tokens.reason or "token" in tokens.reason, tokens.reason
    assert found.limits.longest_prompt_tokens >= found.deployment.workload.isl
    assert found.limits.step_tokens_per_rank == tokens.value


def test_on_h200_attention_dp_leaves_more_memory_free() -> None:
    path = "kv_cache_config.free_gpu_memory_fraction"
    assert decision(path, "deepseek-v3.2-fp8-h200").value == 0.8
    spread = decision(path, "deepseek-v3.2-fp8-h200", "workload.concurrency=256")
    assert (spread.value, "out of memory" in spread.reason) == (0.75, True)
