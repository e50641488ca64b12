"""`launch bench` from the outside: a server measured, results left, interrupts and wrong orders."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reference_server.process import ReferenceServer
from benchmarks.reference_server.schedule import Schedule
from launch.bench import results
from tests import prefork
from tests.launch.bench.conftest import Reference
from tests.launch.conftest import Launch, Launcher

SMALL = ("--isl", "24", "--osl", "6")


def bench(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return prefork.shared().run(["bench", *map(str, arguments)], folder, "launch").done


def measured(reference: Reference, folder: Path, *arguments: str) -> dict[str, Any]:
    """A benchmark of the target of the bundle, run where its server was started."""
    server = (reference.bundle.folder, "--target", "trtllm_serve", "--run-dir", folder)
    done = bench(reference.folder, *server, *SMALL, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found == results.read(folder)
    return found


def test_a_bundle_is_measured_point_by_point(reference: Reference, tmp_path: Path) -> None:
    slo = ("--slo", "ttft_ms=60000,itl_ms=60000", "--price-per-gpu-hour", "3.6")
    # The server's own figures are of all requests, so those of the client are as well.
    load = ("--concurrency", "1,4", "--requests", "12", "--window", "whole")
    found = measured(reference, tmp_path, *load, *slo)
    assert found["outcome"] == "complete"
    assert [one["label"] for one in found["points"]] == ["c1", "c4"]
    for one in found["points"]:
        assert one["requests"] | {"in_window": 0} == {
            "sent": 12, "ok": 12, "failed": 0, "in_window": 0
        }  # fmt: skip
        assert one["prompt_tokens"]["min"] == one["prompt_tokens"]["max"] == 24
        assert one["output_tokens"]["min"] == one["output_tokens"]["max"] == 6
        assert 0 < one["ttft_ms"]["p50"] <= one["ttft_ms"]["p99"] < one["e2e_ms"]["max"]
        assert one["queue_ms"]["n"] == one["server_ttft_ms"]["n"] == 12
        assert one["server_ttft_ms"]["p50"] < one["ttft_ms"]["p99"]
        assert one["cost"]["usd_per_million_output_tokens"] > 0
    assert found["largest_concurrency_within_slo"] == 4
    lines = (tmp_path / "requests.jsonl").read_text().splitlines()
    assert Counter(json.loads(line)["point"] for line in lines) == {"c1": 12, "c4": 12}


def test_a_rehearsal_is_known_and_said(reference: Reference, tmp_path: Path) -> None:
    """The tokenizer is that of the server's checkpoint."""
    found = measured(reference, tmp_path / "a", "--concurrency", "1", "--requests", "2")
    assert "text of an exact token count" in found["workload"]["prompts"]
    assert "miniature" in found["workload"]["prompts"]
    subject = found["subject"]
    assert subject["engine"]["used"] == "reference"
    assert subject["engine"]["rehearsal"] is True
    assert subject["bundle"]["digest"] == reference.bundle.digest
    assert (subject["gpu"], subject["num_gpus"]) == ("h100", 1)
    url = bench(tmp_path, reference.url, *SMALL, "--concurrency", "1", "--requests", "2")
    assert "rehearsal: the reference engine on a miniature" in url.stdout


def test_a_task_grows_with_each_answer(reference: Reference, tmp_path: Path) -> None:
    order = ("--workload", "agent", "--calls", "3", "--turn", "10", "--concurrency", "2")
    found = measured(reference, tmp_path, *order, "--requests", "2", "--api", "openai_completions")
    tasks = found["points"][0]["tasks"]
    assert (tasks["count"], tasks["ok"], tasks["calls"], tasks["retries"]) == (2, 2, 6, 0)
    rows = map(json.loads, (tmp_path / "requests.jsonl").read_text().splitlines())
    prompts = {(row["task"], row["call"]): row["prompt_tokens"] for row in rows}
    for task in (0, 1):
        lengths = [prompts[task, call] for call in range(3)]
        assert lengths[0] == 24
        assert all(b >= a + 10 + 1 for a, b in pairwise(lengths))


def test_a_trace_is_replayed_at_its_times(reference: Reference, tmp_path: Path) -> None:
    rows = [{"timestamp": t, "input_length": 20, "output_length": 3} for t in (0, 400, 800)]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
    order = ("--workload", "trace", "--data", str(tmp_path / "trace.jsonl"), "--speed", "2")
    found = measured(reference, tmp_path / "run", *order)
    [point] = found["points"]
    assert (point["label"], point["requests"]["ok"]) == ("trace x2", 3)
    assert point["duration_s"] > 0.4
    assert point["late_ms"]["max"] < 400


def test_progress_is_lines_of_text_away_from_a_terminal(
    reference: Reference, tmp_path: Path
) -> None:
    done = bench(tmp_path, reference.url, *SMALL, "--concurrency", "2", "--requests", "4")
    assert done.returncode == 0
    said = done.stderr.splitlines()
    assert not [line for line in said if line.startswith("{")]
    assert [line.partition(" requests")[0] for line in said if " requests" in line] == [
        "c2 warm-up: begins, 0/2", "c2 warm-up: ended, 2/2", "c2: begins, 0/4", "c2: ended, 4/4"
    ]  # fmt: skip
    assert max(len(line) for line in said if not line.startswith("results in ")) <= 100


