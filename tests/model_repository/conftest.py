"""Real Triton servers with the production model on a scripted engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from launch import engine, triton
from launch.process import Interrupts, ServerProcess
from supervisor.ports import free_ports
from tests import watcher
from tests.conftest import LAUNCH_TAG
from tests.model_repository.in_process import InProcessTriton, Server, beyond
from tests.model_repository.triton_client import Triton

MODEL = Path(__file__).parents[2] / "model_repository" / "tensorrt_llm"
ENGINE_STUB = Path(__file__).parent / "engine_stub"
START_TIMEOUT_S = 300.0
SAMPLE = re.compile(r"trtllm_model_(\w+)\{(.*)\} (\S+)")

sys.path.append(str(MODEL / "1"))


@dataclass(frozen=True)
class Served:
    """A server, its client, and what the scripted engine and the server logged."""

    client: Triton
    server: ServerProcess
    engine_log: Path
    shm_prefix: str
    metrics_url: str

    def events(self, event: str) -> list[dict[str, Any]]:
        if not self.engine_log.exists():
            return []
        whole, _, _ = self.engine_log.read_text().rpartition("\n")  # not one half written
        entries = map(json.loads, whole.splitlines())
        return [entry for entry in entries if entry["event"] == event]

    def wait_for(self, event: str, prompt: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """The event of the engine for this prompt, as soon as it is there."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for entry in self.events(event):
                if entry["prompt"] == prompt:
                    return entry
            threading.Event().wait(0.01)
        raise AssertionError(f"no event {event} for {prompt!r} within {timeout_s} s")

    def metrics(self) -> dict[str, float]:
        """The model's own metrics by name, with `{outcome}` where they have one."""
        samples = {}
        for line in httpx.get(
            self.metrics_url, trust_env=False, verify=False, timeout=60
        ).text.splitlines():
            if found := SAMPLE.fullmatch(line):
                name, labels, value = found.groups()
                kept = re.sub(r',?(model|version)="[^"]*",?', "", labels)
                samples[name + (f"{{{kept}}}" if kept else "")] = float(value)
        return samples

    def wait_for_metrics(self, expected: dict[str, float], timeout_s: float = 60.0) -> None:
        """Until all of these have the values expected; they are brought to Triton now and then."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.metrics()).items() >= expected.items():
            assert time.monotonic() < deadline, {name: found.get(name) for name in expected}
            threading.Event().wait(0.05)

    @property
    def log(self) -> str:
        return self.server.log.read_text()

    @property
    def regions(self) -> list[str]:
        return [path.name for path in triton.SHARED_MEMORY.glob(f"{self.shm_prefix}*")]

    @property
    def processes(self) -> list[Path]:
        """The server and its Python processes, as folders of /proc."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(FileNotFoundError, ProcessLookupError):
                group = (folder / "stat").read_text().rpartition(")")[2].split()[2]
                if int(group) == self.server.pid:
                    found.append(folder)
        return found

    @property
    def memory_mib(self) -> float:
        pages = sum(int((folder / "statm").read_text().split()[1]) for folder in self.processes)
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


Serve = Callable[..., Served]


def find_programs(folder: Path) -> list[Path]:
    """Folders for the front of the path: a Python with the scripted engine, and Triton."""
    found = triton.prepare(folder / "tritonserver")
    return [
        engine.python_overlay(folder / "python", [ENGINE_STUB], Path),
        *([found] if found else []),
    ]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return find_programs(tmp_path_factory.mktemp("programs"))


def write_repository(folder: Path, model_yaml: str) -> Path:
    """A model repository with the production model."""
    shutil.copytree(MODEL, folder / MODEL.name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / MODEL.name / "1" / "model.yaml").write_text(model_yaml)
    return folder


def add_unary(repository: Path) -> None:
    """The second model over the engine of the first."""
    model, unary = repository / MODEL.name, repository / f"{MODEL.name}_unary"
    (unary / "1").mkdir(parents=True)
    shutil.copy(model / "config.pbtxt", unary)
    shutil.copy(model / "1" / "trtllm_model" / "unary.py", unary / "1" / "model.py")


MODEL_YAML = """
triton_config: {max_batch_size: 0, decoupled: true}
model: some/checkpoint
backend: pytorch
tensor_parallel_size: 4
"""


