"""What a report suggests to change next: the edit that evidence gives, and what stays unknown."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.cli.main import main as builder_main
from builder.facts import data_file, plain_data
from launch.cli.main import main
from launch.report import evidence, suggestions
from launch.report.evidence import RunEvidence
from launch.report.suggestions import Suggestion
from maintenance import example_report
from tests.launch.report import samples
from tests.launch.report.test_published import DECISIONS, PUBLISHED

Made = Callable[..., RunEvidence]
NO_SLO: samples.Json = {"slo": {}, "largest_concurrency_within_slo": None}


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A run with a manifest of these parts, which nothing can plan again."""

    def make(parts: samples.Json | None = None, **changes: Any) -> RunEvidence:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        (run,) = evidence.gather([samples.run_folder(folder, samples.bench(**changes))])
        return run if parts is None else replace(run, manifest={"decisions": [], **parts})

    return make


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example")
    example_report.write(folder)
    return folder


def found(*runs: RunEvidence) -> list[Suggestion]:
    return suggestions.next_changes(runs)[0]


def unknown(*runs: RunEvidence) -> str:
    return " ".join(suggestions.next_changes(runs)[1])


def edits(*runs: RunEvidence) -> list[list[str]]:
    return [one.lines for one in found(*runs)]


def decided(**values: Any) -> list[samples.Json]:
    return [{"path": path, "value": value} for path, value in values.items()]


def test_a_missed_target_asks_for_less_load_or_more_instances(made: Made) -> None:
    run = made({"estimate": {"concurrency": 64}})
    fewer, more = found(run)
    assert fewer.lines == ["workload.concurrency: 16"]
    assert more.lines == ["instances: 4", "hardware.num_gpus: 16"]
    now, then = (run.bench.points[index].stats("itl_ms").p99 or 0 for index in (-1, 4))
    low, high = fewer.effects["ITL p99"]
    assert low and high and low < then / now - 1 < high < 0
    assert (fewer.confidence, more.confidence) == ("measured", "assumed")  # of an even spread
    assert "64 concurrent requests miss the latency target; 16 were measured" in fewer.why


def test_room_within_the_target_is_told_with_the_measured_output(made: Made) -> None:
    run = made({"estimate": {"concurrency": 4}})
    (one,) = found(run)
    assert one.lines == ["workload.concurrency: 16"]
    assert one.gain() > 0


@pytest.mark.parametrize(
    ("queue_ms", "kv_requests", "wanted"),
    [
        (300, 64, [["engine_config.max_batch_size: 64"]]),
        (300, 32, [["workload.concurrency: 32"], ["engine_config.max_batch_size: 32"]]),
        (10, 64, []),
        (None, 64, []),
    ],
)
def test_waiting_in_the_queue_asks_for_a_larger_batch_or_less_load(
    made: Made, queue_ms: float | None, kv_requests: int, wanted: list[list[str]]
) -> None:
    point = samples.point(64) | {"queue_ms": queue_ms and samples.spread(queue_ms)}
    limits = {"kv_requests_per_rank": kv_requests, "ranks": 1, "instances": 1}
    parts = {"limits": limits, "decisions": decided(max_batch_size=16)}
    run = made(parts, points=[point], **NO_SLO)
    assert sorted(edits(run)) == sorted(wanted)
    assert ("the time in the queue" in unknown(run)) == (queue_ms is None)
    for one in found(run):
        expected = [-300 / point["ttft_ms"]["p50"], 0]
        assert list(one.effects["TTFT p50"]) == pytest.approx(expected)


def test_preempted_requests_ask_for_a_load_that_the_kv_cache_holds(made: Made) -> None:
    counter = {"vllm:num_preemptions_total": {"before": 1, "after": 8}}
    limits = {"kv_requests_per_rank": 40}
    (one,) = found(
        made({"limits": limits}, points=[samples.point(64) | {"server": counter}], **NO_SLO)
    )
    assert (one.lines, dict(one.effects)) == (["workload.concurrency: 40"], {})
    assert "preempted requests 7 times" in one.why


