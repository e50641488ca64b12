"""A mixture of experts that the supervisor of a Slurm job starts on vLLM: its admission, greedy
tokens, a benchmark with its report, and its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.cli.main import main
from supervisor.state import DRAIN
from tests.vllm.answers import (
    a_stream,
    greedy_tokens_are_the_reference_engines,
    nothing_is_left,
    passed,
)
from tests.vllm.conftest import STOP_TIMEOUT_S, Supervised, processes


def test_the_supervisor_of_a_job_admits_it_by_its_own_smoke_suite(qwen: Supervised) -> None:
    record = qwen.record()
    assert (record["state"], record["admitted"] is not None) == ("serving", True)
    log = (qwen.run / "smoke.log").read_text()
    passed(json.loads(log[log.index("{") : log.rindex("}") + 1]))


def test_greedy_tokens_are_the_reference_engines(qwen: Supervised) -> None:
    greedy_tokens_are_the_reference_engines(qwen)


def test_a_benchmark_and_its_report_name_the_engine(
    qwen: Supervised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--isl", "32", "--osl", "8", "--concurrency", "2", "--requests", "8"]
    assert main(["bench", qwen.url, *quick, "--run-dir", "measured"]) == 0
    measured = json.loads(Path("measured/bench.json").read_text())
    assert measured["subject"]["engine"]["used"] == "vllm"
    assert measured["points"][0]["output_tokens"]["mean"] == 8
    assert main(["report", "measured", "-o", "page.html"]) == 0
    assert "vllm 0.32.0" in Path("page.html").read_text()


# It comes last: it ends what the others ask.
def test_a_job_that_is_drained_lets_streams_end_and_leaves_nothing(qwen: Supervised) -> None:
    with a_stream(qwen) as lines:
        (qwen.run / DRAIN).touch()
        assert list(lines)[-1] == "data: [DONE]"
    assert qwen.job.wait(STOP_TIMEOUT_S) == 0
    record = qwen.record()
    assert (record["state"], record["outcome"]) == ("ended", "stopped")
    nothing_is_left(lambda: processes(qwen.bundle.folder.parent))
