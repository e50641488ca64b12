"""Estimates from measured rows: what they answer, what they refuse, and what always holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.cli.main import main
from builder.errors import BadInput
from builder.estimates import (
    Estimate,
    Estimator,
    Question,
    Refusal,
    batch,
    names,
    own_runs,
    roofline,
)
from builder.estimates.cells import key_of
from builder.estimates.intervals import Interval
from builder.estimates.measurements import OWN, Row, time_text
from builder.estimates.names import facts_of
from builder.estimates.roofline import WEIGHT_BYTES, Speeds, shape_of, speeds
from builder.facts import hardware
from builder.facts.weight_layouts import FORMATS
from tests.tables import by_table

GPT = Question("openai/gpt-oss-120b", "b200", "fp4", "tensorrt_llm", 4, 1, 1, 1024, 1024, 16)
R1 = Question(
    "nvidia/DeepSeek-R1-0528-NVFP4", "b200", "fp4", "tensorrt_llm", 8, 1, 1, 1024, 1024, 16, mtp=0
)
QWEN = Question("Qwen/Qwen3-32B", "h100", "fp8", "vllm", 4, 1, 1, 1024, 512, 16)
V32 = Question(
    "nvidia/DeepSeek-V3.2-NVFP4", "gb200", "fp4", "tensorrt_llm", 4, 1, 1, 2400, 1600, 16, mtp=3
)


@pytest.fixture(scope="module")
def estimator() -> Estimator:
    return Estimator.load()


def answer(estimator: Estimator, question: Question) -> Estimate:
    found = estimator.estimate(question)
    assert isinstance(found, Estimate), found.reason
    return found


def refusal(estimator: Estimator, question: Question) -> Refusal:
    found = estimator.estimate(question)
    assert isinstance(found, Refusal)
    return found


class TestAnswers:
    def test_a_measured_point_is_near_what_was_measured(self, estimator: Estimator) -> None:
        row = next(
            row
            for row in estimator.rows.of_model("gpt-oss-120b")
            if (row.gpu, row.engine, row.layout) == ("b200", "tensorrt_llm", (4, 1, 1))
            and (row.isl, row.osl, row.concurrency) == (1024, 1024, 16)
        )
        found = answer(estimator, GPT)
        assert found.tpot_ms.value == pytest.approx(row.tpot_ms, rel=0.1)
        assert found.nearest[0].distance == 0

    def test_intervals_hold_their_values_and_units_agree(self, estimator: Estimator) -> None:
        found = answer(estimator, R1)
        for interval in (found.tpot_ms, found.ttft_ms, found.e2e_ms, found.output_tok_s):
            assert 0 < interval.low <= interval.value <= interval.high
        whole_ms = found.ttft_ms.value + (R1.osl - 1) * found.tpot_ms.value
        assert found.e2e_ms.value == pytest.approx(whole_ms, rel=0.02)
        tokens_per_s = R1.concurrency * R1.osl / found.e2e_ms.value * 1000
        assert found.output_tok_s.value == pytest.approx(tokens_per_s)
        assert found.tok_s_per_gpu.value == pytest.approx(tokens_per_s / 8)
        assert found.tok_s_per_user.value == pytest.approx(1000 / found.tpot_ms.value)
        usd = 3.6 * 8 / 3600 / tokens_per_s * 1e6
        assert found.usd_per_million_tokens(3.6).value == pytest.approx(usd)

    @pytest.mark.parametrize(
        ("question", "precision"),
        [(GPT, "fp8"), (replace(QWEN, engine="tensorrt_llm"), "FP8_BLOCK")],
    )
    def test_sources_call_one_precision_otherwise(
        self, estimator: Estimator, question: Question, precision: str
    ) -> None:
        """There is one checkpoint of gpt-oss; FP8 in blocks is FP8."""
        other = answer(estimator, replace(question, precision=precision))
        assert other.tpot_ms == answer(estimator, question).tpot_ms
        is_read_as_another = precision == "fp8"
        assert bool(other.notes) == is_read_as_another
        assert all(
            "precision fp8 is read as fp4: this model was measured in" in note
            for note in other.notes
        )
        outside = refusal(estimator, replace(question, precision=precision, osl=1))
        assert outside.notes == other.notes

    def test_more_rows_narrow_the_interval(self, estimator: Estimator) -> None:
        few = [row for index, row in enumerate(estimator.rows) if index % 3]
        widths = [
            answer(one, GPT).tpot_ms.half_width
            for one in (estimator, Estimator(few, estimator.fits))
        ]
        assert widths[0] <= widths[1]


class TestRefusals:
    @by_table
    def test_a_refusal_says_what_is_missing(
        self, estimator: Estimator, changes: dict[str, object], kind: str, words: str
    ) -> None:
        found = refusal(estimator, replace(R1, **changes))  # type: ignore[arg-type]
        assert found.kind == kind
        assert words in found.reason
        assert found.nearest
        assert found.measure

    def test_what_to_measure_begins_with_the_asked_load_and_tells_its_curve(
        self, estimator: Estimator
    ) -> None:
        loads = [question.concurrency for question in refusal(estimator, V32).measure]
        assert loads[0] == V32.concurrency
        assert len(set(loads)) == len(loads) == 4
        assert {1, 256} <= set(loads)

    def test_two_modes_that_nobody_marked_are_refused(self, estimator: Estimator) -> None:
        """One more measurement of the asked point that took half as long again."""
        row = estimator.estimate(GPT).nearest[0].row
        assert isinstance(row, Row)
        other = row._replace(id="other", tpot_ms=row.tpot_ms * 1.5)
        found = refusal(Estimator([*estimator.rows, other], estimator.fits), GPT)
        assert found.kind == "modes"
        assert "1.5 times apart" in found.reason

    def test_rows_near_one_that_all_others_contradict_are_refused(
        self, estimator: Estimator
    ) -> None:
        row = estimator.estimate(GPT).nearest[0].row
        assert isinstance(row, Row)
        odd = row._replace(id="odd", tp=2, concurrency=32, tpot_ms=row.tpot_ms * 20)
        rows = [*estimator.rows, odd]
        found = refusal(Estimator(rows, estimator.fits), GPT)
        assert found.kind == "modes"
        assert "concurrency 32: TPOT 63" in found.reason
        far = replace(GPT, concurrency=256)
        assert isinstance(Estimator(rows, estimator.fits).estimate(far), Estimate)

    def test_a_load_that_memory_does_not_hold_is_refused(self, estimator: Estimator) -> None:
        """Rows of such loads exist; their requests waited 128 s for the first token."""
        asked = Question(
            "meta-llama/Llama-3.1-70B", "h200", "fp8", "tensorrt_llm", 1, 1, 1, 8192, 1024, 128
        )
        found = refusal(estimator, asked)
        assert found.kind == "outside"
        assert "need 318% of the KV cache of 1 h200" in found.reason
        assert isinstance(estimator.estimate(replace(asked, concurrency=8)), Estimate)
        small = replace(R1, tp=2, concurrency=4)
        assert "leave no room for a KV cache on 2 b200" in refusal(estimator, small).reason

    @by_table
    def test_what_was_measured_otherwise_is_shown(
        self, estimator: Estimator, changes: dict[str, object], words: str, near: str
    ) -> None:
        found = refusal(estimator, replace(R1, **changes))  # type: ignore[arg-type]
        assert found.kind == "unmeasured"
        assert words in found.reason
        assert any(near in str(one) for one in found.nearest)

    def test_a_model_left_out_is_never_answered_from_another(self, estimator: Estimator) -> None:
        rows = [row for row in estimator.rows if row.model != "DeepSeek-R1"]
        assert refusal(Estimator(rows, estimator.fits), R1).kind == "unmeasured"


class TestPromises:
    def test_a_promised_end_is_no_nearer_than_that_of_the_interval(
        self, estimator: Estimator
    ) -> None:
        release = replace(R1, release="1.2.1", mtp=3)
        for question in (GPT, release, replace(GPT, mtp=3, acceptance=2.5)):
            found, promised = answer(estimator, question), estimator.promise(question)
            assert isinstance(promised, Estimate)
            for name in ("tpot_ms", "ttft_ms", "e2e_ms"):
                one, other = getattr(found, name), getattr(promised, name)
                assert (other.low, other.value) == (one.low, one.value)
                assert other.high >= one.high
            assert promised.tpot_ms.high > found.tpot_ms.high

    def test_where_curves_of_a_cell_differ_only_limits_not_touched_are_promised(
        self, estimator: Estimator
    ) -> None:
        cell = "gpt-oss-120b b200 fp4 tensorrt_llm"
        ends = {
            name: {**cells, cell: [9.0, 9.0]} for name, cells in estimator.fits.promises.items()
        }
        wider = Estimator(estimator.rows, replace(estimator.fits, promises=ends))
        promised = wider.promise(GPT)
        assert isinstance(promised, Estimate)
        touched = {"itl_ms": 0.9 * promised.tpot_ms.high}
        assert isinstance(wider.promise(GPT, {"itl_ms": promised.tpot_ms.high}), Estimate)
        found = wider.promise(GPT, touched)
        assert isinstance(found, Refusal)
        assert found.kind == "wide"
        assert "the conservative bound needs" in found.reason
        assert wider.estimate(GPT) == estimator.estimate(GPT)
        assert isinstance(estimator.promise(V32), Refusal), "what is refused is not promised"


@by_table
def test_times_are_told_in_the_unit_that_they_are_read_in(time_ms: float, text: str) -> None:
    assert time_text(time_ms) == text


class TestDrafts:
    def test_rows_that_draft_answer_for_drafts(self, estimator: Estimator) -> None:
        drafted = answer(estimator, replace(R1, mtp=3))
        assert drafted.tpot_ms.high < answer(estimator, R1).tpot_ms.low

    def test_the_users_acceptance_divides_a_longer_step(self, estimator: Estimator) -> None:
        plain = answer(estimator, GPT)
        low, high = (
            answer(estimator, replace(GPT, mtp=3, acceptance=tokens)).tpot_ms
            for tokens in (2.0, 3.0)
        )
        assert high.value < low.value
        assert plain.tpot_ms.value / 2 < low.value < plain.tpot_ms.value
        assert low.half_width > plain.tpot_ms.half_width

    def test_it_counts_beside_rows_that_draft_too(self, estimator: Estimator) -> None:
        """Theirs is that of the prompts that somebody measured with."""
        few, many = (
            answer(estimator, replace(R1, mtp=3, acceptance=tokens)).tpot_ms.value
            for tokens in (1.2, 2.4)
        )
        assert few == pytest.approx(2 * many)

    def test_one_run_of_the_user_makes_no_drafting_rows_of_the_others(
        self, estimator: Estimator
    ) -> None:
        row = estimator.estimate(GPT).nearest[0].row
        assert isinstance(row, Row)
        own = row._replace(id="own", source="own")
        for one in (estimator, Estimator([*estimator.rows, own], estimator.fits)):
            assert refusal(one, replace(GPT, mtp=3)).kind == "acceptance"

    def test_a_published_curve_shows_its_range(self, estimator: Estimator) -> None:
        asked = Question(
            "Qwen/Qwen3.5-397B-A17B-FP8", "b200", "fp8", "sglang", 8, 1, 1, 1024, 1024, 16, mtp=2
        )
        assert "2.7 to 2.73 tokens per step, published" in answer(estimator, asked).notes[0]


LOADS = st.integers(4, 256)
LENGTHS = st.integers(512, 16384)


class TestOrder:
    """Time never falls with load, context or output length; more bandwidth never slows."""

    @settings(max_examples=60)
    @given(
        st.sampled_from([GPT, R1, replace(R1, mtp=3), replace(QWEN, osl=256)]),
        st.sampled_from(["concurrency", "isl", "osl"]),
        LOADS,
        LENGTHS,
        LENGTHS,
        st.floats(1.0, 8.0),
    )
    def test_time_never_falls(
        self,
        estimator: Estimator,
        question: Question,
        axis: str,
        load: int,
        isl: int,
        osl: int,
        times: float,
    ) -> None:
        less = replace(question, concurrency=load, isl=isl, osl=osl)
        grown: dict[str, Any] = {axis: int(getattr(less, axis) * times)}
        more = replace(less, **grown)
        one, other = estimator.estimate(less), estimator.estimate(more)
        if isinstance(one, Refusal) or isinstance(other, Refusal):
            return
        nearly = 1 - 1e-9
        assert other.e2e_ms.value >= one.e2e_ms.value * nearly
        if axis != "osl":
            assert other.tpot_ms.value >= one.tpot_ms.value * nearly
            assert other.ttft_ms.value >= one.ttft_ms.value * nearly

    @given(
        st.sampled_from(["DeepSeek-R1", "gpt-oss-120b", "Qwen3-32B", "GLM-5"]),
        LOADS,
        LENGTHS,
        LENGTHS,
        st.floats(1.0, 10.0),
    )
    def test_more_bandwidth_never_slows(
        self, estimator: Estimator, model: str, load: int, isl: int, osl: int, times: float
    ) -> None:
        facts = facts_of(model)
        assert facts is not None
        asked = replace(R1, concurrency=load, isl=isl, osl=osl)
        slow = speeds("b200", "fp8")
        fast = Speeds(slow.bytes_per_ms * times, slow.flops_per_ms)
        fits = estimator.fits
        for fit, terms in ((fits.tpot, roofline.decode_terms), (fits.ttft, roofline.first_terms)):
            slower, faster = (
                fit.time("vllm", terms(asked, shape_of(facts), gpu)) for gpu in (slow, fast)
            )
            assert faster <= slower

    def test_no_factor_is_negative(self, estimator: Estimator) -> None:
        for fit in (estimator.fits.tpot, estimator.fits.ttft):
            assert all(factor >= 0 for engine in fit.factors.values() for factor in engine)


def bench(path: Path, concurrency: int, tpot_ms: float, ttft_ms: float, **subject: object) -> None:
    """A run of launch bench with one point of a synthetic truth."""
    statistics = {"tpot_ms": tpot_ms, "ttft_ms": ttft_ms}
    document = {
        "format": 1,
        "kind": "bench",
        "started": "2026-11-20T10:00:00Z",
        "subject": {
            "model": "nvidia/DeepSeek-V3.2-NVFP4",
            "precision": "NVFP4",
            "gpu": "gb200",
            "num_gpus": 4,
            "engine": {
                "name": "tensorrt_llm",
                "release": "1.2.1",
                "used": "tensorrt_llm",
                "rehearsal": False,
            },
            **subject,
        },
        "workload": {"kind": "fixed", "isl": 2400, "osl": 1600},
        "points": [
            {
                "load": {"kind": "concurrency", "concurrency": concurrency},
                "requests": {"sent": 64, "ok": 64, "failed": 0},
                **{name: {"p50": value, "mean": value} for name, value in statistics.items()},
                "speculative": None,
            }
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def truth(concurrency: int) -> tuple[float, float]:
    """TPOT and TTFT of a made-up server."""
    return 3.1 + 0.11 * concurrency**0.9, 150 + 9.0 * concurrency


class TestOwnRuns:
    def test_four_runs_answer_what_was_refused_and_the_bar_holds_the_truth(
        self, tmp_path: Path, estimator: Estimator
    ) -> None:
        assert refusal(estimator, V32).kind == "unmeasured"
        for load in (1, 4, 64, 256):
            bench(tmp_path / f"run-{load}" / "bench.json", load, *truth(load))
        with_runs = Estimator.load(tmp_path)
        for load in (4, 16, 32, 128):
            found = answer(with_runs, replace(V32, concurrency=load))
            tpot_ms, ttft_ms = truth(load)
            assert found.tpot_ms.low <= tpot_ms <= found.tpot_ms.high
            whole_ms = ttft_ms + 1599 * tpot_ms
            assert found.e2e_ms.low <= whole_ms <= found.e2e_ms.high

    @settings(max_examples=12)
    @given(st.floats(2, 12), st.floats(0.02, 0.3), st.floats(0.6, 1.0), st.floats(20, 400))
    def test_four_runs_of_any_server_answer_and_most_bars_hold_its_truth(
        self, estimator: Estimator, step_ms: float, each_ms: float, power: float, first_ms: float
    ) -> None:
        def tpot_ms(load: int) -> float:
            return step_ms + each_ms * float(load**power)

        with TemporaryDirectory() as folder:
            for load in (1, 4, 64, 256):
                path = Path(folder) / f"run-{load}" / "bench.json"
                bench(path, load, tpot_ms(load), first_ms * (1 + load / 16))
            with_runs = Estimator(own_runs.read(Path(folder)), estimator.fits)
        asked = (2, 8, 16, 32, 128)
        found = [answer(with_runs, replace(V32, concurrency=load)).tpot_ms for load in asked]
        held = [
            bar.low <= tpot_ms(load) <= bar.high for bar, load in zip(found, asked, strict=True)
        ]
        assert sum(held) >= 0.8 * len(held)

    @pytest.mark.parametrize("times", [1.1, 3.0])
    def test_runs_of_one_load_that_contradict_each_other_are_refused(
        self, tmp_path: Path, estimator: Estimator, times: float
    ) -> None:
        for load in (1, 16, 64, 256):
            tpot_ms, ttft_ms = truth(load)
            bench(tmp_path / f"one-{load}" / "bench.json", load, tpot_ms, ttft_ms)
            bench(tmp_path / f"two-{load}" / "bench.json", load, tpot_ms * times, ttft_ms)
        found = Estimator(own_runs.read(tmp_path), estimator.fits).estimate(V32)
        assert isinstance(found, Refusal) == (times == 3.0)
        if isinstance(found, Refusal):
            assert (found.kind, "3.0 times apart" in found.reason) == ("modes", True)

    @pytest.mark.parametrize(("times", "text"), [(2.0, "2.00"), (0.5, "0.50"), (1.05, "")])
    def test_runs_that_contradict_published_rows_answer_without_them_and_it_is_said(
        self, tmp_path: Path, estimator: Estimator, times: float, text: str
    ) -> None:
        for load in (4, 16, 64, 256):
            published = answer(estimator, replace(GPT, concurrency=load))
            path = tmp_path / f"run-{load}" / "bench.json"
            measured = published.tpot_ms.value * times, published.ttft_ms.value * times
            bench(path, load, *measured, model=GPT.model, precision="MXFP4", gpu="b200")
            path.write_text(path.read_text().replace("2400", "1024").replace("1600", "1024"))
        asked = replace(GPT, concurrency=32)
        with_runs = Estimator([*estimator.rows, *own_runs.read(tmp_path)], estimator.fits)
        found, truth_ms = answer(with_runs, asked), answer(estimator, asked).tpot_ms.value * times
        assert found.tpot_ms.low <= truth_ms <= found.tpot_ms.high
        assert bool(found.notes) == bool(text)
        if text:
            assert f"in {tmp_path}/run-" in found.notes[0]
            assert f"takes {text} times as long as in the published ones" in found.notes[0]
            assert found.rows == 4
            assert {near.row.server.source for near in found.nearest[:2]} == {OWN}
            assert refusal(with_runs, replace(asked, concurrency=2)).notes == found.notes

    def test_own_runs_narrow_the_bar(self, tmp_path: Path, estimator: Estimator) -> None:
        before = answer(estimator, GPT)
        bench(
            tmp_path / "bench.json",
            GPT.concurrency,
            before.tpot_ms.value,
            before.ttft_ms.value,
            model=GPT.model,
            precision="MXFP4",
            gpu="b200",
        )
        document = json.loads((tmp_path / "bench.json").read_text())
        document["workload"] |= {"isl": 1024, "osl": 1024}
        (tmp_path / "bench.json").write_text(json.dumps(document))
        after = answer(Estimator.load(tmp_path), GPT)
        assert after.tpot_ms.half_width < before.tpot_ms.half_width

    @pytest.mark.parametrize(("tp", "is_held_back"), [(1, False), (2, True)])
    def test_a_run_tells_of_the_memory_of_its_own_layout_alone(
        self, estimator: Estimator, tp: int, is_held_back: bool
    ) -> None:
        asked = Question(
            "meta-llama/Llama-3.1-70B", "h200", "fp8", "tensorrt_llm", 1, 1, 1, 8192, 1024, 128
        )
        (row, *_) = (
            row
            for row in estimator.rows.of_model("Llama-3.3-70B")
            if (row.gpu, row.precision, row.engine) == ("h200", "fp8", "tensorrt_llm")
        )
        own = row._replace(id="own", source="own", tp=tp, isl=8192, osl=1024, concurrency=128)
        found = Estimator([*estimator.rows, own], estimator.fits).estimate(asked)
        waits = isinstance(found, Refusal) and "of the KV cache" in found.reason
        assert waits == is_held_back

    def test_the_wide_limit_is_for_cells_that_nobody_else_measured(
        self, estimator: Estimator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row = estimator.estimate(GPT).nearest[0].row
        assert isinstance(row, Row)
        own = row._replace(id="own", source="own")
        with_run = Estimator([*estimator.rows, own], estimator.fits)
        monkeypatch.setattr(with_run, "half_width", 0.001)
        assert refusal(with_run, GPT).kind == "wide"

    def test_a_copy_of_a_run_says_nothing_more(self, tmp_path: Path) -> None:
        for folder in ("one", "copy"):
            bench(tmp_path / folder / "bench.json", 4, 5, 100)
        assert len(own_runs.read(tmp_path)) == 1

    @by_table
    def test_what_no_gpu_can_have_measured_is_refused(
        self, tmp_path: Path, old: str, new: str, words: str
    ) -> None:
        path = tmp_path / "bench.json"
        bench(path, 4, 5, 100)
        path.write_text(path.read_text().replace(old, new))
        with pytest.raises(BadInput, match=words):
            own_runs.read(tmp_path)

    def test_no_public_row_is_faster_than_the_reading_of_its_weights(
        self, estimator: Estimator
    ) -> None:
        """The fastest one takes 1.29 times as long."""
        rows = [row._replace(acceptance=1.0) for row in estimator.rows]
        for row in rows:
            own_runs.refuse_impossible(Path("public"), row._replace(tpot_ms=row.tpot_ms / 1.28))
        with pytest.raises(BadInput, match="to read the weights"):
            for row in rows:
                own_runs.refuse_impossible(Path("public"), row._replace(tpot_ms=row.tpot_ms / 1.31))

    def test_runs_that_are_of_something_else_are_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        bench(tmp_path / "bench.json", 4, 5, 100)
        for model, said in (("gpt-oss-120b-b200", True), ("deepseek-v3.2-nvfp4-gb200", False)):
            main(["estimate", model, "--rows", str(tmp_path)])
            text = " ".join(capsys.readouterr().out.split())
            note = "no run of yours is of this model, GPU, precision and engine, but of deepseek-v3"
            assert (note in text) == said

    @by_table
    def test_a_run_that_no_row_can_be_made_of_is_named_and_spares_the_others_questions(
        self, tmp_path: Path, subject: dict[str, object], words: str
    ) -> None:
        bench(tmp_path / "good" / "bench.json", 4, 5, 100)
        bench(tmp_path / "bad" / "bench.json", 4, 5, 100, **subject)
        with pytest.raises(BadInput, match=rf"bad/bench\.json: .*{words}"):
            own_runs.read(tmp_path)

    @pytest.mark.parametrize("name", FORMATS)
    def test_every_format_of_weights_that_is_planned_can_be_measured(
        self, name: str, tmp_path: Path, estimator: Estimator
    ) -> None:
        bench(tmp_path / "bench.json", 16, 5, 100, precision=name)
        (row,) = own_runs.read(tmp_path)
        weights = FORMATS[name]
        assert int(WEIGHT_BYTES[row.precision] * 8) == weights.bits
        found = answer(Estimator([row], estimator.fits), replace(V32, precision=name))
        assert found.tpot_ms.value == pytest.approx(5, rel=0.1)

    @pytest.mark.parametrize(
        ("name", "gpu", "flops"),
        [
            *[("W4A16_GPTQ", "b200", "bf16"), ("W8A16_GPTQ", "b200", "bf16")],
            *[("W4A8_AWQ", "b200", "fp8"), ("MXFP8", "b200", "fp8"), ("W8A8_INT8", "a100", "int8")],
        ],
    )
    def test_a_format_is_computed_with_the_arithmetic_of_its_inputs(
        self, name: str, gpu: str, flops: Any
    ) -> None:
        tflops = hardware.load(gpu).tflops_dense.value[flops]
        assert tflops
        assert speeds(gpu, names.weight_precision(name)).flops_per_ms == tflops * 1e9

    def test_servers_that_share_gpus_are_measured_one_by_one(self, tmp_path: Path) -> None:
        options = {"tensor_parallel_size": 2}
        bench(tmp_path / "bench.json", 4, 5, 100, options=options)
        (row,) = own_runs.read(tmp_path)
        assert (row.num_gpus, row.release) == (2, "1.2.1")

    def test_rows_of_the_user_do_not_answer_for_what_no_row_is_of(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        bench(tmp_path / "bench.json", 4, 5, 100)
        words = ["estimate", "llama-3.3-70b-fp8-h100", "--rows", str(tmp_path), "--json"]
        assert main(words) == 3
        (point,) = json.loads(capsys.readouterr().out)["points"]
        assert "no measurements with a draft model" in point["refused"]

    def test_a_folder_without_runs_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match=r"no bench\.json"):
            Estimator.load(tmp_path)


def line(question: Question, **changes: object) -> str:
    row = {name: getattr(question, name) for name in batch.FIELDS}
    return json.dumps({name: value for name, value in (row | changes).items() if value is not None})


class TestBatch:
    @settings(max_examples=15)
    @given(st.lists(st.sampled_from([GPT, R1, QWEN, V32]), min_size=1, max_size=6), LOADS)
    def test_a_batch_answers_as_each_question_alone(
        self, estimator: Estimator, asked: list[Question], load: int
    ) -> None:
        questions = [replace(question, concurrency=load) for question in asked]
        text = "\n".join(line(question) for question in questions)
        together = list(batch.answer(batch.read(text, "q"), estimator))
        assert together == [batch.document(estimator.estimate(one)) for one in questions]

    def test_each_line_has_one_answer(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "questions.jsonl"
        file.write_text(f"{line(V32)}\n{line(V32)}\n")
        assert main(["estimate", "--batch", str(file)]) == 3, "no line has an answer"
        out, error = capsys.readouterr()
        assert (len(out.splitlines()), error.count("no estimate: ")) == (2, 1)
        file.write_text(f"{line(GPT)}\n\n{line(V32)}\n")
        assert main(["estimate", "--batch", str(file)]) == 0
        first, second = map(json.loads, capsys.readouterr().out.splitlines())
        for name in ("tpot_ms", "ttft_ms", "e2e_ms", "output_tok_s"):
            assert list(first[name]) == ["low", "value", "high"]
        assert "DeepSeek-V3.2".lower() in second["refused"]
        assert second["nearest"]

    def test_layouts_as_listings_write_them_are_read_and_said(self, estimator: Estimator) -> None:
        listed = replace(R1, model="deepseek-ai/DeepSeek-R1", tp=64, ep=8)
        run = replace(listed, tp=8)
        found, plain = batch.answer([listed, run], estimator)
        assert found["tpot_ms"] == plain["tpot_ms"]
        assert "TP64/EP8 is read as TP8/EP8" in found["notes"][0]

    def test_a_layout_of_one_node_is_read_as_it_is_written(self, estimator: Estimator) -> None:
        """Listings write TP4/EP2 for 2 GPUs, and 4 GPUs can be so too."""
        asked = replace(GPT, gpu="h200", tp=4, ep=2, concurrency=64)
        rows = estimator.rows.of_model("gpt-oss-120b")
        assert any(row.published == "TP4/EP2" and row.gpu == "h200" for row in rows)
        assert names.as_run(asked, rows) == (asked, "")

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{", "is not JSON"),
            pytest.param(f'{{"isl": {"9" * 5000}}}', "a number of 5000 digits", id="digits"),
            ("[]", "is not an object"),
            (line(GPT, tp="8"), 'tp is "8"'),
            (line(GPT, concurrency=0), "concurrency is 0"),
            (line(GPT, isl=True), "isl is true"),
            (line(GPT, tp=8.5), "tp is 8.5"),
            (line(GPT, isl=float("nan")), "isl is NaN"),
            (line(GPT, mtp=-1), "mtp is -1"),
            (line(GPT, mtp=2, acceptance=9), "acceptance is 9"),
            (line(GPT, mtp=2, acceptance=10**400), "acceptance is 1000"),
            (line(GPT, cocurrency=4), "did you mean concurrency"),
            (line(GPT).replace('"osl": 1024, ', ""), "osl is missing"),
            (line(GPT, attention_dp="true"), "give true, false or a whole number"),
        ],
    )
    def test_a_wrong_line_is_named_with_its_number(
        self, text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "questions.jsonl"
        file.write_text(f"{line(GPT)}\n{text}\n{line(GPT)}\n")
        assert main(["estimate", "--batch", str(file)]) == 2
        out, err = capsys.readouterr()
        first, wrong, last = map(json.loads, out.splitlines())
        assert "tpot_ms" in first, "the others have their answers"
        assert first == last
        assert (wrong["kind"], words in wrong["refused"]) == ("unread", True)
        assert f"{file}:2: {wrong['refused']}" in err

    @by_table
    def test_what_nobody_knows_was_never_measured(
        self, estimator: Estimator, changes: dict[str, str], words: str
    ) -> None:
        (found,) = batch.answer(batch.read(line(GPT, **changes), "q"), estimator)
        assert found["kind"] == "unmeasured"
        assert words in found["notes"][0]
        assert found["nearest"]

    def test_a_name_that_says_another_precision_is_read_for_the_model_alone(
        self, estimator: Estimator
    ) -> None:
        names = "acme/DeepSeek-R1-FP8-dynamic", "deepseek-ai/DeepSeek-R1"
        one, other = (
            next(batch.answer(batch.read(line(R1, model=name), "q"), estimator)) for name in names
        )
        assert one.pop("notes") == ["the name of the model says fp8: precision fp4 counts"]
        assert one == other

    @by_table
    def test_one_thing_has_several_names(
        self, estimator: Estimator, changes: dict[str, object]
    ) -> None:
        plain = {"ep": 1, "attention_dp": 1, "release": None}
        lines = batch.read(f"{line(R1, **plain)}\n{line(R1, **plain | changes)}", "q")
        found, same = batch.answer(lines, estimator)
        assert "tpot_ms" in found
        assert found == same

    @pytest.mark.parametrize("gpu", hardware.known())
    def test_a_gpu_is_known_by_the_name_of_its_driver(self, gpu: str) -> None:
        assert names.gpu_name(hardware.load(gpu).kubernetes_product.value) == gpu

    def test_a_release_tells_whether_it_drafts_with_its_v_too(self, estimator: Estimator) -> None:
        asked = replace(R1, mtp=None, release="1.2.0rc6.post3")
        found, same = (
            answer(estimator, replace(asked, release=release))
            for release in (asked.release, f"v{asked.release}")
        )
        assert found.notes and found.notes == same.notes
        assert found.tpot_ms == same.tpot_ms

    @by_table
    def test_the_first_version_of_a_text_is_the_release(self, text: str, release: str) -> None:
        assert names.release_name(text) == release

    def test_a_name_that_no_file_can_have_ends_no_batch(self, estimator: Estimator) -> None:
        found, _ = batch.answer(
            batch.read(f"{line(GPT, model='x' * 300)}\n{line(GPT)}", "q"), estimator
        )
        assert found["kind"] == "unmeasured"

    def test_a_release_is_of_its_minor_version(self, estimator: Estimator) -> None:
        names = ("1.2.0rc6", "v1.2.1", "nvcr.io/nvidia/tensorrt-llm/release:1.2.0", "trtllm==1.2.0")
        lines = batch.read("\n".join(line(R1, release=name) for name in names), "q")
        found, *others = batch.answer(lines, estimator)
        assert all(found["tpot_ms"] == other["tpot_ms"] for other in others)
        assert found["tpot_ms"] != batch.document(estimator.estimate(R1)).get("tpot_ms")

    @by_table
    def test_a_switch_is_over_all_gpus(
        self, written: dict[str, object], run: dict[str, object]
    ) -> None:
        assert batch.read(line(R1, **written), "q") == batch.read(line(R1, **run), "q")

    @by_table
    def test_a_layout_that_cannot_be_is_not_measured_either(
        self, estimator: Estimator, changes: dict[str, Any], words: str
    ) -> None:
        found = refusal(estimator, replace(R1, **{"tp": 8, "ep": 1} | changes))
        assert (found.kind, words in found.reason, found.measure) == ("layout", True, ())

    def test_a_dense_model_has_no_experts_to_share(self, estimator: Estimator) -> None:
        dense = {"model": "Qwen/Qwen3-32B", "gpu": "h100", "precision": "bf16", "engine": "vllm"}
        asked = [line(R1, **dense, tp=2, ep=ep, mtp=None, release=None) for ep in (1, 2)]
        found, shared = batch.answer(batch.read("\n".join(asked), "q"), estimator)
        assert shared.pop("notes") == ["ep 2 is read as 1: the model has no experts"]
        assert found == shared

    def test_an_empty_file_is_refused(self) -> None:
        with pytest.raises(BadInput, match="holds no question"):
            batch.read("\n", "questions.jsonl")


class TestCommand:
    def test_ends_have_as_many_decimals_as_the_value(self) -> None:
        assert str(Interval(7.83, 8.35, 8.9)) == "8.35 (7.83 to 8.90)"
        assert str(Interval(2272.8, 2454.4, 2650.0)) == "2,454 (2,273 to 2,650)"
        assert str(Interval(0.961, 1.021, 10.04)) == "1.02 (0.96 to 10.04)"
        later, unit = Interval(12365, 13351, 14417).in_unit("ms")
        assert (str(later), unit) == ("13.4 (12.4 to 14.4)", "s")

    def test_the_table_fits_a_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["estimate", "gpt-oss-120b-h200", "--concurrency", "4,16,64", "--price", "3.5"]
        assert main(words) == 0
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 80
        assert "USD per million" in text
        assert "measurements" in text

    def test_a_refusal_says_the_command_that_measures(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["estimate", "deepseek-v3.2-nvfp4-gb200"]) == 3
        text, error = capsys.readouterr()
        assert "no estimate: no measurements for deepseek-v3.2" in error
        assert max(map(len, text.splitlines())) <= 80
        assert "no estimate, no measurements for deepseek-v3.2" in " ".join(text.split())
        assert "launch bench BUNDLE --isl 800 --osl 1600" in " ".join(text.split())

    def test_one_answer_of_several_is_an_answer(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["estimate", "gpt-oss-120b-h200", "--json", "--price", "3.5", "--concurrency"]
        assert main([*words, "16,100000"]) == 0
        answered, refused = json.loads(capsys.readouterr().out)["points"]
        assert (answered["concurrency"], refused["concurrency"]) == (16, 100_000)
        assert ("refused" in answered, "refused" in refused) == (False, True)
        assert {"low", "value", "high"} == set(answered["usd_per_million_output_tokens"])
        assert main([*words, "100000"]) == 3

    @by_table
    def test_wrong_input_is_refused_without_a_traceback(
        self, words: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        try:
            code = main(words)
        except SystemExit as error:
            code = int(error.code or 0)
        assert code == 2
        assert "Traceback" not in capsys.readouterr().err


def test_rows_of_the_user_count_like_the_public_ones(estimator: Estimator) -> None:
    """A second measurement of a point is worth the same, whoever made it."""
    row = next(row for row in estimator.rows.of_model("gpt-oss-120b") if row.gpu == "b200")
    copy: Row = row._replace(id="own", source="own")
    more = [Estimator([*estimator.rows, one], estimator.fits) for one in (copy, row)]
    asked = replace(
        GPT, tp=row.tp, ep=row.ep, isl=row.isl, osl=row.osl, concurrency=row.concurrency
    )
    found = [one.estimate(replace(asked, engine=row.engine)) for one in more]
    assert [type(one) for one in found] == [Estimate, Estimate]
    one, other = found
    assert isinstance(one, Estimate) and isinstance(other, Estimate)
    assert one.tpot_ms == other.tpot_ms


def test_more_gpus_that_were_measured_slower_are_named(estimator: Estimator) -> None:
    rows = [row for row in estimator.rows if row.model == "gpt-oss-120b" and row.drafting != "on"]
    some = next(row for row in rows if row.num_gpus == 4 and row.ttft_ms)
    fewer = some._replace(id="fewer", tp=2, attention_dp=1, ep=1, tpot_ms=some.tpot_ms)
    more = some._replace(id="more", tp=4, attention_dp=1, ep=1, tpot_ms=1.1 * some.tpot_ms)

    def notes(*runs: Row) -> list[str]:
        cell = Estimator(runs, estimator.fits)._cell(key_of(some), False)[0]
        sizes = (some.isl, some.osl, some.concurrency)
        return list(cell.slower(Question(*key_of(some), 4, 1, 1, *sizes), ""))

    assert notes(fewer._replace(tpot_ms=2 * some.tpot_ms), more) == []
    (note,) = notes(fewer, more)
    assert "slower than with fewer GPUs: TP4" in note
