"""Slurm's commands as programs that print what real ones print."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from supervisor import allocation, checks, service, state, steps
from supervisor.slurm import Cluster
from tests.supervisor.one_node import NODE, SCRIPTS, Job

# `scontrol show node -o NODE`.
ADDRESSES = '[ "$2" != node ] || echo "NodeName=$4 Arch=x86_64 NodeAddr=$4"'

# What a scheduler may answer to a question for the state of a job, and that says nothing of it.
NOTHING = (
    "exit 1",
    "true",
    "echo; echo",
    "echo STATE JOBID",
    "echo ${3#--jobs=} batch svc root R 0:10 1 node1",  # another format
    "echo R ${3#--jobs=}",
    "echo RUNNI",  # broken off
    "echo COMPLETED",
    "echo COMPLETED ${3#--jobs=}0",  # another job
    "echo COMPLETED ${3#--jobs=} node1",
    "echo '{\"jobs\": []}'",
    "echo slurm_load_jobs error: Unable to contact slurm controller",
    "echo slurm_load_jobs error: Socket timed out on send/recv operation >&2",
    "echo slurm_load_jobs error: Invalid job id specified",  # beside the code of a success
)

Answer = Callable[[socket.socket], None]
Commands = Callable[..., Cluster]


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Those that a job takes or ignores end this process again, also where it has to be ended."""
    handlers = {one: signal.getsignal(one) for one in signal.valid_signals()}
    yield
    for number, handler in handlers.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Job 7 on two nodes, whose Slurm commands are these shell scripts."""

    def make(**scripts: str) -> Cluster:
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
        monkeypatch.setenv("SLURM_JOB_NAME", "svc")
        monkeypatch.delenv("SLURM_HET_SIZE", raising=False)
        folder = tmp_path / "bin"
        folder.mkdir()
        scripts.setdefault("scontrol", ADDRESSES)
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        return Cluster()

    return make


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Job 7 on one node; its clocks run fast, so that a life of it takes little time."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in SCRIPTS.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    variables = {"JOB_ID": "7", "JOB_NODELIST": NODE, "JOB_NAME": "svc"}
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURMD_NODENAME", NODE)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name in (
        *(state.STATE_FOLDER, state.PREDECESSOR, state.CANARY, state.FREE_PORTS),
        *(state.BUNDLE_DIGEST, state.SUBMIT_OPTIONS, "SLURM_HET_SIZE", "SLURM_RESTART_COUNT"),
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(service, "TICK_S", 0.005)
    monkeypatch.setattr(service, "END_MARGIN_S", 0.05)
    monkeypatch.setattr(steps, "POLL_S", 0.005)
    monkeypatch.setattr(steps, "SRUN_REPORT_S", 20.0)  # a busy machine is late to end a process
    monkeypatch.setattr(steps, "START_PERIOD_S", 0.05)
    monkeypatch.setattr(checks, "START_PERIOD_S", 0.02)
    monkeypatch.setattr(allocation, "JOB_PERIOD_S", 0.2)
    # A cluster's name of the node means nothing here.
    monkeypatch.setattr(Cluster, "address", lambda self, node: "127.0.0.1")
    return Job(tmp_path)


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], int]]:
    """The port of a server that answers every request in one way."""
    with ExitStack() as stack:

        def start(answer: Answer) -> int:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def run() -> None:
                with suppress(OSError), listener.accept()[0] as connection:
                    connection.recv(65536)
                    answer(connection)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):  # what is unread at a close resets the answer
                        pass

            threading.Thread(target=run, daemon=True).start()
            return int(listener.getsockname()[1])

        yield start