def test_rejected_drafts_cost_at_most_the_tokens_that_they_give(made: Made) -> None:
    point = samples.point(8) | {"speculative": {"tokens_per_step": 1.1}}
    (one,) = found(made({"decisions": DECISIONS}, points=[point], **NO_SLO))
    assert one.lines == ["engine_config.speculative_config: null"]
    assert one.effect_texts == ["tokens/s/user at least -9.1\u00a0%"]


def test_published_figures_with_other_drafts_are_evidence_at_their_load(made: Made) -> None:
    figures = [
        {"concurrency": 8, "output_tokens_per_s_per_user": speed, "mtp_draft_tokens": drafts}
        for drafts, speed in ((1, 100), (2, 110), (3, 150))
    ]
    drafting = decided(**{"speculative_config.num_nextn_predict_layers": 1})
    parts = {"decisions": drafting, "published": [PUBLISHED | {"figures": figures}]}
    (one,) = found(made(parts, points=[samples.point(8)], **NO_SLO))
    assert one.lines == ["engine_config.speculative_config.num_nextn_predict_layers: 3"]
    assert list(one.effects["tokens/s/user"]) == pytest.approx([0.278, 0.761], abs=1e-3)
    assert (one.confidence, one.source) == ("published", "somebody")
    assert not found(made(parts, points=[samples.point(4)], **NO_SLO))


def test_an_option_of_a_faster_deployment_is_assumed_to_bring_at_most_the_rest(made: Made) -> None:
    option = {"path": "moe_config.backend", "published": "TRTLLM", "planned": "CUTLASS",
              "reason": "it is the default", "source": "somebody"}  # fmt: skip
    code = option | {"path": "trust_remote_code", "published": True}
    parts = {"decisions": DECISIONS, "published": [PUBLISHED], "differences": [option, code]}
    (one,) = found(made(parts, points=[samples.point(8)], **NO_SLO))
    assert one.lines == ['engine_config.moe_config.backend: "TRTLLM"']
    assert one.confidence == "assumed"
    assert one.effects["tokens/s/GPU"][0] == 0 < (one.effects["tokens/s/GPU"][1] or 0) < 0.25
    fast = samples.point(8, tpot_ms=1)
    assert not found(made(parts, points=[fast], **NO_SLO))


def test_a_failed_start_gives_the_edit_of_its_cause_and_options_not_in_force(
    tmp_path: Path,
) -> None:
    (tmp_path / "run.json").write_text(json.dumps(samples.FAILED_START))
    (run,) = evidence.gather([tmp_path])
    run = replace(run, manifest={"decisions": decided(max_batch_size=64)})
    cause, option = found(run)
    assert cause.lines == ["engine_config.kv_cache_config.free_gpu_memory_fraction: 0.8"]
    assert option.lines == ["engine_config.max_batch_size: 32"]
    assert not cause.effects and not option.effects
    assert "No load was served" in unknown(run)


def test_a_rehearsal_suggests_nothing_about_speed(made: Made) -> None:
    run = made(rehearsal=True)
    assert not found(run)
    assert unknown(run) == "A rehearsal on CPU says nothing about the speed of a GPU."


def test_two_published_runs_that_differ_in_one_decision_are_evidence(example: Path) -> None:
    run, other = evidence.gather([example / "TP4", example / "TP2"])
    fewer, spread = found(run, other)  # what was measured comes first
    assert spread.confidence == "estimated"
    assert "engine_config.data_parallel_size: 4" in spread.lines
    assert spread.gain(("tokens/s/GPU",)) > 0.1
    assert not spread.costs
    assert fewer.lines == ["hardware.num_gpus: 2", "engine_config.tensor_parallel_size: 2"]
    assert fewer.confidence == "measured"
    assert fewer.gain(("tokens/s/GPU",)) > 0.3
    assert fewer.costs
    low, high = fewer.effects[suggestions.TOTAL]  # half of the GPUs are gone
    assert low and high and -0.5 < low <= high < 0
    assert suggestions.TOTAL not in spread.effects
    subject = replace(other.bench.subject, release="0.20.0")
    another = replace(other, bench=replace(other.bench, subject=subject))
    assert len(found(run, another)) == 1
    assert "TP2 differs in engine, layout: its speed is not the effect" in unknown(run, another)


