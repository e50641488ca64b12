"""`choose`: what a deployment file leaves open is closed by measured rows, or it says why not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from builder import pipeline
from builder.choice import page, report, request, selection
from builder.choice.candidates import MOST_CONCURRENCY, Search, candidates, load_levels
from builder.choice.selection import Selection, rank
from builder.estimates import Estimate, Estimator, Question, Refusal, plan_estimate
from tests.conftest import Run
from tests.tables import by_table

OPEN = """\
name: r1
checkpoint: nvidia/DeepSeek-R1-0528-NVFP4-v2
hardware: {gpu: b200, num_gpus: {at_most: 8}}
engine: {release: 1.2.1}
workload: {isl: 1024, osl: 1024, concurrency: 32}
slo: {ttft_ms: 1000, itl_ms: 20, percentile: p50}
objective: cost
price_per_gpu_hour_usd: {b200: 4.5}
targets: [trtllm_serve]
"""

Write = Callable[..., Path]
Select = Callable[..., Selection]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """The open deployment with texts replaced, as a file."""

    def new(replaced: Mapping[str, str] | None = None) -> Path:
        text = OPEN
        for old, by in (replaced or {}).items():
            assert old in text
            text = text.replace(old, by)
        file = tmp_path / "open.yaml"
        file.write_text(text)
        return file

    return new


@pytest.fixture(scope="module")
def estimator() -> Estimator:
    return Estimator.load()


@pytest.fixture(scope="module")
def selected() -> dict[str, Selection]:
    return {}


@pytest.fixture
def select(write: Write, estimator: Estimator, selected: dict[str, Selection]) -> Select:
    """The selection for the open deployment with texts replaced, made once for all tests."""

    def new(replaced: Mapping[str, str] | None = None) -> Selection:
        file = write(replaced)
        text = file.read_text()
        if text not in selected:
            selected[text] = selection.select(request.read(str(file)), estimator)
        return selected[text]

    return new


def test_the_chosen_one_has_the_least_of_the_objective_among_those_that_keep_it(
    select: Select,
) -> None:
    found = select()
    best, *others = found.kept
    assert others
    assert all(rank(best, found.request) <= rank(option, found.request) for option in others)
    for option in found.kept:
        assert option.forecast is not None
        assert option.forecast.itl_ms.high <= 20
        assert option.forecast.ttft_ms.high <= 1000


def test_an_objective_between_value_and_upper_end_is_not_promised(select: Select) -> None:
    first = select().kept[0]
    assert first.forecast is not None
    itl = first.forecast.itl_ms
    between = select({"itl_ms: 20": f"itl_ms: {(itl.value + itl.high) / 2:.4f}"})
    same = [o for o in between.options if o.candidate.sharding == first.candidate.sharding]
    assert same and not any(o.keeps for o in same if o.candidate.instances == 1)
    assert any(o.misses for o in same)


def test_what_the_memory_does_not_hold_is_never_chosen(select: Select) -> None:
    found = select(
        {"concurrency: 32": "concurrency: 4096", "slo: {ttft_ms: 1000, itl_ms: 20, ": "slo: {"}
    )
    for option in found.estimated:
        assert option.forecast is not None
        assert option.planned.holds >= option.forecast.running


def test_what_gpus_do_not_hold_is_not_planned_again_for_more_load(
    write: Write, estimator: Estimator
) -> None:
    asked = request.read(str(write({"num_gpus: {at_most: 8}": "num_gpus: 1"})))
    planner = Search(asked, estimator)
    for one in candidates(asked):
        refused = planner.plan(one, 8)
        assert {row.where for row in refused.objections} == {"hardware.num_gpus"}
        assert planner.plan(one, 64) is refused
        assert planner.plan(one, 4) is not refused


def test_more_gpus_than_a_target_can_have_are_no_reason_to_refuse_fewer(
    write: Write, estimator: Estimator
) -> None:
    several = {"at_most: 8": "at_most: 16", "[trtllm_serve]": "[trtllm_serve, compose]"}
    asked = request.read(str(write(several)))
    planner, planned = Search(asked, estimator), set()
    for one in candidates(asked):
        found = planner.plan(one, 4)
        too_many = any("more than the 8 of a machine" in row.message for row in found.objections)
        assert too_many == (one.num_gpus > 8)
        planned |= {one.num_gpus} if found.plan else set()
    assert 8 in planned


def test_drafts_that_the_user_decided_are_those_that_are_asked(write: Write) -> None:
    drafts = "{decoding_type: MTP, num_nextn_predict_layers: 2}"
    own = f"targets: [trtllm_serve]\nengine_config: {{speculative_config: {drafts}}}"
    found = candidates(request.read(str(write({"targets: [trtllm_serve]": own}))))
    assert {one.question(32).mtp for one in found} == {2}


@pytest.mark.parametrize(
    ("kinds", "kept"),
    [({1: "outside", 2: "wide"}, 2), ({1: "outside"}, 1), ({1: "unmeasured", 2: "outside"}, 1)],
)
def test_of_refusals_at_a_rate_the_first_that_tells_most_is_kept(
    write: Write,
    estimator: Estimator,
    monkeypatch: pytest.MonkeyPatch,
    kinds: dict[int, str],
    kept: int,
) -> None:
    def refuse(asked: Question, **_limits: object) -> Refusal:
        return Refusal(asked, kinds.get(asked.concurrency, "outside"), "no row", ())

    monkeypatch.setattr(estimator, "promise", refuse)
    asked = request.read(str(write({"concurrency: 32": "request_rate: 2"})))
    outcome = Search(asked, estimator).forecast(candidates(asked)[0])
    assert isinstance(outcome, Refusal)
    assert outcome.question.concurrency == kept


def test_numbers_of_drafts_that_the_rows_do_not_tell_apart_are_the_planners_own(
    write: Write, estimator: Estimator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of this model draft, but do not say how many tokens."""
    monkeypatch.setattr(estimator, "promised_margin", 0.5)  # or none with attention DP is told
    found = selection.select(request.read(str(write())), estimator)
    drafting = [row.candidate for row in found.estimated if row.candidate.mtp_draft_tokens]
    places = [(row.sharding, row.instances, row.max_batch_size) for row in drafting]
    assert drafting and len(set(places)) == len(places)
    by_attention_dp = {
        row.sharding.data_parallel_ranks > 1: row.mtp_draft_tokens for row in drafting
    }
    assert by_attention_dp == {False: 3, True: 1}