def test_progress_is_json_lines_where_it_is_asked_for(reference: Reference, tmp_path: Path) -> None:
    order = ("--concurrency", "2", "--requests", "4", "--progress", "json")
    done = bench(tmp_path, reference.url, *SMALL, *order)
    assert done.returncode == 0
    rows = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    said = [(row["point"], row["state"], row["done"]) for row in rows if row["state"] != "runs"]
    assert said == [
        ("c2 warm-up", "begins", 0), ("c2 warm-up", "ended", 2),
        ("c2", "begins", 0), ("c2", "ended", 4),
    ]  # fmt: skip
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.fixture
def slow() -> Any:
    """A server whose answers take their time."""
    with ReferenceServer("openai_completions", Schedule(ttft_ms=100, itl_ms=20)) as server:
        yield server


def wait_for_requests(running: Launcher, run: Path, count: int) -> None:
    """Until so many of them have ended."""
    lines = run / "requests.jsonl"
    deadline = time.monotonic() + 120
    while not lines.is_file() or lines.read_text().count("\n") < count:
        assert time.monotonic() < deadline, running.errors.read_text()
        time.sleep(0.02)


def test_an_interrupt_keeps_what_was_measured(
    slow: ReferenceServer, launch: Launch, tmp_path: Path
) -> None:
    order = "--isl 8 --osl 4 --concurrency 2 --requests 1000 --warmup 0 --run-dir run"
    running = launch("bench", slow.endpoint.url, *order.split())
    wait_for_requests(running, tmp_path / "run", 4)
    running.signal(signal.SIGINT)
    assert running.end() == 130
    found = results.read(tmp_path / "run")
    assert found["outcome"] == "interrupted"
    [point] = found["points"]
    assert point["requests"]["ok"] == point["requests"]["sent"] >= 4
    asked = map(json.loads, (tmp_path / "run" / "requests.jsonl").read_text().splitlines())
    measured_ms = [one["ttft_ms"] for one in asked if "ttft_ms" in one]
    assert min(measured_ms) >= 95
    assert min(measured_ms) <= point["ttft_ms"]["p50"] <= max(measured_ms)
    assert "Traceback" not in running.errors.read_text()
    running.line("interrupted: the last point here may have fewer requests, later ones are missing")


def test_a_second_interrupt_leaves_at_once(
    slow: ReferenceServer, launch: Launch, tmp_path: Path
) -> None:
    running = launch("bench", slow.endpoint.url, "--concurrency", "1", "--run-dir", "run")
    running.wait_for_error(": begins")
    for _ in range(2):
        running.signal(signal.SIGTERM)
    assert running.end(5) == 143
    assert results.read(tmp_path / "run")["outcome"] == "interrupted"


def test_a_server_without_a_success_fails_the_benchmark(tmp_path: Path) -> None:
    with ReferenceServer("openai_completions", Schedule(trap="too_many_requests")) as server:
        url = server.endpoint.url or ""
        done = bench(tmp_path, url, "--concurrency", "2", "--requests", "4")
    assert done.returncode == 6
    assert "error: c2 warm-up: all 2 requests failed, unavailable: 429: " in done.stderr
    assert "; wait until the server has room, or give a lower --concurrency" in done.stderr
    assert '"point": "c2", ' not in done.stderr  # nothing is sent after that


def test_a_point_without_a_success_fails_the_benchmark(tmp_path: Path) -> None:
    with ReferenceServer("openai_completions", Schedule(trap="too_many_requests")) as server:
        order = ("--concurrency", "1,2", "--requests", "4", "--warmup", "0", "--run-dir", "run")
        done = bench(tmp_path, server.endpoint.url or "", *order)
    assert done.returncode == 6
    assert "error: point c2: no request succeeded; unavailable: " in done.stderr
    assert len(results.read(tmp_path / "run")["points"]) == 2


def test_a_server_that_dies_midway_fails_the_benchmark(launch: Launch, tmp_path: Path) -> None:
    order = ("--isl", "8", "--osl", "4", "--concurrency", "1", "--warmup", "0", "--duration", "2")
    with ReferenceServer("openai_completions", Schedule(ttft_ms=20, itl_ms=5)) as server:
        running = launch("bench", server.endpoint.url, *order, "--run-dir", "run")
        wait_for_requests(running, tmp_path / "run", 2)
    assert running.end() == 6
    assert "requests failed; refused: Connection refused" in running.errors.read_text()


def test_a_result_says_how_near_the_load_processes_were_to_their_own_limit(
    slow: ReferenceServer, tmp_path: Path
) -> None:
    order = ("--isl", "8", "--osl", "4", "--concurrency", "2", "--requests", "16")
    done = bench(tmp_path, slow.endpoint.url or "", *order, "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    found = results.read(tmp_path / "run")
    [point] = found["points"]
    assert 0 < point["share_of_limit"] < 0.7
    assert point["client_limited"] is False
    assert found["client"]["share_of_limit"] == point["share_of_limit"]
    assert found["client"]["marked"] is False
    assert "the client was the limit" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--api", "grpc"), "offers no grpc"),
        (("--tokenizer", "."), "has no tokenizer.json"),
    ],
)
def test_wrong_orders_are_said_before_anything_is_sent(
    arguments: tuple[str, ...], message: str, slow: ReferenceServer, tmp_path: Path
) -> None:
    done = bench(tmp_path, slow.endpoint.url or "", *arguments)
    assert done.returncode in (2, 3)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
