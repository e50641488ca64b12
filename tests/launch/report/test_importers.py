"""Result files of other tools become the same document; what they do not say stays unknown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.errors import BadInput
from launch.report import evidence, page, verdict
from launch.report.results import BenchResults, LoadPoint

RESULTS = Path(__file__).parent / "results"


def measured(name: str) -> BenchResults:
    (run,) = evidence.gather([RESULTS / name])
    assert run.bench.imported
    return run.bench


def only_point(name: str) -> LoadPoint:
    (point,) = measured(name).points
    return point


def test_aiperf_says_how_it_measured() -> None:
    run = measured("profile_export_aiperf.json")
    assert (run.tool, run.tool_version, run.api) == ("aiperf", "0.13.0", "chat")
    assert (run.subject.model, run.subject.url) == ("tiny/model", "http://127.0.0.1:8000")
    assert (run.isl, run.osl, run.seed) == (50.0, 20.0, 7)
    assert run.interrupted
    assert run.started == "2026-11-21T23:38:55.726Z"


def test_aiperf_gives_its_measured_phase() -> None:
    point = only_point("profile_export_aiperf.json")
    assert (point.label, point.concurrency) == ("c4", 4)
    assert (point.sent, point.ok, point.failed) == (18, 16, 2)
    assert [(e.kind, e.count, e.example) for e in point.errors] == [
        ("Too Many Requests", 2, "queue full")
    ]
    assert point.rate("output_tokens_per_s") == 400.0
    assert point.stats("ttft_ms").p50 == 55.0


def test_what_aiperf_calls_inter_token_latency_is_a_mean_per_request() -> None:
    point = only_point("profile_export_aiperf.json")
    assert point.stats("tpot_ms").p50 == 5.0
    assert (point.stats("itl_ms").p50, point.itl_of) == (5.2, "messages")


def test_aiperf_units_are_its_own_word(saved: Callable[..., Path]) -> None:
    document = json.loads((RESULTS / "profile_export_aiperf.json").read_text())
    document["time_to_first_token"] = {"unit": "sec", "avg": 0.25, "p50": 0.2}
    document["request_latency"]["unit"] = "fortnights"
    (run,) = evidence.gather([saved(document, "a.json")])
    (point,) = run.bench.points
    assert point.stats("ttft_ms").p50 == 200.0
    assert point.stats("e2e_ms").p50 is None


def test_sglang_has_a_line_for_every_load() -> None:
    run = measured("sglang.jsonl")
    assert [point.label for point in run.points] == ["c1", "c8"]
    assert (run.subject.model, run.isl, run.osl) == (None, 800, 1600)
    point = run.points[1]
    assert (point.ok, point.sent, point.failed) == (80, None, None)  # failed ones are dropped
    assert (point.stats("e2e_ms").p50, point.stats("e2e_ms").p90) == (6000.0, 6100.0)
    assert point.stats("itl_ms").max == 20.0
    assert point.tokens_per_step == 2.9
    assert point.itl_of == "messages"


def test_vllm_writes_a_file_for_every_load_and_they_are_one_series() -> None:
    files = [RESULTS / "vllm-c8.json", RESULTS / "vllm-c1.json"]
    (run,) = evidence.gather(files)
    assert [point.label for point in run.bench.points] == ["c1", "c8"]
    point = run.bench.points[1]
    assert (point.sent, point.ok, point.failed) == (80, 77, 3)
    assert point.stats("ttft_ms").p99 == 99.0
    assert point.stats("ttft_ms").p90 is None  # was not asked for
    assert point.acceptance_rate == 0.63  # the file has percent
    assert point.stats("output_tokens").mean == 1600.0


@pytest.mark.parametrize(("completed", "failed"), [(10, 0), (8, 2), (0, 10), (None, None)], ids=str)
def test_a_vllm_that_counts_no_failures_tells_them_by_what_is_missing(
    saved: Callable[..., Path], completed: int | None, failed: int | None
) -> None:
    document = json.loads((RESULTS / "vllm-c1.json").read_text()) | {"completed": completed}
    del document["failed"]
    (run,) = evidence.gather([saved(document, "v.json")])
    (point,) = run.bench.points
    assert (point.sent, point.failed) == (10, failed)
    assert ("All 10 requests succeeded." in verdict.verdict([run]).text) == (failed == 0)


def test_an_aiperf_run_of_failures_alone_has_no_count_of_successes(
    saved: Callable[..., Path],
) -> None:
    document = json.loads((RESULTS / "profile_export_aiperf.json").read_text())
    document |= {"request_count": None, "output_token_throughput": None}
    (run,) = evidence.gather([saved(document, "v.json")])
    assert (run.bench.sent, run.bench.ok, run.bench.failed) == (2, 0, 2)
    assert verdict.verdict([run]).title == "2 of 2 requests failed"


def test_a_load_that_nothing_was_completed_of_is_no_headline(saved: Callable[..., Path]) -> None:
    line = json.loads((RESULTS / "sglang.jsonl").read_text().splitlines()[0])
    (run,) = evidence.gather([saved(line | {"completed": 0, "output_throughput": 0}, "s.json")])
    assert run.bench.headline is None
    said = verdict.verdict([run])
    assert (said.tone, said.title) == ("warning", "No output was measured")


def test_the_same_load_twice_is_two_runs(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_bytes((RESULTS / "vllm-c1.json").read_bytes())
    runs = evidence.gather([tmp_path / "a.json", tmp_path / "b.json"])
    assert [run.title for run in runs] == [
        "nvidia/DeepSeek-V3.2-NVFP4, a",
        "nvidia/DeepSeek-V3.2-NVFP4, b",
    ]


@pytest.mark.parametrize(
    ("name", "labels"), [("guidellm-1.json", ["c8"]), ("guidellm-2.json", ["c1", "c8", "r2.5"])]
)
def test_guidellm_of_either_version(name: str, labels: list[str]) -> None:
    run = measured(name)
    assert [point.label for point in sorted(run.points, key=lambda p: p.label)] == labels
    assert (run.subject.model, run.subject.url) == ("tiny/model", "http://127.0.0.1:8000")
    point = next(point for point in run.points if point.label == "c8")
    assert (point.sent, point.ok, point.failed) == (23, 20, 2)
    assert {error.kind: error.count for error in point.errors} == {"not said": 2, "cancelled": 1}
    assert point.stats("e2e_ms").p50 == 6000.0  # the file has seconds
    assert point.stats("tpot_ms").p50 == 3.7
    assert point.stats("itl_ms").p50 is None  # gaps are not in the file
    assert point.rate("output_tokens_per_s") == 2130.0


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json*")), ids=lambda file: file.name)
def test_nothing_is_guessed(file: Path) -> None:
    (run,) = evidence.gather([file])
    subject = run.bench.subject
    assert (subject.gpu, subject.num_gpus, subject.precision, subject.engine) == (None,) * 4
    assert run.bench.share_of_limit is None
    assert not run.rehearsal
    for point in run.bench.points:
        assert point.rate("output_tokens_per_s_per_gpu") is None


def test_the_report_names_each_tool_and_its_caveats() -> None:
    text = page.text(evidence.gather(sorted(RESULTS.glob("*.json*"))))
    for tool in ("aiperf", "sglang.bench_serving", "vllm bench serve", "guidellm"):
        assert f"Known to mislead: {tool}" in text
    assert text.count("A stream that ends early without its final mark counts as a success") == 4
    assert "A message may hold several tokens: no figure here is one of tokens" in text


def test_an_unknown_file_is_refused(saved: Callable[..., Path]) -> None:
    with pytest.raises(BadInput, match="has no known result format; known are"):
        evidence.gather([saved({"hello": "world"}, "x.json")])


@pytest.mark.parametrize(
    ("name", "path", "value", "where"),
    [
        ("vllm-c1.json", "median_ttft_ms", "fast", "median_ttft_ms: is \"fast\"; a number"),
        ("vllm-c1.json", "model_id", 7, "model_id: is 7; text"),
        ("vllm-c1.json", "output_throughput", -5, r"points\[0\].output_tokens_per_s: is below 0"),
        ("vllm-c1.json", "completed", 50, r"points\[0\].requests.sent: is 10, with 50 successes"),
        ("guidellm-2.json", "benchmarks.1.metrics.request_latency", [], "is \\[\\]; an object"),
        ("profile_export_aiperf.json", "request_latency.p50", {}, "request_latency.p50: is {}"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_place(
    saved: Callable[..., Path], name: str, path: str, value: Any, where: str
) -> None:
    document = json.loads((RESULTS / name).read_text())
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    holder = document
    for part in parents:
        holder = holder[part]
    holder[last] = value
    with pytest.raises(BadInput, match=f"{name}.*{where}.*; write the file again"):
        evidence.gather([saved(document, name)])


def test_a_fault_in_a_line_is_named_with_the_line(saved: Callable[..., Path]) -> None:
    lines = (RESULTS / "sglang.jsonl").read_text().splitlines()
    broken = lines[1].replace('"median_ttft_ms": 78.0', '"median_ttft_ms": "soon"')
    with pytest.raises(BadInput, match="line 2: median_ttft_ms"):
        evidence.gather([saved(f"{lines[0]}\n{broken}\n", "s.jsonl")])
