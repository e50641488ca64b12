"""Rendered bundles, a launcher in a process of its own, and small servers to put under it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from builder import bundle as bundles
from builder import pipeline
from launch.interrupts import Interrupts
from launch.process import MARK, Server

PRESET = "llama-tiny"


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> bundles.Bundle:
    """The rendered bundle of a preset, with the targets `trtllm_serve` and `triton`."""
    return pipeline.render(PRESET, tmp_path_factory.mktemp("bundle") / PRESET, [], False)


@pytest.fixture(scope="session")
def local_bundle(tmp_path_factory: pytest.TempPathFactory) -> bundles.Bundle:
    """The same deployment on ports that are free on this machine."""
    names = ("trtllm_serve.port", "triton.http_port", "triton.grpc_port", "triton.metrics_port")
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        ports = [one.getsockname()[1] for one in sockets]
    settings = [f"targets.{name}={port}" for name, port in zip(names, ports, strict=True)]
    folder = tmp_path_factory.mktemp("local-bundle") / PRESET
    return pipeline.render(PRESET, folder, settings, False)


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    with Interrupts() as entered:
        yield entered


Child = Callable[..., Server]


@pytest.fixture
def child(tmp_path: Path, interrupts: Interrupts) -> Child:
    """A server that runs a Python program; it is not started yet."""

    def make(program: str, grace_s: float = 5.0) -> Server:
        log = tmp_path / "child.log"
        log.touch()
        return Server(
            [sys.executable, "-u", "-c", program],
            cwd=tmp_path,
            environment=os.environ,
            log=log,
            grace_s=grace_s,
            interrupts=interrupts,
        )

    return make


class Launcher:
    """`python -m launch ARGUMENTS`, running; its lines are read as they come."""

    def __init__(self, folder: Path, *arguments: str | Path, **variables: str) -> None:
        self.folder = folder
        self.errors = folder / "launcher.err"
        self._lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launch", *map(str, arguments)],
            cwd=folder,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=self.errors.open("wb"),
            text=True,
        )

    def line(self, start: str) -> str:
        """The next line of its output that starts so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return line.strip()
        raise AssertionError(f"no line {start!r}; errors: {self.errors.read_text()}")

    def wait_for_error(self, text: str, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.errors.read_text():
            assert time.monotonic() < deadline, self.errors.read_text()
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, timeout_s: float = 60.0) -> int:
        return self.process.wait(timeout_s)


Launch = Callable[..., Launcher]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts launchers; whatever still runs at the end is ended."""
    with ExitStack() as stack:

        def start(*arguments: str | Path, **variables: str) -> Launcher:
            launcher = Launcher(tmp_path, *arguments, **variables)
            stack.callback(_finish, launcher)
            return launcher

        yield start


def _finish(launcher: Launcher) -> None:
    if launcher.process.poll() is None:
        launcher.process.terminate()
        launcher.process.wait(60)
    if launcher.process.stdout is not None:
        launcher.process.stdout.close()


def marked_processes() -> set[int]:
    """Live processes that some launcher's server started."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and f"{MARK}=".encode() in (path / "environ").read_bytes():
                found.add(int(path.name))
    return found


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No process and no shared memory of this test is there afterwards."""
    memory, processes = set(Path("/dev/shm").iterdir()), marked_processes()
    yield
    assert marked_processes() - processes == set()
    left = {path for path in Path("/dev/shm").iterdir() if path.name.startswith(PRESET)}
    assert left - memory == set()
