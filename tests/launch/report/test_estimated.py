"""The estimate of a bundle beside what its run measured: inside or outside, by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builder import pipeline
from builder.errors import BadInput
from builder.estimates import plan_estimate
from builder.facts.published_results import LATENCIES, MEASURES
from builder.number_format import percent, quantity
from launch.report import estimated, page, results
from launch.report.evidence import RunEvidence
from tests.launch.report import samples

PRESET, LOAD = "gpt-oss-120b-h200", 64


@pytest.fixture(scope="module")
def estimate() -> samples.Json:
    return plan_estimate.document(pipeline.plan(PRESET).plan)


def _run(estimate: samples.Json, *, times: float = 1.0, **changes: Any) -> RunEvidence:
    """A run of the estimated load that is slower than its estimate by a factor."""
    point = samples.point(LOAD, gpus=1)
    for name in LATENCIES:
        point[name]["p50"] = estimate[name]["value"] * times
    for name in set(MEASURES) - set(LATENCIES):
        point[name] = estimate[name]["value"] / times
    lengths = {name: estimate[name] for name in ("isl", "osl")}
    document = samples.bench(points=[point], workload={"kind": "fixed", **lengths}) | changes
    bench = results.read_bench(document, "bench.json")
    return RunEvidence(PRESET, "run", bench, manifest={"estimate": estimate})


def _found(run: RunEvidence) -> estimated.RunEstimate:
    found = estimated.for_run(run)
    assert found is not None
    return found


def test_measured_values_inside_are_said_to_be_inside(estimate: samples.Json) -> None:
    found = _found(_run(estimate))
    assert found.is_compared
    assert {one.verdict for one in found.measures} == {"inside"}
    every = "every measured value is inside the interval of its estimate."
    assert found.summary == f"At 64 concurrent requests {every}"


def test_each_value_outside_is_named_with_its_side(estimate: samples.Json) -> None:
    found = _found(_run(estimate, times=1.5))
    sides = {one.name: one.verdict.rpartition(" ")[2] for one in found.measures}
    assert sides["time per output token, median"] == "above"
    assert sides["output of a GPU"] == "below"
    assert "0 of 6 measured values are inside" in found.summary
    tpot_ms = estimate["tpot_ms"]
    slow_ms = 1.5 * tpot_ms["value"]
    value, beyond = quantity(slow_ms, "ms"), percent(slow_ms / tpot_ms["high"] - 1)
    assert f"time per output token, median {value}, {beyond} above" in found.summary


def test_another_load_is_not_compared_and_the_one_to_measure_is_named(
    estimate: samples.Json,
) -> None:
    for workload in ({"isl": 8000, "osl": 1000}, {}):
        found = _found(_run(estimate, workload={"kind": "fixed", **workload}))
        assert not found.is_compared
        assert "launch bench --isl 1000 --osl 1000 --concurrency 64 does" in found.summary
        assert {one.verdict for one in found.measures} == {"not measured"}


def test_a_rehearsal_is_not_set_beside_an_estimate(estimate: samples.Json) -> None:
    subject = samples.bench(rehearsal=True)["subject"]
    found = _found(_run(estimate, subject=subject))
    assert not found.is_compared
    assert "rehearsal" in found.summary


def test_a_refusal_is_said_with_its_reason() -> None:
    refused = plan_estimate.document(pipeline.plan("qwen3-235b-nvfp4-gb200").plan)
    bench = results.read_bench(samples.bench(), "bench.json")
    found = _found(RunEvidence("a run", "run", bench, manifest={"estimate": refused}))
    assert "no measurements for Qwen3-235B-A22B on gb200" in found.summary
    assert not found.measures
    assert found.evidence


def test_bundles_from_before_estimates_say_nothing(estimate: samples.Json) -> None:
    bench = _run(estimate).bench
    assert estimated.for_run(RunEvidence("a run", "run", bench, manifest={})) is None
    assert estimated.for_run(RunEvidence("a run", "run", bench)) is None


@pytest.mark.parametrize(
    "damage",
    [7, {"isl": None}, {"tpot_ms": 7}, {"tpot_ms": {"low": "fast"}}, {"concurrency": "many"}],
    ids=str,
)
def test_an_estimate_of_another_form_is_named(estimate: samples.Json, damage: Any) -> None:
    document = estimate | damage if isinstance(damage, dict) else damage
    with pytest.raises(BadInput, match=r"manifest\.json: estimate"):
        estimated.for_run(replace(_run(estimate), manifest={"estimate": document}))


def test_the_page_shows_both_beside_each_other(estimate: samples.Json) -> None:
    manifest = pipeline.manifest_facts(pipeline.plan(PRESET))
    text = page.text([replace(_run(estimate, times=1.5), manifest=manifest)])
    assert "Estimated and measured" in text
    assert "0 of 6 measured values are inside" in text
    assert "73 measurements of this model" in text
