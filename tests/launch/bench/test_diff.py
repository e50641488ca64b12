"""Two results judged: better, worse, the same, or not known from so few requests."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builder.errors import BadInput
from launch.bench import diff

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


def test_what_makes_a_comparison_doubtful_is_said(sample: dict[str, Any]) -> None:
    other = copy.deepcopy(sample)
    other["workload"]["words"] = "something else"
    other["subject"]["engine"]["rehearsal"] = True
    assert [text.split()[0] for text in diff.unlike(sample, other)] == ["workload", "rehearsal"]


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
    command = [
        sys.executable,
        "-m",
        "launch",
        "bench",
        "diff",
        str(SAMPLE),
        str(tmp_path / "b.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stdout.splitlines()[0].split() == [
        "POINT", "MEASURE", "A", "B", "CHANGE", "VERDICT"
    ]  # fmt: skip
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert ("error: c1: output tokens per second: is worse" in done.stderr) is (status == 6)
