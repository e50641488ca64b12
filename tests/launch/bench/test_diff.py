"""Two results judged: better, worse, the same, or not known from so few requests."""

from __future__ import annotations

import copy
import json
import math
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builder.errors import BadInput
from launch.bench import diff, samples

SAMPLE = Path(__file__).parent / "sample_bench.json"


@pytest.fixture
def sample() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SAMPLE.read_text())
    return found


def slower(document: dict[str, Any], by: float, point: int | None = None) -> dict[str, Any]:
    """The same run with all times so many times as long."""
    found = copy.deepcopy(document)
    for number, one in enumerate(found["points"]):
        if point in (None, number):
            one["output_tokens_per_s"] /= by
            one["samples"] = {k: [v * by for v in row] for k, row in one["samples"].items()}
    return found


def noise(seed: int, count: int, spread: float) -> dict[str, Any]:
    """A run of one point whose latencies vary."""
    chance = random.Random(seed)
    times = [chance.gauss(100, spread) for _ in range(count)]
    point = {
        "label": "c1",
        "load": {"kind": "concurrency", "concurrency": 1},
        "output_tokens_per_s": 1000.0,
        "requests": {"sent": count, "failed": 0},
        "samples": {"e2e_ms": times},
    }
    return {"points": [point]}


def verdicts(a: Any, b: Any, margin: float = 5.0) -> set[str]:
    return {one.verdict for one in diff.compare(a, b, margin)}


def test_a_run_is_the_same_as_another_one_of_its_kind() -> None:
    a, b = noise(1, 400, 5), noise(2, 400, 5)
    assert verdicts(a, b) == {"same"}


def test_few_requests_that_vary_leave_it_open() -> None:
    found = diff.compare(noise(1, 8, 30), noise(2, 8, 30), 5.0)
    assert diff.worst(found) == "unsure"


def test_slower_is_worse_and_faster_is_better(sample: dict[str, Any]) -> None:
    assert diff.worst(diff.compare(sample, slower(sample, 1.3), 5.0)) == "worse"
    assert diff.worst(diff.compare(slower(sample, 1.3), sample, 5.0)) == "better"


def test_one_point_that_is_worse_makes_the_whole_worse(sample: dict[str, Any]) -> None:
    found = diff.compare(sample, slower(sample, 1.3, point=3), 5.0)
    assert {one.point for one in found if one.verdict == "worse"} == {"c8"}
    assert diff.worst(found) == "worse"


def test_a_margin_takes_a_small_change_for_none(sample: dict[str, Any]) -> None:
    small = slower(sample, 1.02)
    assert "worse" not in verdicts(sample, small, margin=20)
    assert "worse" in verdicts(sample, small, margin=0)


def test_the_interval_holds_the_change(sample: dict[str, Any]) -> None:
    for one in diff.compare(sample, slower(sample, 1.3), 5.0):
        if one.low_percent is not None and one.high_percent is not None:
            assert one.low_percent <= one.percent <= one.high_percent


def test_more_failures_are_worse(sample: dict[str, Any]) -> None:
    broken = copy.deepcopy(sample)
    broken["points"][2]["requests"]["failed"] = 10
    worse = [one for one in diff.compare(sample, broken, 5.0) if one.verdict == "worse"]
    assert [(one.point, one.measure) for one in worse] == [("c4", "failed requests in percent")]


@pytest.mark.parametrize(
    ("failed", "margin", "verdict"),
    [((0, 0), 5, "same"), ((0, 1), 5, "same"), ((0, 12), 5, "worse"), ((9, 0), 5, "better"),
     ((10, 12), 5, "same"), ((12, 10), 5, "same"), ((30, 40), 1, "unsure"),
     ((40, 30), 1, "unsure")],
)  # fmt: skip
def test_failures_beyond_chance_are_worse_however_few(
    failed: tuple[int, int], margin: float, verdict: str, sample: dict[str, Any]
) -> None:
    a, b = (other(sample, "points.6.requests.failed", count) for count in failed)
    assert sample["points"][6]["requests"]["sent"] == 640  # 12 are 1.9 %, below the margin
    [found] = [
        one
        for one in diff.compare(a, b, margin)
        if (one.point, one.measure) == ("c64", "failed requests in percent")
    ]
    assert found.verdict == verdict


