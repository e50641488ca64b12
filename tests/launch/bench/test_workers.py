"""Several processes send one load: every record comes, on one clock, whatever ends the load."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.reference_server.process import ReferenceServer
from benchmarks.reference_server.schedule import HEADER
from builder.errors import BadInput, ChecksFailed, NotReady
from launch.bench import workers
from launch.bench.clients import Api
from launch.bench.load import LoadPlan
from launch.bench.request import LoadRequest, RequestRecord
from launch.endpoint import Endpoint
from tests.conftest import ROOT

Servers = Callable[[Api], ReferenceServer]
NEVER = threading.Event()


def load(requests: int, streams: int, trap: str = "plain", tokens: int = 10) -> LoadPlan:
    calls = (
        LoadRequest(
            "Hi",
            tokens,
            timeout_s=30,
            headers={HEADER: f"id={number} trap={trap}"},
            index=number,
        )
        for number in range(requests)
    )
    return LoadPlan("concurrency", tuple(calls), concurrency=streams)


@pytest.mark.parametrize("api", ["openai_chat", "grpc"])
def test_the_records_of_all_processes_come_together(reference_servers: Servers, api: Api) -> None:
    server, records = reference_servers(api), list[RequestRecord]()
    began_ns = time.monotonic_ns()
    spent = workers.run(load(12, 4), server.endpoint, api, 2, records.append, NEVER)
    log = server.log(12)
    assert sorted(record.index for record in records) == list(range(12))
    assert all(record.ok for record in records)
    for record in records:
        assert began_ns < record.sent_ns < log[record.index].arrived_ns < record.ended_ns
    assert len(spent) == 2
    ours_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert all(one.cpu_s > 0 and 10 < one.peak_mib < ours_mib - 10 for one in spent)
    for one in spent:
        share = one.share_of_core(began_ns, time.monotonic_ns())
        assert share is not None
        assert 0 < share <= 1


def test_a_stop_gives_up_what_is_under_way(reference_servers: Servers) -> None:
    server, records, stop = (
        reference_servers("openai_chat"),
        list[RequestRecord](),
        threading.Event(),
    )

    def one(record: RequestRecord) -> None:
        records.append(record)
        stop.set()

    workers.run(load(400, 2), server.endpoint, "openai_chat", 2, one, stop)
    assert 1 <= len(records) < 400
    server.log(len(records))


def test_an_interrupt_keeps_what_was_measured(reference_servers: Servers) -> None:
    server, records = reference_servers("openai_chat"), list[RequestRecord]()

    def one(record: RequestRecord) -> None:
        records.append(record)
        if len(records) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workers.run(load(400, 2), server.endpoint, "openai_chat", 1, one, NEVER)
    assert 3 <= len(records) < 400
    assert len({record.index for record in records}) == len(records)


def test_a_server_that_is_not_there_is_told_as_that() -> None:
    endpoint = Endpoint("trtllm_serve", "http://127.0.0.1:1")
    with pytest.raises(NotReady, match="/v1/models"):
        workers.run(load(4, 4), endpoint, "openai_chat", 2, print, NEVER)


def test_a_request_that_cannot_be_asked_is_told_as_that(reference_servers: Servers) -> None:
    plan = LoadPlan("concurrency", (LoadRequest((1, 2)),), concurrency=1)
    with pytest.raises(BadInput, match="use openai_completions"):
        workers.run(plan, reference_servers("openai_chat").endpoint, "openai_chat", 1, print, NEVER)


def children() -> list[int]:
    """Load processes of this process."""
    found = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [
        int(pid)
        for pid in found
        if b"launch.bench.workers" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def test_a_process_that_dies_is_named(reference_servers: Servers) -> None:
    def kill() -> None:
        while not (found := children()):
            time.sleep(0.01)
        os.kill(found[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    plan = load(2, 2, trap="stalled")
    with pytest.raises(ChecksFailed, match=r"load process . of 2: died with status -9"):
        workers.run(
            plan, reference_servers("generate_stream").endpoint, "generate_stream", 2, print, NEVER
        )
    killer.join()
    assert children() == []


def test_no_process_outlives_its_parent() -> None:
    program = (
        "import os, threading, time\n"
        "from launch.bench import workers\n"
        "from benchmarks.reference_server.process import ReferenceServer\n"
        "from tests.launch.bench.test_workers import NEVER, children, load\n"
        "def end():\n"
        "    while not (found := children()):\n"
        "        time.sleep(0.01)\n"
        "    print(*found, flush=True)\n"
        "    os._exit(1)\n"
        "with ReferenceServer('openai_chat') as server:\n"
        "    threading.Thread(target=end).start()\n"
        "    workers.run(load(2, 2, 'stalled'), server.endpoint, 'openai_chat', 1, print, NEVER)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    [pid] = done.stdout.split()
    deadline = time.monotonic() + 60
    while (
        Path(f"/proc/{pid}").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)