@dataclass(frozen=True)
class Starter:
    """Starts servers that run until `stack` ends."""

    stack: ExitStack
    interrupts: Interrupts
    programs: list[Path]

    def start(
        self,
        folder: Path,
        model_yaml: str,
        options: Sequence[str],
        variables: dict[str, str],
        unary: bool = False,
    ) -> Served:
        """A server, not ready yet, with all its files in `folder`."""
        repository = write_repository(folder / "repository", model_yaml)
        if unary:
            add_unary(repository)
        prefix = watcher.unique("test")
        http, grpc, metrics = free_ports(3)
        argv = [
            "tritonserver",
            *("--model-repository", str(repository)),
            *("--http-address", "127.0.0.1", "--http-port", str(http)),
            *("--grpc-address", "127.0.0.1", "--grpc-port", str(grpc)),
            *("--metrics-address", "127.0.0.1", "--metrics-port", str(metrics)),
            *("--backend-config", f"python,shm-region-prefix-name={prefix}"),
            *options,
        ]
        path = os.pathsep.join([*map(str, self.programs), os.environ["PATH"]])
        # Tests of `launch` look for processes that they left running, by a tag of theirs.
        inherited = {name: value for name, value in os.environ.items() if name != LAUNCH_TAG}
        log = folder / "engine.log"
        server = self.stack.enter_context(
            ServerProcess(
                ["env", *argv],
                cwd=folder,
                environment={**inherited, "PATH": path, "ENGINE_LOG": str(log), **variables},
                log=folder / "server.log",
                grace_s=30,
                interrupts=self.interrupts,
            )
        )
        client = Triton(f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}")
        return Served(client, server, log, prefix, f"http://127.0.0.1:{metrics}/metrics")


@pytest.fixture(scope="session")
def start(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serve]:
    """Starts a server and waits until it is ready, or dead if `dies` is set."""
    if request.config.getoption("--model-in-process"):
        with in_process(tmp_path_factory) as begin_in_process:
            yield begin_in_process
        return
    programs = request.getfixturevalue("programs")
    begun: list[Served] = []
    with ExitStack() as stack:
        starter = Starter(stack, stack.enter_context(Interrupts()), programs)

        def begin(
            model_yaml: str = MODEL_YAML,
            dies: bool = False,
            options: Sequence[str] = (),
            unary: bool = False,
            **variables: str,
        ) -> Served:
            folder = tmp_path_factory.mktemp("server")
            served = starter.start(folder, model_yaml, options, variables, unary)
            begun.append(served)
            if dies:
                assert served.server.exit_status(START_TIMEOUT_S) is not None
            else:
                wait_until_ready(served.server, served.client)
            return served

        yield begin
        for served in begun:  # which then end side by side
            if served.server.exit_status(0) is None:
                os.kill(served.server.pid, signal.SIGTERM)


@pytest.fixture(scope="session")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Starts the model within this process in any case: for what no client can make Triton do."""
    with in_process(tmp_path_factory) as begin:
        yield begin


@contextmanager
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """The same, with the model within this process."""
    servers: list[Server] = []

    def begin(
        model_yaml: str = MODEL_YAML,
        dies: bool = False,
        options: Sequence[str] = (),
        unary: bool = False,
        **variables: str,
    ) -> Served:
        if options:
            beyond()
        server = Server(tmp_path_factory.mktemp("server"), model_yaml, unary, variables)
        servers.append(server)
        assert (server.fault is not None) is dies, server.fault
        return ServedInProcess(server)

    yield begin
    for server in servers:
        server.finalize()


class ServedInProcess(Served):
    model: Server

    def __init__(self, server: Server) -> None:
        vars(self).update(
            model=server,
            client=InProcessTriton(server),
            server=server,
            engine_log=server.engine_log,
            shm_prefix="",
        )

    @property
    def regions(self) -> list[str]:
        return []

    @property
    def metrics_url(self) -> str:
        beyond()

    @property
    def log(self) -> str:
        return "\n".join(self.model.lines)

    def metrics(self) -> dict[str, float]:
        families = self.model.families.items()
        rows = ((name, metric) for name, metrics in families for metric in metrics)
        return dict(sample for name, metric in rows for sample in metric.samples(name))


@pytest.fixture(scope="session")
def served(start: Serve) -> Served:
    """The server that all tests share which do not end it."""
    return start()


def wait_until_ready(server: ServerProcess, client: Triton) -> None:
    """`verify=False`, here and elsewhere: else httpx reads all certificates for every request, in
    30 ms of processor time, which has no use without TLS."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert server.exit_status(0.1) is None, "\n".join(server.last_lines())
        try:
            if httpx.get(
                f"{client.http_url}/v2/health/ready", trust_env=False, verify=False
            ).is_success:
                return
        except httpx.TransportError:
            continue
    raise AssertionError("\n".join(server.last_lines()))