def other(document: dict[str, Any], path: str, *value: Any) -> dict[str, Any]:
    """The same result but for one value, or without it."""
    found = copy.deepcopy(document)
    *parents, key = path.split(".")
    place: Any = found
    for parent in parents:
        place = place[int(parent)] if parent.isdecimal() else place[parent]
    del place[key]
    place |= dict.fromkeys([key], *value) if value else {}
    return found


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("workload.isl", 1024, "workload: its isl is 800 in A and 1024 in B; "),
        ("workload.kind", "sharegpt", "workload: its kind is fixed in A and sharegpt in B"),
        (
            "points.1.load",
            {"kind": "gamma", "rate_per_s": 2},
            "workload: the load of c2 is kind concurrency, concurrency 2 in A and kind gamma",
        ),
        ("client.api", "grpc", "api: it is openai_completions in A and grpc in B"),
        ("subject.model", None, "model: it is nvidia/DeepSeek-V3.2-NVFP4 in A and unknown in B"),
        ("subject.engine.rehearsal", True, "rehearsal: it is no in A and yes in B"),
        ("points.3.window.kind", "whole", "window: that of c8 is steady in A and whole in B"),
        ("outcome", "interrupted", "outcome: that of B is interrupted"),
    ],
)
def test_only_what_is_alike_is_compared_unless_it_is_allowed(
    path: str, value: Any, message: str, sample: dict[str, Any]
) -> None:
    b = other(slower(sample, 1.3), path, value)
    with pytest.raises(BadInput) as refused:
        diff.check(sample, b)
    assert str(refused.value).startswith(message)
    [aspect] = {one.where for one in refused.value.diagnostics}
    diff.check(sample, b, [aspect])


def test_a_point_that_b_lacks_is_no_success(sample: dict[str, Any]) -> None:
    b = other(slower(sample, 1.0), "points", sample["points"][:-1])
    with pytest.raises(BadInput, match="points: B has no c64, which A has"):
        diff.check(sample, b)
    diff.check(b, sample)  # what A never measured cannot have become worse


def test_tokens_that_b_did_not_count_are_no_loss_of_throughput(sample: dict[str, Any]) -> None:
    uncounted = other(sample, "points.6.output_tokens_per_s", None)
    rows = [one for one in diff.compare(sample, uncounted, 5.0) if one.point == "c64"]
    assert "output tokens per second" not in {one.measure for one in rows}
    assert diff.worst(rows) in ("same", "unsure")


def test_a_result_is_not_compared_with_itself(sample: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"^A and B: are the same result"):
        diff.check(sample, copy.deepcopy(sample))


@pytest.mark.parametrize("sides", ["A", "B", "AB"])
def test_without_successes_there_is_no_verdict_whatever_is_allowed(
    sides: str, sample: dict[str, Any]
) -> None:
    dead = other(sample, "points.0.requests", {"sent": 20, "ok": 0, "failed": 20})
    dead = other(dead, "points.0.samples", {})
    a, b = (dead if side in sides else sample for side in "AB")
    with pytest.raises(BadInput) as refused:
        diff.check(a, other(b, "started", "later"), diff.ASPECTS)
    assert [str(one) for one in refused.value.diagnostics] == [
        f"point c1 of {side}: has no successes of 20 requests; 6 at least are needed"
        for side in sides
    ]


def test_another_gpu_and_a_limited_client_are_said(sample: dict[str, Any]) -> None:
    b = copy.deepcopy(sample)
    b["subject"] |= {"gpu": "b200", "num_gpus": 999}
    b["points"][2]["client_limited"] = True
    diff.check(sample, b)
    assert diff.warnings(sample, b) == [
        "GPU differs: gb200 in A and b200 in B",
        "number of GPUs differs: 4 in A and 999 in B",
        "point c4 of B: the client was the limit, not the server",
    ]


def test_runs_without_a_common_point_are_bad_input(sample: dict[str, Any]) -> None:
    other = noise(1, 10, 1)
    other["points"][0]["label"] = "r5"
    with pytest.raises(BadInput, match="no point in common: c1, c2, c4"):
        diff.compare(sample, other, 5.0)


