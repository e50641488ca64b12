"""Estimates of a plan, in its manifest and runbook, and settings that measurements change."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from builder import pipeline, planning
from builder.estimates import Estimate, Estimator, Refusal, measurements, plan_estimate
from builder.facts.memory import Sharding
from builder.planning import Decision, Plan
from builder.servers import RenderContext
from builder.targets.handoff import plan_sections
from builder.targets.handoff.document import Section
from tests.conftest import Run
from tests.tables import by_table

MEASURED, REFUSED = "gpt-oss-120b-h200", "deepseek-v3.2-nvfp4-gb200"
ATTENTION, EXPERTS = "enable_attention_dp", "moe_expert_parallel_size"
# Published configurations split the attention here; measurements favour whole requests per GPU.
DISAGREEING = (
    "checkpoint=openai/gpt-oss-120b",
    "hardware={gpu: b200, num_gpus: 2}",
    "workload={isl: 1024, osl: 1024, concurrency: 64}",
)


@pytest.fixture(scope="module")
def measured() -> Plan:
    return pipeline.plan(MEASURED).plan


@pytest.fixture(scope="module")
def point(measured: Plan) -> dict[str, Any]:
    """A published figure twice as high as the upper end of the estimate of its load."""
    found = plan_estimate.answer(measured)
    assert isinstance(found, Estimate)
    row = replace(
        measured.facts.published[0],
        engine="tensorrt-llm 1.0",
        isl=measured.deployment.workload.isl,
        osl=measured.deployment.workload.osl,
        options={"tensor_parallel_size": 1},
        figures=({"concurrency": 64, "output_tokens_per_s": 2 * found.output_tok_s.high},),
    )
    plan = replace(measured, facts=replace(measured.facts, published=(row,)))
    (one,) = plan_estimate.published_points(plan)
    return one


def test_the_plan_says_how_fast_it_is_and_what_carries_that(builder: Run) -> None:
    text = builder("plan", MEASURED).stdout
    for said in ("ESTIMATED SPEED", "measurements of this model", "nearest: gpt-oss-120b fp4"):
        assert said in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_plan_for_machines_is_what_estimate_answers(builder: Run) -> None:
    said = json.loads(builder("plan", MEASURED, "--json").stdout)["estimate"]
    (asked,) = json.loads(builder("estimate", MEASURED, "--json").stdout)["points"]
    for name in ("ttft_ms", "tpot_ms", "e2e_ms", "rows", "nearest"):
        assert said[name] == asked[name], name
    assert said["output_tokens_per_s"] == asked["output_tok_s"]
    assert said["concurrency"] == asked["concurrency"]


def test_without_rows_the_plan_says_why_and_what_to_measure(builder: Run) -> None:
    text = builder("plan", REFUSED).stdout
    assert "ESTIMATED SPEED  none: no measurements for deepseek-v3.2" in text
    assert "python -m launch bench BUNDLE --isl" in text
    said = json.loads(builder("plan", REFUSED, "--json").stdout)["estimate"]
    assert said["kind"] == "unmeasured"
    assert said["measure"][0] == said["concurrency"]
    assert "tpot_ms" not in said


@pytest.mark.parametrize(
    ("words", "has_none"),
    [
        (("llama-tiny", "--set", "workload.isl=256"), True),
        ((MEASURED, "--set", "hardware.gpu=gb300"), False),
    ],
)
def test_where_the_model_has_no_row_the_command_that_shows_others_is_named(
    builder: Run, words: tuple[str, ...], has_none: bool
) -> None:
    text = " ".join(builder("plan", *words).stdout.split())
    assert "PUBLISHED none for these GPUs" in text and "ESTIMATED SPEED none" in text
    command = f"nearest measurements: python -m builder estimate {' '.join(words)}"
    assert (command in text) == has_none
    assert ("estimate" in text.partition("PUBLISHED")[2].partition("OPTION")[0]) == has_none


def test_the_manifest_names_the_rows_by_their_digest(measured: Plan) -> None:
    facts = pipeline.manifest_facts(pipeline.plan(MEASURED))
    digest = hashlib.sha256(measurements.AGGREGATED.read_bytes()).hexdigest()
    assert facts["estimate"]["rows_sha256"] == digest
    assert facts["inputs"]["files"]["data/measurements/aggregated.csv"] == digest
    assert "data/measurements/factors.json" in facts["inputs"]["files"]


def test_rates_are_of_all_servers_and_times_of_one_request() -> None:
    one, two = (
        plan_estimate.document(pipeline.plan(MEASURED, overrides).plan)
        for overrides in ((), ("instances=2", "hardware.num_gpus=2", "workload.concurrency=128"))
    )
    assert two["tpot_ms"] == one["tpot_ms"]
    assert two["output_tokens_per_s_per_gpu"] == one["output_tokens_per_s_per_gpu"]
    whole = one["output_tokens_per_s"]["value"]
    assert two["output_tokens_per_s"]["value"] == pytest.approx(2 * whole, rel=1e-4)


def test_the_rows_of_one_model_answer_like_all_rows(measured: Plan) -> None:
    other_gpu = pipeline.plan("qwen3-235b-nvfp4-gb200").plan
    questions = [plan_estimate.question_of(plan) for plan in (measured, other_gpu)]
    every = Estimator.load()
    assert [plan_estimate.estimate(asked) for asked in questions] == [
        every.estimate(asked) for asked in questions
    ]


def test_a_model_without_rows_is_refused_in_the_same_words() -> None:
    asked = plan_estimate.question_of(pipeline.plan(REFUSED).plan)
    one, other = plan_estimate.estimate(asked), Estimator.load().estimate(asked)
    assert isinstance(one, Refusal) and isinstance(other, Refusal)
    assert (one.kind, one.reason, one.measure) == (other.kind, other.reason, other.measure)


def test_a_published_figure_beyond_the_interval_is_named_as_a_disagreement(
    point: dict[str, Any],
) -> None:
    assert not point["agrees"]
    assert "100% above it, they disagree" in plan_estimate.published_text(point)


def test_the_runbook_has_the_estimate_or_what_would_tell() -> None:
    said = {}
    for name in (MEASURED, REFUSED):
        service = pipeline.plan(name)
        section = plan_sections.figures(RenderContext(service.plan, service.engine, None))
        said[name] = "\n".join(_texts(section))
    assert "time per output token | 20.2 |" in said[MEASURED]
    assert "Nearest measurement: gpt-oss-120b" in said[MEASURED]
    assert "No estimate of 800 prompt" in said[REFUSED]
    assert "launch bench BUNDLE" in said[REFUSED]


def _texts(section: Section) -> list[str]:
    return [text for block in section.blocks if isinstance(text := block, str)]


@pytest.fixture(scope="module")
def plain() -> Plan:
    """The planner's own decisions where measurements disagree."""
    plan = pipeline.plan(MEASURED, DISAGREEING).plan
    return planning.plan(plan.deployment, plan.facts)