def test_what_is_likely_and_worth_much_more_is_measured_before_anything_is_chosen(
    select: Select, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = select({"itl_ms: 20": "itl_ms: 13"})
    best, likely = found.kept[0], found.untold
    assert likely is None
    assert any(option.is_likely and not option.keeps for option in found.estimated)
    monkeypatch.setattr(selection, "WORTH_MEASURING", 1.01)
    found = Selection(found.request, found.options)
    likely = found.untold
    assert likely is not None and likely.forecast is not None
    assert likely.is_likely and not likely.keeps
    assert rank(likely, found.request) < rank(best, found.request)
    assert found.measurements() == [likely.candidate.question(likely.forecast.running)]
    assert report.chosen(found) is None
    assert "likely meets the targets too" in str(report.refusal(found))


def test_the_front_has_nobody_below_another(select: Select) -> None:
    found = select()
    speeds = [
        (o.forecast.tok_s_per_user.value, o.forecast.tok_s_per_gpu.value)
        for o in found.estimated
        if o.forecast
    ]
    for option in found.front:
        assert option.forecast is not None
        user = option.forecast.tok_s_per_user.value
        per_gpu = option.forecast.tok_s_per_gpu.value
        assert not any(u > user and g > per_gpu for u, g in speeds)


def test_requests_that_do_not_run_at_once_wait_their_turns(select: Select) -> None:
    found = select({"itl_ms: 20": "itl_ms: 9.5"})
    smaller = [o for o in found.estimated if o.candidate.max_batch_size]
    assert smaller
    for option in smaller:
        forecast = option.forecast
        assert forecast is not None and forecast.waiting > 0
        turns = (forecast.waiting + forecast.running) / forecast.running
        assert forecast.e2e_ms.value == pytest.approx(turns * forecast.estimate.e2e_ms.value)
        assert forecast.ttft_ms.value > forecast.estimate.ttft_ms.value


def test_a_rate_runs_as_many_requests_at_once_as_little_says(select: Select) -> None:
    found = select({"concurrency: 32": "request_rate: 2", "itl_ms: 20, ": ""})
    for option in found.estimated:
        forecast, share = option.forecast, 2 / option.candidate.instances
        assert forecast is not None
        assert forecast.running * 1000 / forecast.e2e_ms.high >= share
        assert forecast.output_tok_s.value == pytest.approx(2 * 1024)


def test_the_load_that_is_written_for_a_rate_keeps_the_targets_by_the_plans_own_estimate(
    select: Select,
) -> None:
    found = select({"concurrency: 32": "request_rate: 2", "itl_ms: 20, ": ""})
    option, document = report.chosen(found) or pytest.fail("nothing is chosen")
    own = plan_estimate.estimate(plan_estimate.question_of(pipeline.plan_document(document).plan))
    assert option.forecast and isinstance(own, Estimate)
    assert own.question.concurrency == option.forecast.running
    assert own.ttft_ms.high <= option.forecast.ttft_ms.high <= 1000


def test_a_rate_that_nobody_keeps_up_with_is_refused_with_the_most(
    write: Write, builder: Run
) -> None:
    done = builder("choose", write({"concurrency: 32": "request_rate: 500"}))
    assert done.returncode == 2
    assert ":5: workload.request_rate: no candidate is fast enough:" in done.stderr
    assert "the fastest handles " in done.stderr


def test_as_many_gpus_as_a_refused_rate_names_keep_up_and_fewer_do_not(select: Select) -> None:
    def chosen(most: int) -> str:
        changes = {"concurrency: 32": "request_rate: 30", "at_most: 8": f"at_most: {most}"}
        found = select(changes | {"slo: {ttft_ms: 1000, itl_ms: 20, percentile: p50}\n": ""})
        return "" if found.kept else str(report.refusal(found))

    named = re.search(r"allow at least (\d+) GPUs", chosen(4))
    assert named
    assert "allow at least" in chosen(int(named[1]) - 1)
    assert chosen(int(named[1])) == ""


def test_candidates_that_are_left_out_have_their_reasons(write: Write, builder: Run) -> None:
    open_file = write({"gpu: b200": "gpu: [b200, gb200]", "{b200: 4.5}": "{b200: 4, gb200: 5}"})
    done = builder("choose", open_file, "--html", "page.html")
    said = " ".join(done.stdout.split())
    invalid = int(re.findall(r"(\d+) cannot be planned,", said)[0])
    counts = [int(count) for count in re.findall(r"- (\d+) cannot be planned: ", said)]
    assert sum(counts) == invalid > 0
    assert counts == sorted(counts, reverse=True)
    assert "8 GPUs need more than one node: a gb200 node has 4" in said
    assert "does not fit on 2 x b200" in said
    assert "GiB of KV cache for requests" not in said
    assert re.search(r"- \d+ without an estimate: ", said)
    page = (open_file.parent / "page.html").read_text()
    assert "8 GPUs need more than one node" in page


def test_load_levels_rise_by_about_a_quarter() -> None:
    levels = load_levels()
    assert all(1 < two / one <= 2 for one, two in pairwise(levels))
    assert all(two / one <= 1.26 for one, two in pairwise(levels) if one > 8)
    assert levels[-1] == MOST_CONCURRENCY


def test_the_options_of_the_user_are_not_chosen_again(select: Select) -> None:
    fixed = "targets: [trtllm_serve]\nengine_config: {moe_expert_parallel_size: 1}"
    found = select({"targets: [trtllm_serve]": fixed})
    assert {option.candidate.sharding.moe_expert_parallel_size for option in found.options} == {1}
    document = report.chosen_document(found, found.kept[0])
    assert "moe_expert_parallel_size" not in document.data["choice"]["settings"]
    assert document.data["engine_config"]["moe_expert_parallel_size"] == 1


def test_the_table_fits_a_terminal_and_marks_the_chosen_one(write: Write, builder: Run) -> None:
    several = {"gpu: b200": "gpu: [b200, gb200, h200]", "{b200: 4.5}": "4.5"}
    done = builder("choose", write(several), "--set", "slo.itl_ms=13")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    rows = [line for line in done.stdout.splitlines() if line.startswith("* ")]
    assert len(rows) == 1
    assert "b200" in rows[0]
    assert "evidence:" in done.stdout


@pytest.mark.parametrize("itl_ms", [20, 1])
def test_the_legend_is_of_the_columns_that_are_shown(
    itl_ms: int, write: Write, builder: Run
) -> None:
    """Names of small batches take the room of what memory is left."""
    shown = builder("choose", write(), "--set", f"slo.itl_ms={itl_ms}").stdout
    heads = next(line.split() for line in shown.splitlines() if " LAYOUT " in line)
    legend = " ".join(
        shown.partition("value<conservative upper bound")[2].partition("\n\n")[0].split()
    )
    assert all((f"{head}: " in legend) == (head in heads) for head in ("FREE", "ROWS", "$/M"))
    assert ("FREE" in heads) == (itl_ms == 20)


def test_a_page_of_several_gpus_numbers_points_and_rows_and_sets_commands_apart(
    select: Select,
) -> None:
    found = select(
        {
            "gpu: b200": "gpu: [b200, h200]",
            "percentile: p50": "percentile: p95",
            "{b200: 4.5}": "4.5",
        }
    )
    option, _ = report.chosen(found) or pytest.fail("nothing is chosen")
    text = page.text(found, option)
    assert f">1. {report.servers_text(option)}</th>" in text and ">1</text>" in text
    assert "<code>python -m launch bench</code>" in text and "`" not in text


def test_the_chosen_deployment_is_rendered_with_its_reason(
    write: Write, builder: Run, tmp_path: Path
) -> None:
    done = builder("choose", write(), "-o", "chosen.yaml", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert_every_candidate_has_its_fate(said)
    assert builder("choose", write(), "-o", "again.yaml").returncode == 0
    assert (tmp_path / "again.yaml").read_bytes() == (tmp_path / "chosen.yaml").read_bytes()
    done = builder("render", "chosen.yaml", "-o", "bundle")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert manifest["choice"]["reason"] == said["reason"]
    assert manifest["choice"]["objective"] == "cost"
    decided = {row["path"]: row for row in manifest["decisions"]}
    size = decided["tensor_parallel_size"]
    assert size["value"] == said["chosen"]["tensor_parallel_size"]
    assert (size["evidence"], size["reason"]) == ("estimated", said["reason"])
    assert "measurements" in size["source"]
    assert builder("verify", "bundle").returncode == 0
    ep = "engine_config.moe_expert_parallel_size=2"
    done = builder("plan", "chosen.yaml", "--json", "--set", ep)
    decided = {row["path"]: row for row in json.loads(done.stdout)["decisions"]}
    assert decided["moe_expert_parallel_size"]["evidence"] == "override", "it is the user's own"
    assert decided["tensor_parallel_size"]["evidence"] == "estimated"


def assert_every_candidate_has_its_fate(said: dict[str, Any]) -> None:
    for row in said["candidates"]:
        fates = [name for name in ("estimate", "refused", "objections") if name in row]
        assert len(fates) == 1, row
        assert "estimate" not in row or row["rows"] > 0
        for interval in row.get("estimate", {}).values():
            assert interval["low"] <= interval["value"] <= interval["high"]
    assert said["counts"]["candidates"] == len(said["candidates"])


def test_an_objective_that_nobody_keeps_says_by_how_much_and_the_nearest(
    write: Write, builder: Run, tmp_path: Path
) -> None:
    file = write({"ttft_ms: 1000, itl_ms: 20": "e2e_ms: 400, itl_ms: 3"})
    done = builder("choose", file, "--json", "-o", "chosen.yaml")
    assert done.returncode == 2
    assert ":6: slo.itl_ms: no candidate meets 3 ms: the lowest upper end is " in done.stderr
    assert ":6: slo.e2e_ms: no candidate meets 400 ms" in done.stderr
    assert "the nearest is " in done.stderr
    said = json.loads(done.stdout)
    assert said["chosen"] is None
    assert {row["objective"] for row in said["failing"]} == {"itl_ms", "e2e_ms"}
    assert all(row["excess"] > 0 for row in said["failing"])
    assert said["nearest"][0]["misses"]
    assert not (tmp_path / "chosen.yaml").exists()


def test_a_target_below_what_the_gpus_can_do_is_impossible_and_nothing_is_to_measure(
    write: Write, builder: Run
) -> None:
    done = builder("choose", write({"ttft_ms: 1000": "ttft_ms: 1"}), "--json")
    assert done.returncode == 2
    assert ":6: slo.ttft_ms: 1 ms is impossible: at peak arithmetic and bandwidth" in done.stderr
    assert "slo.itl_ms" not in done.stderr
    assert json.loads(done.stdout)["measure"] == []


def test_the_point_that_was_asked_for_is_measured_first(select: Select) -> None:
    found = select({"nvidia/DeepSeek-R1-0528-NVFP4-v2": "nvidia/DeepSeek-V3.2-NVFP4"})
    asked = {option.candidate.question(32).layout for option in found.refused}
    first = found.measurements()[0]
    assert first.concurrency == 32 and first.layout in asked
    assert "; measure it" in "".join(report.reason_texts(found))


def test_without_evidence_there_is_a_plan_to_measure_and_no_number(
    builder: Run, tmp_path: Path
) -> None:
    done = builder("choose", "deepseek-v3.2-nvfp4-gb200", "--json", "-o", "chosen.yaml")
    assert done.returncode == 3
    assert "no candidate has an estimate" in done.stderr
    said = json.loads(done.stdout)
    assert not any("estimate" in row for row in said["candidates"])
    assert 1 <= len(said["measure"]) <= 4
    assert {"tp", "attention_dp", "ep", "isl", "osl", "concurrency"} <= said["measure"][0].keys()
    assert not (tmp_path / "chosen.yaml").exists()


@by_table
def test_a_wrong_file_is_refused_with_place_and_remedy(
    replaced: dict[str, str], line: str, write: Write, builder: Run
) -> None:
    done = builder("choose", write(replaced))
    assert done.returncode in (2, 3)
    assert line in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