@pytest.mark.parametrize(("by", "status"), [(1.3, 6), (0.7, 0)])
def test_the_exit_code_says_whether_b_is_worse(
    by: float, status: int, sample: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "b.json").write_text(json.dumps(slower(sample, by)))
    files = (str(SAMPLE), str(tmp_path / "b.json"))
    command = [sys.executable, "-m", "launch", "bench", "diff", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stdout.splitlines()[0].split() == [
        "POINT", "MEASURE", "A", "B", "CHANGE", "VERDICT"
    ]  # fmt: skip
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert ("error: c1: output tokens per second: is worse" in done.stderr) is (status == 6)


COMPARED = (
    *("subject", "client", "workload", "points", "subject.engine"),
    *("points.1.label", "points.1.load", "points.1.requests"),
    *("points.1.requests.sent", "points.1.requests.ok", "points.1.requests.failed"),
)


def test_a_result_is_read_as_it_is(sample: dict[str, Any]) -> None:
    assert diff.read(SAMPLE) == sample


@pytest.mark.parametrize("path", COMPARED)
def test_a_result_without_what_is_compared_is_refused_by_its_key(
    path: str, sample: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "b.json").write_text(json.dumps(other(sample, path)))
    with pytest.raises(BadInput) as refused:
        diff.read(tmp_path / "b.json")
    assert repr(path.rpartition(".")[2]).strip("'") in str(refused.value)


@pytest.mark.parametrize("path", [*COMPARED, "points.1.window", "points.1.samples"])
@pytest.mark.parametrize("value", [7.5, True, ["a"]])
def test_a_result_with_another_kind_of_value_is_refused_by_its_key(
    path: str, value: Any, sample: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "b.json").write_text(json.dumps(other(sample, path, value)))
    with pytest.raises(BadInput) as refused:
        diff.read(tmp_path / "b.json")
    assert path.rpartition(".")[2] in str(refused.value)


def test_more_samples_than_successes_are_refused_by_their_name(
    sample: dict[str, Any], tmp_path: Path
) -> None:
    ok = sample["points"][1]["requests"]["ok"]
    file = tmp_path / "b.json"
    file.write_text(json.dumps(other(sample, "points.1.samples.ttft_ms", [1.0] * (ok + 1))))
    with pytest.raises(BadInput, match=rf"ttft_ms.* has {ok + 1} values of {ok} successes"):
        diff.read(file)
    file.write_text(json.dumps(other(sample, "points.1.samples.ttft_ms", [1.0] * ok)))
    assert len(diff.read(file)["points"][1]["samples"]["ttft_ms"]) == ok


def test_throughput_must_be_a_number_where_it_is_given(
    sample: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "b.json"
    file.write_text(json.dumps(other(sample, "points.1.output_tokens_per_s", "fast")))
    with pytest.raises(BadInput, match="output_tokens_per_s"):
        diff.read(file)
    file.write_text(json.dumps(other(sample, "points.1.output_tokens_per_s", None)))
    assert diff.read(file)["points"][1]["output_tokens_per_s"] is None


def test_a_difference_has_both_values_the_change_and_its_interval() -> None:
    a, b = noise(1, 400, 5), slower(noise(2, 400, 5), 1.5)
    found = {one.measure: one for one in diff.compare(a, b, 5.0)}
    assert list(found) == [
        *("output tokens per second", "median end-to-end latency in ms"),
        "failed requests in percent",
    ]
    times_a, times_b = (one["points"][0]["samples"]["e2e_ms"] for one in (a, b))
    latency = found["median end-to-end latency in ms"]
    medians = [statistics.median(row) for row in (times_a, times_b)]
    assert [latency.a, latency.b] == pytest.approx(medians)
    assert latency.percent == pytest.approx(100 * (medians[1] / medians[0] - 1))
    interval = samples.ratio(times_a, times_b, 0.5)
    assert interval is not None
    bounds = [100 * (bound - 1) for bound in interval]
    assert [latency.low_percent, latency.high_percent] == pytest.approx(bounds)
    speed = found["output tokens per second"]
    assert [speed.a, speed.b] == pytest.approx([1000, 1000 / 1.5])
    assert speed.percent == pytest.approx(-100 / 3)
    assert speed.low_percent is not None
    assert speed.high_percent is not None
    assert speed.low_percent < speed.percent < speed.high_percent < -30
    assert {one.point for one in found.values()} == {"c1"}


def test_times_of_less_than_a_millisecond_are_compared_too() -> None:
    a, b = noise(1, 400, 5), noise(2, 400, 5)
    small_a, small_b = (slower(one, 1e-3) for one in (a, b))
    assert verdicts(small_a, small_b) == {"same"}
    assert len(diff.compare(small_a, small_b, 5.0)) == len(diff.compare(a, b, 5.0))


@pytest.mark.parametrize("value", [math.inf, math.nan, -1, True, "7", None])
def test_what_is_no_time_is_refused(value: Any) -> None:
    a, b = noise(1, 20, 5), noise(2, 20, 5)
    b["points"][0]["samples"]["e2e_ms"][3] = value
    with pytest.raises(BadInput, match=r"point c1: samples.e2e_ms: must be a list of numbers >= 0"):
        diff.compare(a, b, 5.0)


def test_a_mean_counts_requests_that_took_no_time() -> None:
    """As tokens that all came at once have no time between them."""
    a, b = noise(1, 40, 5), noise(2, 40, 5)
    for one in (a, b):
        [point] = one["points"]
        point["samples"]["tpot_ms"] = [0.0, *point["samples"]["e2e_ms"][1:]]
    assert "mean TPOT in ms" in {row.measure for row in diff.compare(a, b, 5.0)}


def test_failures_have_both_shares_the_change_and_its_interval() -> None:
    """The example of Newcombe 1998 for his method 10, in percent."""
    a, b = noise(1, 80, 5), noise(2, 70, 5)
    a["points"][0]["requests"]["failed"], b["points"][0]["requests"]["failed"] = 48, 56
    [found] = [one for one in diff.compare(a, b, 5.0) if one.measure.startswith("failed")]
    said = (found.a, found.b, found.percent, found.low_percent, found.high_percent)
    assert said == pytest.approx((60, 80, 20, 5.24, 33.39), abs=0.005)
    assert (found.point, found.verdict) == ("c1", "worse")
