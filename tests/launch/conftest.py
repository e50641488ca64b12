"""Rendered bundles, a launcher in a process of its own, and small servers to put under it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from builder import bundle as bundles
from builder import pipeline
from builder.bundle import File
from launch import endpoint, rehearsal, target
from launch.cli.main import main
from launch.guardian import MARK
from launch.process import Interrupts, ServerProcess
from launch.smoke import suite
from launch.smoke.results import CheckResult
from supervisor.ports import free_ports
from tests.conftest import LAUNCH_TAG

PRESET = "llama-tiny"
TAG = LAUNCH_TAG
# Of this process: tests run side by side, and pytest may import this file twice.
OWN = f"test-{os.getpid()}-"
if not os.environ.get(TAG, "").startswith(OWN):
    os.environ[TAG] = f"{OWN}{uuid.uuid4().hex[:12]}"
NAME = os.environ[TAG]
# In `PYTHONPATH`: smoke suites of a few checks.
FEW_CHECKS = Path(__file__).parent / "few_checks"


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> bundles.Bundle:
    """The rendered bundle of a preset, with the targets `trtllm_serve` and `triton`."""
    return pipeline.render(
        PRESET, tmp_path_factory.mktemp("bundle") / PRESET, [f"name={NAME}"], False
    )


@pytest.fixture(scope="session")
def local_bundle(tmp_path_factory: pytest.TempPathFactory) -> bundles.Bundle:
    """The same deployment on ports that are free on this machine."""
    folder = tmp_path_factory.mktemp("local-bundle") / PRESET
    return pipeline.render(PRESET, folder, [*free_settings(), f"name={NAME}"], False)


def free_settings() -> list[str]:
    """Ports of all targets that are free on this machine, as settings."""
    names = ("trtllm_serve.port", "triton.http_port", "triton.grpc_port", "triton.metrics_port")
    ports = free_ports(len(names))
    return [f"targets.{name}={port}" for name, port in zip(names, ports, strict=True)]


def with_script(bundle: bundles.Bundle, target: str, script: str, folder: Path) -> bundles.Bundle:
    """A whole bundle, whose script for a target is another one."""
    files = {
        name: File((bundle.folder / name).read_bytes(), executable=name.endswith(".sh"))
        for name in bundle.manifest["files"]
    }
    files[f"{target}/serve.sh"] = File(script.encode(), executable=True)
    facts = {key: bundle.manifest[key] for key in bundles.REQUIRED}
    return bundles.write(folder, files, facts, force=False)


def checked(bundle: bundles.Bundle, name: str, *ids: str) -> list[CheckResult]:
    """A few checks of the suite on a target that runs, by a client with the target's own files."""
    chosen = [check for check in (*suite.POSITIVE, *suite.NEGATIVE) if check.id in ids]
    return suite.run(endpoint.from_target(target.read(bundle, name)), lambda _: None, chosen)


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    with Interrupts() as entered:
        yield entered


Child = Callable[..., ServerProcess]


@pytest.fixture
def child(tmp_path: Path, interrupts: Interrupts) -> Child:
    """A server that runs a Python program; it is not started yet."""

    def make(program: str, grace_s: float = 5.0) -> ServerProcess:
        log = tmp_path / "child.log"
        log.touch()
        return ServerProcess(
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
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "launch", *map(str, arguments)],
                cwd=folder,
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def line(self, start: str) -> str:
        """The next line of its output that starts so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return line.strip()
        raise AssertionError(f"no line {start!r}; errors: {self.errors.read_text()}")

    def wait_for_error(self, text: str, timeout_s: float = 300.0) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.errors.read_text():
            assert time.monotonic() < deadline, self.errors.read_text()
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, timeout_s: float = 300.0) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            logs = [path.read_text() for path in self.folder.rglob("server.log")]
            raise AssertionError("\n".join([self.errors.read_text(), *logs])) from None


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


Rehearse = Callable[..., dict[str, Any]]


@pytest.fixture
def rehearse_quickly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Rehearse:
    """What `launch rehearse` says of a target that passes these checks, with a small benchmark."""

    def run(wanted: Container[str], *arguments: str | Path) -> dict[str, Any]:
        few = [one for one in (*suite.POSITIVE, *suite.NEGATIVE) if one.id in wanted]
        monkeypatch.setattr(suite, "run", partial(suite.run, checks=few))
        monkeypatch.setattr(rehearsal, "BENCH_REQUESTS", 4)
        monkeypatch.chdir(tmp_path)
        status = main(["rehearse", *map(str, arguments), "--json"])
        printed = capsys.readouterr()
        assert status == 0, printed.err
        [row] = json.loads(printed.out)
        return dict(row)

    return run


def marked_processes() -> set[int]:
    """Live processes of servers that this session started."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            environment = (path / "environ").read_bytes()
            ours = f"{TAG}={NAME}".encode() in environment and f"{MARK}=".encode() in environment
            if state not in "ZX" and ours:
                found.add(int(path.name))
    return found


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No process and no shared memory of this test is there afterwards."""
    yield
    assert marked_processes() == set()
    assert list(Path("/dev/shm").glob(f"{NAME}*")) == []
