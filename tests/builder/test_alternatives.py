"""What measured rows say of a plan's own settings: evidence for them, or another layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder import pipeline, planning
from builder.estimates import Estimate, plan_estimate
from builder.planning import Decision, Plan
from builder.planning.choices import Layout

PRESET = "gpt-oss-120b-h200"
ATTENTION, EXPERTS = "enable_attention_dp", "moe_expert_parallel_size"
# Published practice splits the attention here; measured rows speak for whole requests on a GPU.
DISAGREEING = (
    "checkpoint=openai/gpt-oss-120b",
    "hardware={gpu: b200, num_gpus: 2}",
    "workload={isl: 1024, osl: 1024, concurrency: 64}",
)


@pytest.fixture(scope="module")
def plain() -> Plan:
    """What the planner alone decides where rows disagree with it."""
    plan = pipeline.plan(PRESET, DISAGREEING).plan
    return planning.plan(plan.deployment, plan.facts)


def _decided(plan: Plan) -> dict[str, Decision]:
    return {row.path: row for row in plan.decisions}


def test_rows_of_the_very_setting_are_among_its_sources() -> None:
    decided = _decided(pipeline.plan("deepseek-r1-0528-nvfp4-b200").plan)
    said = "11 of 86 measurements have the layout TP8/EP8"
    assert said in decided["tensor_parallel_size"].source
    assert "37 of 86 measurements draft" in decided["mtp_draft_tokens"].source


def test_without_rows_of_the_model_nothing_is_said() -> None:
    decided = _decided(pipeline.plan("deepseek-v3.2-nvfp4-gb200").plan)
    assert "measurements" not in decided["tensor_parallel_size"].source


def test_published_practice_wins_and_the_disagreement_is_said(plain: Plan) -> None:
    plan = plan_estimate.adjust(plain)
    row = _decided(plan)[ATTENTION]
    assert (row.value, row.evidence) == (False, "documented")
    assert "measurements disagree: DP2/EP2 takes " in row.source
    assert row.reason == _decided(plain)[ATTENTION].reason  # a comment in the engine's file
    assert str(plan_estimate.disagreement(plan)).startswith("DP2/EP2 takes ")
    assert plan_estimate.disagreement(plain) is None


def test_where_nothing_is_published_the_decision_rests_on_the_estimate() -> None:
    plan = pipeline.plan("deepseek-v3.2-nvfp4-b300").plan
    assert _decided(plan)[EXPERTS].evidence in plan_estimate.OPEN
    by_rows = Decision(EXPERTS, 1, "Faster by measured rows.", "estimated", "9 measured rows")
    facts = replace(plan.facts, estimated={EXPERTS: by_rows})
    assert _decided(planning.plan(plan.deployment, facts))[EXPERTS] == by_rows


def test_where_practice_is_published_the_planner_keeps_it(plain: Plan) -> None:
    by_rows = Decision(ATTENTION, True, "Faster by measured rows.", "estimated", "9 measured rows")
    facts = replace(plain.facts, estimated={ATTENTION: by_rows})
    assert _decided(planning.plan(plain.deployment, facts))[ATTENTION].value is False


@pytest.mark.parametrize(
    ("preset", "engine", "experts_shared"),
    [
        (PRESET, "tensorrt_llm", {ATTENTION: True, EXPERTS: 2}),
        (PRESET, "vllm", {"data_parallel_size": 2, "enable_expert_parallel": True}),
        ("llama-tiny", "vllm", {"data_parallel_size": 2}),
    ],
)
def test_a_layout_is_in_the_options_of_the_engine(
    preset: str, engine: str, experts_shared: dict[str, object]
) -> None:
    release = "0.32.0" if engine == "vllm" else "1.2.1"
    given = f"engine={{name: {engine}, release: {release}}}"
    facts = pipeline.plan(preset, [given]).plan.facts
    size = 1 if engine == "vllm" else 2
    found = Layout(2, attention_dp=True, ep=2).settings(facts.release, facts.checkpoint)
    assert found == {"tensor_parallel_size": size, **experts_shared}


def test_what_speaks_against_a_layout_is_faster_by_the_ends_of_the_intervals(plain: Plan) -> None:
    rows = plan_estimate.rows_like(plan_estimate.question_of(plain))
    faster = plan_estimate._faster(plain, plan_estimate.question_of(plain), rows)
    assert faster is not None
    found, settings, _ = faster
    assert settings == {ATTENTION: True}
    assert found.e2e_ms.high < _estimate(plain).e2e_ms.low
    asked = found.question
    assert (asked.tp, asked.attention_dp, asked.ep) in {row.layout for row in rows}


def test_the_users_value_is_never_replaced_by_an_estimate(plain: Plan) -> None:
    given = (*DISAGREEING, "engine_config={enable_attention_dp: false}")
    row = _decided(pipeline.plan(PRESET, given).plan)[ATTENTION]
    assert (row.value, row.evidence) == (False, "override")
    assert "measurements" not in row.source


def _estimate(plan: Plan) -> Estimate:
    found = plan_estimate.answer(plan)
    assert isinstance(found, Estimate)
    return found