def _decided(plan: Plan) -> dict[str, Decision]:
    return {row.path: row for row in plan.decisions}


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


@by_table
def test_a_layout_is_in_the_options_of_the_engine(
    preset: str, engine: str, experts_shared: dict[str, object]
) -> None:
    release = "0.32.0" if engine == "vllm" else "1.2.1"
    given = f"engine={{name: {engine}, release: {release}}}"
    facts = pipeline.plan(preset, [given]).plan.facts
    size = 1 if engine == "vllm" else 2
    found = Sharding(2, enable_attention_dp=True, moe_expert_parallel_size=2).settings(
        facts.release, facts.checkpoint
    )
    assert found == {"tensor_parallel_size": size, **experts_shared}


def test_what_speaks_against_a_layout_is_faster_by_the_ends_of_the_intervals(plain: Plan) -> None:
    rows = plan_estimate.rows_like(plan_estimate.question_of(plain))
    faster = plan_estimate._faster(plain, plan_estimate.question_of(plain), rows)
    assert faster is not None
    found, settings, _ = faster
    assert settings == {ATTENTION: True}
    assert found.e2e_ms.high < _estimate(plain).e2e_ms.low
    asked = found.question
    assert asked.layout in {row.layout for row in rows}


def test_the_users_value_is_never_replaced_by_an_estimate(plain: Plan) -> None:
    given = (*DISAGREEING, "engine_config={enable_attention_dp: false}")
    row = _decided(pipeline.plan(MEASURED, given).plan)[ATTENTION]
    assert (row.value, row.evidence) == (False, "override")
    assert "measurements" not in row.source


def _estimate(plan: Plan) -> Estimate:
    found = plan_estimate.answer(plan)
    assert isinstance(found, Estimate)
    return found
