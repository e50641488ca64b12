"""The reference server keeps its schedule, logs what it did, and ends with who started it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.reference_server import accuracy, log
from benchmarks.reference_server.accuracy import AccuracyTest, RequestTiming
from benchmarks.reference_server.log import LogEntry
from benchmarks.reference_server.process import ReferenceServer
from benchmarks.reference_server.responses import script
from benchmarks.reference_server.schedule import MS, TRAPS, Schedule
from launch.bench import workers
from launch.bench.clients import Api
from launch.bench.load import LoadPlan
from launch.bench.request import RequestRecord
from tests.conftest import ROOT

# What the kernel's clock, which stamps arrivals, may be off the server's.
CLOCKS_NS = 100_000
SCHEDULE = Schedule(ttft_ms=50, itl_ms=5, tokens=6)


def test_tokens_are_due_by_absolute_deadlines() -> None:
    due_ms = [due_ns / MS for due_ns, _ in SCHEDULE.due()]
    assert due_ms == [50, 55, 60, 65, 70, 75]


def test_an_event_of_several_tokens_waits_for_the_last() -> None:
    schedule = SCHEDULE.for_request("trap=three_tokens id=7", 7)
    assert list(schedule.due()) == [(60 * MS, 3), (75 * MS, 3), (80 * MS, 1)]
    assert schedule.id == 7


@pytest.mark.parametrize("api", ["openai_chat", "openai_completions", "generate_stream", "grpc"])
@pytest.mark.parametrize("trap", TRAPS)
def test_a_script_counts_the_tokens_that_it_sends(trap: str, api: str) -> None:
    found = script(SCHEDULE.for_request(f"trap={trap}", SCHEDULE.tokens), api)
    sent = b"".join(step.data for step in found.steps)
    if trap not in ("cumulative", "too_many_requests", "error_body"):
        assert sent.count(b" tok") == found.tokens
    assert list(found.steps) == sorted(found.steps, key=lambda step: step.due_ns)


@pytest.mark.parametrize("api", ["openai_chat", "generate_stream", "grpc"])
def test_the_server_sends_no_token_before_it_is_due(
    reference_servers: Callable[[Api], ReferenceServer], api: Api
) -> None:
    accuracy_test = AccuracyTest(streams=2, requests=4, tokens=20, itl_ms=2, ttft_ms=60)
    server, records = reference_servers(api), list[RequestRecord]()
    calls = tuple(accuracy_test.asks())
    plan = LoadPlan("concurrency", calls, concurrency=accuracy_test.streams)
    workers.run(plan, server.endpoint, api, 1, records.append, threading.Event())
    due_ns = [due_ns for due_ns, _ in accuracy_test.schedule.due()]
    log = server.log(accuracy_test.requests)
    for record in records:
        entry = log[record.index]
        assert entry.first_ns is not None
        assert entry.last_ns is not None
        assert entry.first_ns - entry.arrived_ns >= due_ns[0]
        assert entry.last_ns - entry.arrived_ns >= due_ns[-1]
        came_ns = [at_ns - entry.arrived_ns + CLOCKS_NS for at_ns in record.message_ns]
        assert len(came_ns) == accuracy_test.tokens
        assert all(came >= due for came, due in zip(came_ns, due_ns, strict=True))


def test_errors_are_what_a_client_says_less_what_was_sent() -> None:
    accuracy_test = AccuracyTest(streams=1, requests=1, tokens=11, itl_ms=5)
    true = LogEntry(0, "plain", 11, arrived_ns=0, first_ns=50 * MS, last_ns=100 * MS)
    seen = RequestTiming(begun_ns=0, first_ns=51 * MS, last_ns=102 * MS, tokens=11)
    found = accuracy.compare(accuracy_test, {0: seen}, {0: true}, cpu_s=0.011, peak_mib=30)
    assert found.ttft_error_ms == pytest.approx(1)
    assert found.ttft_error_percent == pytest.approx(2)
    assert found.tpot_error_percent == pytest.approx(2)
    assert found.throughput_error_percent == pytest.approx(100 * (100 / 102 - 1))
    assert found.late_percent == pytest.approx(0)
    assert found.cpu_s_per_1k_tokens == pytest.approx(1)


def test_requests_that_are_not_logged_are_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "PATIENCE_S", 0.05)
    path = tmp_path / "log.jsonl"
    path.touch()
    with pytest.raises(TimeoutError, match="0 of 3"):
        log.read(path, 3)


def test_the_server_ends_with_its_parent() -> None:
    program = (
        "import os\n"
        "from benchmarks.reference_server.process import ReferenceServer\n"
        "server = ReferenceServer('openai_chat').__enter__()\n"
        "print(server.pid, flush=True)\n"
        "os._exit(1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    process = Path("/proc") / done.stdout.strip()
    deadline = time.monotonic() + 60
    while process.exists() and "\nState:\tZ" not in (process / "status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
