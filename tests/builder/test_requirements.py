"""What a deployment must meet, up to its very bounds, and what is blamed where it does not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder import pipeline
from builder.errors import BadInput
from builder.pipeline import ServicePlan
from builder.planning import plan
from builder.planning.decision import concurrency_per_instance
from builder.planning.memory_budget import check_budget
from builder.planning.plan_builder import PlanBuilder
from tests.tables import by_table

LLAMA = "llama-3.3-70b-fp8-h100"  # two instances of one GPU each
ONE = "instances=1"
V32 = "deepseek-v3.2-nvfp4-gb200"


def refused(preset: str, *overrides: str) -> list[str]:
    with pytest.raises(BadInput) as caught:
        pipeline.plan(preset, overrides)
    return [str(problem) for problem in caught.value.diagnostics]


# --- Context and batch ----------------------------------------------------------------------------


def test_a_request_may_fill_the_models_context_and_be_no_longer() -> None:
    whole = "workload={isl: 131000, osl: 72, concurrency: 1}"
    pipeline.plan(LLAMA, [ONE, "hardware.num_gpus=4", whole])
    assert refused(LLAMA, "workload={isl: 131000, osl: 73, concurrency: 1}") == [
        "--set workload: isl + osl is 131073 tokens, the model's longest context is 131072; "
        "shorten isl or osl"
    ]


def test_the_smallest_batch_has_one_request() -> None:
    [batch] = [
        row
        for row in pipeline.plan(LLAMA, ["engine_config.max_batch_size=1"]).plan.decisions
        if row.path == "max_batch_size"
    ]
    assert batch.value == 1
    assert refused(LLAMA, "engine_config.max_batch_size=0") == [
        "--set engine_config.max_batch_size: 0 is too small for the workload; give at least 1"
    ]


def test_the_model_is_named_by_checkpoint_alone() -> None:
    [line] = refused(LLAMA, "engine_config.model=other")
    assert line.endswith("engine_config.model: is set by the toolkit; name the model by checkpoint")


def test_a_folder_without_weights_is_planned_by_what_its_architecture_has(tmp_path: Path) -> None:
    planned = pipeline.plan("llama-tiny").plan
    bare = replace(planned.facts.checkpoint, path=tmp_path, verified=False)
    found = plan(planned.deployment, replace(planned.facts, checkpoint=bare))
    assert (
        "checkpoint: its folder holds no weights: their sizes are assumed to be the "
        "architecture's; copy the weights and the tokenizer before you start it"
    ) in map(str, found.warnings)


# --- GPUs -----------------------------------------------------------------------------------------


def test_a_server_may_have_all_gpus_of_a_node() -> None:
    assert pipeline.plan(LLAMA, [ONE, "hardware.num_gpus=8"]).plan.deployment.instances == 1


def test_several_nodes_are_taken_whole() -> None:
    found = refused(LLAMA, ONE, "hardware.num_gpus=12", "targets={triton: {}, kubernetes: {}}")
    assert found[0] == (
        "--set hardware.num_gpus: 12 GPUs need more than one node: a h100 node has 8; "
        "give a multiple of 8: whole nodes"
    )


def test_sizes_that_divide_the_model_are_named_up_to_a_node() -> None:
    of_model, of_draft = refused(LLAMA, ONE, "hardware.num_gpus=3")
    assert of_model == (
        "--set hardware.num_gpus: tensor parallelism over 3 GPUs does not divide "
        "num_attention_heads 64, num_key_value_heads 8, intermediate_size 28672; "
        "give one of 1, 2, 4, 8"
    )
    assert "of the draft model meta-llama/Llama-3.2-1B-Instruct; give one of 1, 2, 4, 8" in of_draft


def test_a_size_that_was_set_is_blamed_where_it_was_set() -> None:
    found = refused(LLAMA, ONE, "engine_config.tensor_parallel_size=3")
    divided = [line for line in found if "does not divide" in line]
    assert len(divided) == 2
    assert all(line.startswith("--set engine_config.tensor_parallel_size: ") for line in divided)


def test_key_value_heads_may_be_duplicated_but_not_split_unevenly() -> None:
    planned = pipeline.plan(LLAMA, [ONE, "hardware.num_gpus=4", "draft=null"]).plan
    config = planned.facts.checkpoint.config

    def with_heads(count: int) -> None:
        facts = planned.facts
        odd = replace(facts.checkpoint, config={**config, "num_key_value_heads": count})
        plan(planned.deployment, replace(facts, checkpoint=odd))

    for count in (8, 4, 2, 1):
        with_heads(count)
    with pytest.raises(
        BadInput, match=r"does not divide num_key_value_heads 6; give one of 1, 2, 3"
    ):
        with_heads(6)


# --- Draft models ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "is_refused"), [("draft_target", True), ("eagle3", False)])
def test_a_whole_draft_model_shares_the_vocabulary_and_a_head_need_not(
    method: str, is_refused: bool
) -> None:
    planned = pipeline.plan(LLAMA, [ONE, f"draft.method={method}"]).plan
    draft = planned.facts.draft
    assert draft
    fewer = replace(draft, config={**draft.config, "vocab_size": 32000})
    facts = replace(planned.facts, draft=fewer)
    if not is_refused:
        plan(planned.deployment, facts)
        return
    with pytest.raises(
        BadInput, match=r"has 32000 tokens in its vocabulary, .* has 128256"
    ) as caught:
        plan(planned.deployment, facts)
    assert [row.where for row in caught.value.diagnostics] == ["draft.checkpoint"]


# --- Blame for memory -----------------------------------------------------------------------------

CACHE = "engine_config.kv_cache_config"
GRAPHS = "engine_config.cuda_graph_config.batch_sizes"
STEP = "engine_config.max_num_tokens"
PARTS = {"total_gib": 100.0, "weights_gib": 10.0, "activations_gib": 3.0, "other_gib": 2.0}
PARTS |= {"cuda_graphs_gib": 1.0, "kv_cache_gib": 0.0, "uncertainty_gib": 4.0}


def blamed(planned: ServicePlan, **parts: float) -> tuple[str, str]:
    """Place and remedy where not one request fits into a memory of these parts."""
    found = planned.plan
    rows = {row.path: row for row in found.decisions}
    given = {row.path: row.value for row in found.decisions if row.evidence == "override"}
    builder = PlanBuilder(found.deployment, found.facts, given, rows)
    values: dict[str, Any] = {**PARTS, "free_gpu_memory_fraction": 0.5, **parts}
    check_budget(builder, replace(found.budget, **values))
    [diagnostic] = builder.diagnostics
    return diagnostic.where, diagnostic.fix


@by_table
def test_what_is_too_large_is_blamed_on_what_it_follows_from(
    setting: str, parts: dict[str, float], where: str, remedy: str
) -> None:
    place, fix = blamed(pipeline.plan("llama-tiny", [setting]), **parts)
    assert place == where
    assert fix.startswith(remedy) or fix.endswith(remedy)


def needed(words: str) -> int:
    """The GPUs that a remedy names."""
    found = re.search(r"take at least (\d+) GPUs", words)
    assert found, words
    return int(found[1])


@by_table
def test_as_many_gpus_as_a_refusal_names_are_enough_and_fewer_are_not(
    preset: str, gpus: int
) -> None:
    alone = ["instances=1", "draft=null", "workload.concurrency=1"]

    def refusals(count: int) -> list[str]:
        try:
            pipeline.plan(preset, [*alone, f"hardware.num_gpus={count}"])
        except BadInput as error:
            return [str(row) for row in error.diagnostics]
        return []

    (line,) = refusals(gpus)
    enough = needed(line)
    assert refusals(enough) == [], "enough"
    assert all(refusals(fewer) for fewer in range(gpus, enough))


def test_as_many_gpus_as_a_warning_names_hold_the_workload() -> None:
    words = ["workload.isl=4000", "targets=[trtllm_serve, kubernetes]"]

    def waiting(count: int) -> list[str]:
        found = pipeline.plan("deepseek-v3.2-fp8-gb200", [*words, f"hardware.num_gpus={count}"])
        return [row.fix for row in found.warnings if "the others wait" in row.message]

    (fix,) = waiting(4)
    assert fix.startswith("lower concurrency to 36, or take ")
    assert waiting(needed(fix)) == []


def test_where_a_server_cannot_grow_instances_are_named() -> None:
    words = ["hardware.num_gpus=8", "workload={isl: 8000, osl: 512, concurrency: 1000}"]

    def waiting(*more: str) -> list[str]:
        found = pipeline.plan("llama-3.3-70b-fp8-h100", [*words, *more]).warnings
        return [row.fix for row in found if "the others wait" in row.message]

    (fix,) = waiting()
    assert fix.endswith("or take 9 instances with their own GPUs")
    many = ["instances=9", "hardware.num_gpus=36", "targets=[trtllm_serve, kubernetes]"]
    assert waiting(*many) == []


def test_a_block_that_one_request_fills_is_no_waste() -> None:
    settings = ["workload={isl: 512, osl: 512, concurrency: 16}", f"{CACHE}.tokens_per_block=1024"]
    assert blamed(pipeline.plan("llama-tiny", settings), request_gib=90.0)[0] == "workload"


@pytest.mark.parametrize(
    ("activations_gib", "remedy"),
    [(40.0, "lower concurrency to 3, or take"), (40.1, "lower engine_config.max_num_tokens")],
)
def test_the_largest_part_beside_the_weights_gives_way_to_the_cache(
    activations_gib: float, remedy: str
) -> None:
    planned = pipeline.plan("llama-tiny", ["workload.concurrency=16"]).plan
    rows = {row.path: row for row in planned.decisions}
    builder = PlanBuilder(planned.deployment, planned.facts, {}, rows)
    parts: dict[str, Any] = {
        "activations_gib": activations_gib,
        "kv_cache_gib": 40.0,
        "weights_gib": 1.0,
    }
    check_budget(builder, replace(planned.budget, cached_requests=3, **parts))
    (waiting,) = (row.fix for row in builder.warnings if "the others wait" in row.message)
    assert waiting.startswith(remedy)


@pytest.mark.parametrize(
    ("concurrency", "instances", "each"), [(16, 1, 16), (16, 2, 8), (17, 2, 9), (1, 2, 1)]
)
def test_instances_share_the_load_rounded_up(concurrency: int, instances: int, each: int) -> None:
    request = pipeline.plan("llama-tiny").plan.deployment
    workload = request.workload.replaced(concurrency=concurrency)
    found = concurrency_per_instance(request.replaced(workload=workload, instances=instances))
    assert found == each


@by_table
def test_a_graph_holds_a_token_of_each_request_and_its_drafts(
    step: int, drafts: int, largest: int
) -> None:
    drafting = f"{{decoding_type: MTP, num_nextn_predict_layers: {drafts}}}" if drafts else "null"
    found = pipeline.plan(
        "deepseek-v3.2-nvfp4-gb200",
        [
            f"engine_config.speculative_config={drafting}",
            f"engine_config.max_num_tokens={step}",
            "engine_config.enable_chunked_prefill=true",
            "engine_config.cuda_graph_config={batch_sizes: [1, 32, 49, 50, 64]}",
        ],
    ).plan
    assert found.limits.graph_requests_per_rank == largest


# --- Draft tokens ---------------------------------------------------------------------------------


@by_table
def test_drafts_are_as_many_as_is_decided_or_set(
    setting: str, overrides: dict[str, Any], tokens: int
) -> None:
    found = pipeline.plan("llama-tiny", [setting]).plan
    rows = {row.path: row for row in found.decisions}
    builder = PlanBuilder(found.deployment, found.facts, overrides, rows)
    assert builder.draft_tokens() == tokens