def test_the_example_ranks_the_causes_of_a_published_difference(example: Path) -> None:
    text = (example / "report.html").read_text().replace("\u00a0", " ")
    for words in ("Change next", "+34.7 %", "Vultr, HGX B200", "By the differences that have"):
        assert words in text
    assert len(text) < 150_000


def test_an_edit_that_cannot_be_planned_is_left_out_with_the_reason(
    rendered: samples.Json, made: Made
) -> None:
    run = made(bundle=rendered)
    assert [one.lines[0] for one in found(run)] == ["workload.concurrency: 16", "instances: 4"]
    odd = replace(run.bench.subject, num_gpus=3)
    run = replace(run, bench=replace(run.bench, subject=odd))
    assert edits(run) == [["workload.concurrency: 16"]]
    assert "hardware.num_gpus=12 cannot be planned" in unknown(run)


def test_a_certain_defect_of_the_release_asks_for_one_without_it(
    tmp_path: Path, rendered: samples.Json, made: Made
) -> None:
    assert not [one for one in found(made(bundle=rendered)) if "engine.release" in one.edit]
    folder = tmp_path / "offloading"
    words = ["render", rendered["name"], "-o", str(folder)]
    option = "engine_config.kv_cache_config.host_cache_size=1000000000"
    assert builder_main([*words, "--set", option]) == 0
    first = found(made(bundle={"name": "offloading", "folder": str(folder)}))[0]
    assert first.lines == ['engine.release: "1.3.0rc23"']
    assert (first.confidence, dict(first.effects)) == ("published", {})
    assert "known defect" in first.why


def test_suggestions_are_in_the_json_and_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = samples.run_folder(tmp_path / "run", samples.bench())
    assert main(["report", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["change_next"]
    assert told["suggestions"][0]["edit"] == {"workload.concurrency": 16}
    assert any("the run has no bundle" in text for text in told["unknown"])
    text = (folder / "report.html").read_text()
    assert "workload.concurrency: 16" in text


def test_shipped_rules_name_known_figures_and_their_texts_are_complete(made: Made) -> None:
    data = data_file.shipped(suggestions.RULES, plain_data.SUGGESTIONS)
    figures = dict.fromkeys(data["figures"], "1")
    for rule in data["rules"]:
        assert rule["why"].format_map(figures)
        assert rule["effects"].keys() <= {"slo", "tokens/s/user", *suggestions.MEASURED}
        names: list[Sequence[object]] = [list(rule["when"]), list(rule["edit"].values())]
        names += [list(one.values()) for one in (*rule["when"].values(), *rule["effects"].values())]
        for name in (name for row in names for name in row if isinstance(name, str)):
            assert name in figures, name


def test_one_decision_of_two_bundles_is_found_in_their_deployments(
    tmp_path: Path, rendered: samples.Json
) -> None:
    smaller = tmp_path / "smaller"
    words = ["render", rendered["name"], "-o", str(smaller)]
    assert builder_main([*words, "--set", "engine_config.max_batch_size=32"]) == 0
    runs = []
    for name, folder, tpot_ms in (("a", rendered["folder"], 6.8), ("b", str(smaller), 3.4)):
        about = {"name": name, "folder": folder}
        document = samples.bench(name, bundle=about, points=[samples.point(8, tpot_ms=tpot_ms)])
        runs.append(samples.run_folder(tmp_path / name, document | NO_SLO))
    found_, _ = suggestions.next_changes(evidence.gather(runs))
    assert found_[0].lines == ["engine_config.max_batch_size: 32"]
    low, high = found_[0].effects["tokens/s/GPU"]
    assert low and high and low < 1 < high
