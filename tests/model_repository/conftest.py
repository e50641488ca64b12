"""Real Triton servers with the production model on a scripted engine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from launch import engine, triton
from launch.interrupts import Interrupts
from launch.process import Server
from tests.model_repository.triton_client import Triton

MODEL = Path(__file__).parents[2] / "model_repository" / "tensorrt_llm"
ENGINE_STUB = Path(__file__).parent / "engine_stub"
START_TIMEOUT_S = 60.0

sys.path.insert(0, str(MODEL / "1"))


@dataclass(frozen=True)
class Served:
    """A server, its client, and what the scripted engine and the server logged."""

    client: Triton
    server: Server
    engine_log: Path
    shm_prefix: str

    def events(self, event: str) -> list[dict[str, Any]]:
        if not self.engine_log.exists():
            return []
        entries = map(json.loads, self.engine_log.read_text().splitlines())
        return [entry for entry in entries if entry["event"] == event]

    def wait_for(self, event: str, prompt: str, timeout_s: float = 10.0) -> dict[str, Any]:
        """The event of the engine for this prompt, as soon as it is there."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for entry in self.events(event):
                if entry["prompt"] == prompt:
                    return entry
            threading.Event().wait(0.01)
        raise AssertionError(f"no event {event} for {prompt!r} within {timeout_s} s")

    @property
    def log(self) -> str:
        return self.server.log.read_text()

    @property
    def regions(self) -> list[str]:
        return [path.name for path in triton.SHARED_MEMORY.glob(f"{self.shm_prefix}*")]


Serve = Callable[..., Served]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders for the front of the path: a Python with the scripted engine, and Triton."""
    folder = tmp_path_factory.mktemp("programs")
    found = triton.prepare(folder / "tritonserver")
    return [
        engine.python_overlay(folder / "python", [ENGINE_STUB], Path),
        *([found] if found else []),
    ]


def write_repository(folder: Path, model_yaml: str) -> Path:
    """A model repository with the production model."""
    shutil.copytree(MODEL, folder / MODEL.name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / MODEL.name / "1" / "model.yaml").write_text(model_yaml)
    return folder


MODEL_YAML = """
triton_config: {max_batch_size: 0, decoupled: true, cancellation_check_period_ms: 50}
model: some/checkpoint
backend: pytorch
tensor_parallel_size: 4
"""


@pytest.fixture(scope="session")
def start(programs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Starts a server and waits until it is ready, or dead if `dies` is set."""
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())

        def begin(model_yaml: str = MODEL_YAML, dies: bool = False, **variables: str) -> Served:
            folder = tmp_path_factory.mktemp("server")
            prefix = f"test-{uuid.uuid4().hex}"
            http, grpc, metrics = free_ports(3)
            argv = [
                "tritonserver",
                *("--model-repository", str(write_repository(folder / "repository", model_yaml))),
                *("--http-address", "127.0.0.1", "--http-port", str(http)),
                *("--grpc-address", "127.0.0.1", "--grpc-port", str(grpc)),
                *("--metrics-address", "127.0.0.1", "--metrics-port", str(metrics)),
                *("--backend-config", f"python,shm-region-prefix-name={prefix}"),
            ]
            path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
            log = folder / "engine.log"
            server = stack.enter_context(
                Server(
                    ["env", *argv],
                    cwd=folder,
                    environment={**os.environ, "PATH": path, "ENGINE_LOG": str(log), **variables},
                    log=folder / "server.log",
                    grace_s=30,
                    interrupts=interrupts,
                )
            )
            client = Triton(f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}")
            if dies:
                assert server.exit_status(START_TIMEOUT_S) is not None
            else:
                wait_until_ready(server, client)
            return Served(client, server, log, prefix)

        yield begin


@pytest.fixture(scope="session")
def served(start: Serve) -> Served:
    """The server that all tests share which do not end it."""
    return start()


def wait_until_ready(server: Server, client: Triton) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert server.exit_status(0.1) is None, "\n".join(server.last_lines())
        try:
            if httpx.get(f"{client.http_url}/v2/health/ready", trust_env=False).is_success:
                return
        except httpx.TransportError:
            continue
    raise AssertionError("\n".join(server.last_lines()))


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
