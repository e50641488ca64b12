"""Why a run is slower than a published figure: each condition, its effect, and their order."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from builder import bundle
from builder.bundle import File
from builder.facts.published_results import acceptance_curves, acceptance_lengths
from launch.cli.main import main
from launch.report import evidence, page, published
from launch.report.evidence import RunEvidence
from launch.report.published import PublishedFigure
from tests.launch.report import samples

SOURCED = {"reason": "why", "evidence": "documented", "source": "somebody"}
DECISIONS = [
    {"path": "speculative_config.decoding_type", "value": "MTP", **SOURCED},
    {"path": "speculative_config.num_nextn_predict_layers", "value": 3, **SOURCED},
]
# What somebody would have published of exactly the run in `samples`.
PUBLISHED: samples.Json = {
    "source": "somebody",
    "engine": "tensorrt-llm",
    "workload": "the same",
    "checkpoint": "nvidia/DeepSeek-V3.2-NVFP4",
    "gpu": "gb200",
    "num_gpus": 4,
    "isl": 800,
    "osl": 1600,
    "conditions": {"dataset": "random", "ignore_eos": True, "release": "1.2.1"},
    "options": {"mtp_draft_tokens": 3},
    "incomplete": [],
    "figures": [{"concurrency": 8, "output_tokens_per_s": 2000, "accepted_length": 2.9}],
}
Compared = Callable[..., PublishedFigure]


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    """The run of a document beside a row of a publication."""

    def compare(row: samples.Json = PUBLISHED, differences: Any = (), **changes: Any) -> Any:
        document = samples.bench(**changes)
        document["workload"]["ignore_eos"] = True
        for point in document["points"]:
            point["output_tokens"]["mean"] = 1600
        run = evidence.gather([samples.run_folder(tmp_path / uuid4().hex, document)])[0]
        manifest = {"decisions": DECISIONS, "published": [row], "differences": differences}
        (found,) = published.for_run(replace(run, manifest=manifest))
        return found

    return compare


def changed(path: str, value: object) -> samples.Json:
    """The publication with another value; the path is a key, or a key of a part."""
    part, _, key = path.partition(".")
    if not key:
        return PUBLISHED | {part: value}
    if part == "figure":
        return PUBLISHED | {"figures": [PUBLISHED["figures"][0] | {key: value}]}
    return PUBLISHED | {part: PUBLISHED[part] | {key: value}}


def test_the_same_conditions_are_called_the_same(compared: Compared) -> None:
    found = compared()
    assert found.same_conditions
    assert found.causes == ()
    assert found.summary.replace("\u00a0", " ") == (
        "Published: 2,000 output tokens/s at 8 concurrent. Here: 1,651 output tokens/s at 8 "
        "concurrent, 17 % slower. The conditions are the same."
    )


@pytest.mark.parametrize(
    ("path", "value", "cause", "effect"),
    [
        ("engine", "vllm 0.14.1", "engine vllm 0.14.1, here tensorrt_llm", None),
        ("num_gpus", 8, "GPUs 8, here 4", -50),
        ("isl", 1600, "prompt tokens 1,600, here 800", +2),
        ("osl", 400, "answer tokens 400, here 1,600", +5),
        ("isl", None, "prompt tokens not said, here 800", None),
        ("conditions.dataset", "sharegpt", "data set sharegpt, here random", None),
        ("conditions.dataset", None, "data set not said, here random", None),
        ("conditions.ignore_eos", False, "answers run to their length no, here yes", None),
        ("conditions.release", "1.3.0", "release 1.3.0, here 1.2.1", None),
        ("conditions.release", None, "release not said, here 1.2.1", None),
        ("options.mtp_draft_tokens", 1, "draft tokens 1, here 3", None),
        ("figure.accepted_length", 3.4, "tokens a step 3.4, here 2.9", -15),
        ("figure.concurrency", 10, "concurrent requests 10, here 8", -13),
        ("figure.concurrency", 512, "concurrent requests 512, here 64", None),
        ("incomplete", ["precision"], "precision not said, here ", None),
    ],
)
def test_one_other_condition_is_named_with_what_it_is_worth(
    compared: Compared, path: str, value: object, cause: str, effect: int | None
) -> None:
    found = compared(changed(path, value))
    assert not found.same_conditions
    (one,) = found.causes
    assert f"{one.name} {one.published}, here {one.here}" == cause
    assert one.factor == (None if effect is None else pytest.approx(1 + effect / 100, abs=0.005))
    assert "conditions are the same" not in found.summary


def test_the_effect_of_longer_answers_is_that_of_fewer_first_tokens(compared: Compared) -> None:
    """At c8: TTFT 142 ms, mean TPOT 4.998 ms; tokens per ms of 1,600 and of 400 tokens."""
    (one,) = compared(changed("osl", 400)).causes
    ttft, tpot = 142.0, 3.4 * 1.4 * 1.05
    speeds = [tokens / (ttft + (tokens - 1) * tpot) for tokens in (1600, 400)]
    assert one.factor == pytest.approx(speeds[0] / speeds[1])


def test_a_load_between_two_measured_ones_lies_on_the_line_through_them(compared: Compared) -> None:
    (one,) = compared(changed("figure.concurrency", 10)).causes
    rates = [samples.point(load)["output_tokens_per_s"] for load in (8, 16)]
    there = rates[0] * (rates[1] / rates[0]) ** (math.log(10 / 8) / math.log(2))
    assert one.factor == pytest.approx(rates[0] / there)


def test_causes_are_ranked_by_their_figure_and_their_product_is_told(compared: Compared) -> None:
    row = changed("figure.accepted_length", 3.4) | {"num_gpus": 8, "isl": 1600}
    row["conditions"] = {**PUBLISHED["conditions"], "release": None, "dataset": "sharegpt"}
    option = {"path": "moe_config.backend", "published": "TRTLLM", "planned": "CUTLASS",
              "reason": "the release has no other", "source": "somebody"}  # fmt: skip
    found = compared(row, differences=[option, option | {"source": "another"}])
    assert [cause.name for cause in found.causes] == [
        *("GPUs", "tokens a step", "prompt tokens"),
        *("data set", "moe_config.backend", "release"),
    ]
    said = found.summary.replace("\u00a0", " ")
    assert "it should be 57 % slower; it is 90 % faster than that." in said
    assert said.endswith("3 more conditions may differ.")
    unset = compared(differences=[option | {"planned": None}])
    assert str(*unset.causes) == "moe_config.backend TRTLLM, here not set"
    assert unset.summary.endswith("slower. 1 condition may differ.")


def test_a_client_near_its_limit_is_a_cause(compared: Compared) -> None:
    client = samples.bench()["client"] | {"share_of_limit": 0.93, "marked": True}
    (one,) = compared(client=client).causes
    assert (one.name, one.here.replace("\u00a0", " ")) == ("client", "at 93 % of its limit")


def test_a_data_set_with_the_same_bound_has_the_same_prompts(compared: Compared) -> None:
    row = PUBLISHED | {"isl": None, "osl": None}
    row["conditions"] = {"dataset": "sharegpt", "context_length": 2400, "osl": 1600,
                         "ignore_eos": True, "release": "1.2.1"}  # fmt: skip
    drawn = {"kind": "sharegpt", "isl": None, "osl": 1600, "context_length": 2400, "words": "w"}
    assert compared(row, workload=drawn).same_conditions
    (one,) = compared(row, workload=drawn | {"context_length": 800}).causes
    assert str(one) == "context length 2,400, here 800"


def test_acceptance_that_was_not_published_is_set_beside_measured_curves(
    compared: Compared,
) -> None:
    row = changed("figure.accepted_length", None)
    row["checkpoint"] = "nvidia/Qwen3.5-397B-A17B-NVFP4"
    (one,) = compared(row).causes
    assert (one.published, one.here) == ("not said; 3.33 to 3.39 elsewhere", "2.9")
    assert one.factor == pytest.approx(2.9 / 3.33)
    (unknown,) = compared(changed("figure.accepted_length", None)).causes
    assert str(unknown) == "tokens a step not said, here 2.9"


def test_curves_are_of_a_model_in_any_precision_and_of_its_kind_of_drafts() -> None:
    assert acceptance_lengths("nvidia/Kimi-K2.5-NVFP4", "Eagle", 3) == [2.75, 2.88]
    assert acceptance_lengths("moonshotai/Kimi-K2.5", "Eagle3", 1) == [1.80, 1.83]
    assert acceptance_lengths("nvidia/Kimi-K2.5-NVFP4", "MTP", 3) == []
    assert acceptance_lengths("zai-org/GLM-5.2-FP8", "MTP", 9) == []
    assert acceptance_lengths("nvidia/DeepSeek-V3.2-NVFP4", "MTP", 3) == []


def test_every_curve_lies_between_one_token_and_all_drafts() -> None:
    found = acceptance_curves()
    assert len(found) == 14
    for curve in found:
        assert len(curve["lengths"]) == 8
        assert all(1 < length <= drafts + 2 for drafts, length in enumerate(curve["lengths"]))


def test_neither_a_rehearsal_nor_a_load_with_failures_is_compared(compared: Compared) -> None:
    points = [samples.point(1), samples.point(8, failed=2)]
    assert compared(points=points).speeds[1].endswith("at 1 concurrent")  # type: ignore[index]


def test_a_rehearsal_is_compared_with_no_gpu(compared: Compared) -> None:
    found = compared(rehearsal=True)
    assert (found.speeds, found.causes, found.same_conditions) == (None, (), False)


def of_bundle(folder: Path, **conditions: Any) -> Path:
    """A bundle that carries the publication, and a run of it."""
    rendered = folder / "bundle"
    rendered.mkdir(parents=True)
    row = PUBLISHED | {"conditions": {**PUBLISHED["conditions"], **conditions}}
    facts = {"decisions": DECISIONS, "published": [row], "differences": [], "memory": {}}
    engine = {"name": "tensorrt_llm", "release": "1.2.1"}
    facts |= {"tool": {}, "engine": engine, "inputs": {"files": {}}}
    bundle.write(rendered / "one", {"a.txt": File(b"a")}, facts, force=False)
    document = samples.bench(bundle={"name": "one", "folder": str(rendered / "one")})
    document["workload"]["ignore_eos"] = True
    for point in document["points"]:
        point["output_tokens"]["mean"] = 1600
    return samples.run_folder(folder / "run", document)


def test_diff_with_the_published_figures_judges_only_the_same_conditions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = of_bundle(tmp_path / "same")
    assert main(["bench", "diff", "published", str(same)]) == 6
    said = capsys.readouterr()
    assert "17 % slower. The conditions are the same." in " ".join(said.out.split())
    assert main(["bench", "diff", "published", str(same), "--margin", "20"]) == 0
    other = of_bundle(tmp_path / "other", release=None)
    capsys.readouterr()
    assert main(["bench", "diff", "published", str(other), "--margin", "20"]) == 2
    said = capsys.readouterr()
    assert re.search(r"^release +not said +1\.2\.1$", said.out, re.M)
    assert "published: no verdict" in said.err
    assert max(map(len, said.out.splitlines())) <= 80


def test_a_run_that_did_not_end_well_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = of_bundle(tmp_path / "same")
    file = run / "bench.json"
    stopped = json.loads(file.read_text()) | {"outcome": "interrupted"}
    file.write_text(json.dumps(stopped))
    words = ["bench", "diff", "published", str(run), "--margin", "20"]
    assert main(words) == 2
    assert f"outcome: that of {run} is interrupted" in capsys.readouterr().err
    assert main([*words, "--allow", "outcome"]) == 0
    for point in stopped["points"]:
        point["requests"] |= {"ok": 0, "failed": point["requests"]["sent"]}
    file.write_text(json.dumps(stopped))
    capsys.readouterr()
    assert main([*words, "--allow", "outcome"]) == 2
    assert "served no load without failures; measure it again" in capsys.readouterr().err


def test_of_another_load_that_was_not_measured_nothing_follows(compared: Compared) -> None:
    found = compared(changed("figure.concurrency", 1000))
    assert found.summary.endswith(", another load: nothing follows from it.")


def test_diff_without_a_bundle_takes_the_figures_of_the_model_and_gpus_or_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = samples.bench()
    assert published.for_run(evidence.gather([samples.run_folder(tmp_path / "gb", document)])[0])
    document["subject"]["gpu"] = "l40s"
    run = samples.run_folder(tmp_path / "run", document)
    assert main(["bench", "diff", "published", str(run)]) == 2
    assert "has none; measure a bundle with published figures" in capsys.readouterr().err


def test_the_page_ranks_the_causes(tmp_path: Path, rendered: samples.Json) -> None:
    document = samples.bench(bundle=rendered)
    run: RunEvidence = evidence.gather([samples.run_folder(tmp_path / "run", document)])[0]
    text = page.text([run]).replace("\u00a0", " ")
    said = (
        "Published: 272 output tokens/s at 1 concurrent. Here: 276 output tokens/s at 1 concurrent"
    )
    assert said in text
    assert "What was not the same, or is not known" in text
    assert "The conditions are the same" not in text
    assert "release" in text and "data set" in text
