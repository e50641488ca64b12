"""Candidates: what is started for a deployment, its options one at a time, and their priors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from builder import pipeline
from builder.errors import BadInput
from builder.estimates import Estimate, Estimator, Question, Refusal, names, unrefused
from builder.estimates.intervals import Spread
from builder.facts import engines, release
from builder.tuning import candidates
from builder.tuning.candidates import Candidate

R1 = """\
name: r1
checkpoint: nvidia/DeepSeek-R1-0528-NVFP4-v2
hardware: {gpu: b200, num_gpus: {at_most: 8}}
engine: {release: 1.2.1}
workload: {isl: 1024, osl: 1024, concurrency: 48}
slo: {itl_ms: 20}
targets: [trtllm_serve]
"""
VLLM = "minimax-m2.5-nvfp4-b300-vllm"

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def new(text: str) -> str:
        (tmp_path / "open.yaml").write_text(text)
        return str(tmp_path / "open.yaml")

    return new


def by_id(found: list[Candidate]) -> dict[str, Candidate]:
    return {one.id: one for one in found}


class TestLayouts:
    def test_they_are_those_that_fit_with_0_1_and_3_draft_tokens(self, write: Write) -> None:
        found, refused = candidates.layouts(candidates.read(write(R1)))
        names = by_id(found)
        assert {"tp8-mtp0", "tp8-mtp1", "tp8-mtp3", "dp8-ep8-mtp3", "tp4-mtp0"} <= names.keys()
        assert not [name for name in names if "mtp2" in name]
        assert names["tp4-mtp0"].title == "TP4 without MTP"
        assert any(line.startswith("TP1 without MTP: ") for line in refused)
        assert not [name for name in names if name.startswith(("tp1-", "tp2-"))]

    def test_the_load_is_shared_by_the_servers_that_fill_the_gpus(self, write: Write) -> None:
        found = by_id(candidates.layouts(candidates.read(write(R1)))[0])
        assert (found["tp8-mtp0"].instances, found["tp4-mtp0"].instances) == (1, 2)
        assert found["tp4-mtp0"].loads == (1, 2, 3, 4, 6, 8, 12, 16, 24)
        assert found["tp4-mtp0"].used_gib > found["tp8-mtp0"].used_gib

    def test_without_limits_only_the_whole_load_is_measured(self, write: Write) -> None:
        text = R1.replace("slo: {itl_ms: 20}\n", "")
        assert by_id(candidates.layouts(candidates.read(write(text)))[0])["tp4-mtp0"].loads == (24,)

    def test_a_cache_that_holds_fewer_requests_is_measured_with_these(self, write: Write) -> None:
        text = R1.replace("concurrency: 48", "concurrency: 4096").replace("1024, osl", "65536, osl")
        one = by_id(candidates.layouts(candidates.read(write(text)))[0])["tp8-mtp0"]
        assert one.loads[-1] == one.values["workload.concurrency"] < 4096

    def test_each_is_a_deployment_of_one_server_with_its_options(self, write: Write) -> None:
        request = candidates.read(write(R1))
        one = by_id(candidates.layouts(request)[0])["dp4-ep4-mtp1"]
        planned = pipeline.plan_document(candidates.document(request, one)).plan
        assert planned.deployment.hardware.num_gpus == 4
        assert {row.path: row.value for row in planned.decisions}["enable_attention_dp"] is True
        assert planned.budget.used_gib == pytest.approx(one.used_gib, abs=0.01)

    def test_the_untuned_one_is_the_plan_of_the_deployment(self) -> None:
        request = candidates.read("qwen3-235b-nvfp4-gb200")
        one = candidates.untuned(request)
        own = pipeline.plan("qwen3-235b-nvfp4-gb200").plan
        assert one.options == {
            own.facts.release.option_path(row.path): row.value for row in own.decisions
        }

    @pytest.mark.parametrize(
        ("old", "new", "where"),
        [
            ("gpu: b200", "gpu: [b200, h200]", "hardware.gpu"),
            ("concurrency: 48", "request_rate: 2.5", "workload.request_rate"),
        ],
    )
    def test_what_one_machine_cannot_measure_is_refused(
        self, write: Write, old: str, new: str, where: str
    ) -> None:
        with pytest.raises(BadInput) as caught:
            candidates.read(write(R1.replace(old, new)))
        assert [row.where.rpartition(" ")[2] for row in caught.value.diagnostics] == [where]


class TestVariants:
    def test_each_changes_one_option_from_the_value_of_the_planner(self, write: Write) -> None:
        request = candidates.read(write(R1))
        layout = by_id(candidates.layouts(request)[0])["tp8-mtp0"]
        found = candidates.variants(request, layout)
        changed = {one.id: {*one.settings} - {*layout.settings} for one in found}
        assert all(len(paths) == 1 for paths in changed.values())
        paths = {path for paths in changed.values() for path in paths}
        assert {"max_num_tokens", "max_batch_size", "moe_config.backend"} <= paths
        assert all(
            one.options[path] != layout.options.get(path)
            for one in found
            for path in changed[one.id]
        )
        assert [one.effect for one in found] == sorted((one.effect for one in found), reverse=True)
        assert (
            by_id(found)["tp8-mtp0+kv_cache_config.free_gpu_memory_fraction=0.83"].kv_share == 0.83
        )
        assert "tp8-mtp0+max_batch_size=96" in changed

    def test_an_option_of_the_user_stays(self, write: Write) -> None:
        text = R1 + "engine_config: {max_batch_size: 64, kv_cache_config: {tokens_per_block: 64}}\n"
        request = candidates.read(write(text))
        layout = by_id(candidates.layouts(request)[0])["tp8-mtp0"]
        found = candidates.variants(request, layout)
        assert found and not [one for one in found if "max_batch_size" in one.id]
        assert [one for one in found if "free_gpu_memory_fraction" in one.id]

    def test_vllm_has_options_of_its_own(self) -> None:
        request = candidates.read(VLLM)
        layout = candidates.layouts(request)[0][-1]
        changed = {one.id.partition("+")[2] for one in candidates.variants(request, layout)}
        batch = layout.options["max_num_seqs"]
        assert {f"max_num_seqs={2 * batch}", f"max_num_seqs={batch // 2}"} <= changed
        assert {"max_num_batched_tokens=2048", "enable_chunked_prefill=false"} <= changed

    @pytest.mark.parametrize("engine", engines.names())
    def test_every_row_names_an_option_of_a_release(self, engine: str) -> None:
        tables = [row for row in release.of_all_engines() if row.engine.name == engine]
        rows = candidates.rows(engine)
        assert rows and all(any(table.has(row["option"]) for table in tables) for row in rows)


ASKED = Question("Llama-3.3-70B", "h200", "fp8", "tensorrt_llm", 4, 1, 1, 1024, 1024, 16)


@pytest.fixture(scope="module")
def estimator() -> Estimator:
    return Estimator.load()


class TestPrior:
    def test_a_measured_question_gets_about_its_estimate(self, estimator: Estimator) -> None:
        found, told = estimator.estimate(ASKED), prior_of(ASKED.model, estimator)(ASKED)
        assert isinstance(found, Estimate)
        assert told.at.whole == pytest.approx(found.e2e_ms.value, rel=0.1)
        assert told.tpot_deviation < unrefused.LEAST_TPOT

    @pytest.mark.parametrize(
        ("model", "gpu"), [(ASKED.model, "b300"), ("nvidia/Kimi-K2-Instruct-NVFP4", "gb200")]
    )
    def test_a_refused_question_gets_times_with_wide_errors(
        self, estimator: Estimator, model: str, gpu: str
    ) -> None:
        asked = replace(ASKED, model=model, gpu=gpu, precision="fp4")
        assert isinstance(estimator.estimate(asked), Refusal)
        told = prior_of(model, estimator)(asked)
        assert told.at.first > 0 and told.at.rest > told.at.first
        assert told.tpot_deviation >= unrefused.LEAST_TPOT
        assert told.ttft_deviation >= unrefused.LEAST_TTFT

    @pytest.mark.parametrize("model", ["DeepSeek-R1", "GLM-5"])  # with drafting rows and without
    def test_draft_tokens_make_tokens_faster_at_a_small_load(
        self, estimator: Estimator, model: str
    ) -> None:
        prior = prior_of(model, estimator)
        asked = replace(ASKED, model=model, gpu="b200", precision="fp4", tp=8, concurrency=4)
        plain, drafted = (prior(replace(asked, mtp=depth)) for depth in (0, 1))
        assert drafted.at.rest < plain.at.rest


def prior_of(model: str, estimator: Estimator) -> Callable[[Question], Spread]:
    facts = names.facts_of(model)
    assert facts is not None
    return unrefused.prior(estimator, facts)
