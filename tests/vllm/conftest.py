"""Bundles for vLLM, served by vLLM itself: its CPU build on miniatures.

One is started by `launch up`, one by the supervisor of a Slurm job, for which Slurm's commands are
scripts. Each is started once for all tests.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from builder import bundle as bundles
from builder import pipeline
from builder.facts import checkpoint, engines
from launch import cpu_build
from supervisor import state
from supervisor.ports import free_ports
from tests.conftest import NO_VLLM, ROOT
from tests.launch.conftest import Launcher, launch
from tests.supervisor import one_node

__all__ = ["launch"]

ENGINE = engines.load("vllm")
# What a machine that does other things as well may take: three processes import PyTorch.
START_TIMEOUT_S = 400
STOP_TIMEOUT_S = 120
DEPLOYMENT = {
    "hardware": {"gpu": "h100", "num_gpus": 1},
    "engine": {"name": "vllm", "release": "0.32.0"},
    "workload": {"isl": 512, "osl": 128, "concurrency": 16},
}
# Of a tiny model that shares its processors, a client may hear too late to leave what is shorter.
LONG = {"max_model_len": 2048}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They run where they are asked for, with the CPU build that is set up then."""
    here = Path(__file__).parent
    if os.environ.get("TEST_VLLM") and cpu_build.folder(ENGINE):
        return
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.skip(reason=NO_VLLM))


def render(folder: Path, name: str, checkpoint: str, **changes: Any) -> bundles.Bundle:
    """The bundle of a small deployment of a known model."""
    document = {**DEPLOYMENT, "name": name, "checkpoint": checkpoint}
    document["targets"] = {
        "vllm_serve": {"port": free_ports(1)[0]},
        "monitoring": {},
        "slurm": {"server": "vllm_serve", "site": "site.json"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "site.json").write_text(json.dumps(SITE))
    file = folder / "deployment.yaml"
    file.write_text(json.dumps({**document, **changes}))
    return pipeline.render(str(file), folder / "bundle", [], False)


@dataclass(frozen=True)
class Served:
    """A bundle that vLLM serves, where it does, and the folder with the evidence of it."""

    bundle: bundles.Bundle
    url: str
    run: Path
    miniature: Path

    @property
    def model(self) -> str:
        [model] = httpx.get(
            f"{self.url}/v1/models", trust_env=False, verify=False, timeout=60
        ).json()["data"]
        return str(model["id"])

    def post(self, path: str, **body: Any) -> Any:
        answer = httpx.post(
            f"{self.url}{path}", json=body, timeout=120, trust_env=False, verify=False
        )
        answer.raise_for_status()
        return answer.json()


@dataclass(frozen=True)
class Launched(Served):
    """One by `launch up`."""

    launcher: Launcher


@dataclass(frozen=True)
class Supervised(Served):
    """One by the supervisor of a job, which is a process of ours."""

    job: subprocess.Popen[bytes]

    def record(self) -> dict[str, Any]:
        return state.read_json(self.run / state.RUN) or {}


def launched(bundle: bundles.Bundle, folder: Path) -> Iterator[Launched]:
    """`launch up` of a bundle, until it is told to stop; it must not be running afterwards."""
    options = ("--engine", "vllm", "--run-dir", folder / "run", "--timeout", str(START_TIMEOUT_S))
    launcher = Launcher(folder, "up", bundle.folder, *options)
    try:
        url = re.sub(r"^http: ", "", launcher.line("http: "))
        yield Launched(bundle, url, folder / "run", folder / "run" / "miniature", launcher)
    finally:
        if launcher.process.poll() is None:
            launcher.signal(signal.SIGINT)
            launcher.end(STOP_TIMEOUT_S)
        assert launcher.process.stdout is not None
        launcher.process.stdout.close()


SITE = {
    "name": "test",
    "gpu_request": "none",
    "container": {"runtime": "none"},
    "mpi": "pmi2",
    "exclusive": True,
    "toolkit": sys.executable,
}
SAYS = {"state": "RUNNING", "job": "JobState=RUNNING", "nodes": "localhost idle"}


def supervised(bundle: bundles.Bundle, folder: Path) -> Iterator[Supervised]:
    """The job of a bundle on this machine, from admission until it is told to stop."""
    for name in ("bin", "steps", "says"):
        (folder / name).mkdir()
    for name, script in one_node.SCRIPTS.items():
        file = folder / "bin" / name
        file.write_text(f"#!/bin/sh\n{script.replace(one_node.NODE, 'localhost')}\n")
        file.chmod(0o755)
    for name, text in SAYS.items():
        (folder / "says" / name).write_text(f"{text}\n")
    slurm = bundle.folder / "slurm"
    service_name = json.loads((slurm / "service.json").read_text())["name"]
    assert ENGINE.cpu_build is not None
    made = checkpoint.from_bundle(bundle.folder)
    (folder / "miniature").mkdir()
    cpu_build.write_miniature(ENGINE.cpu_build, made, folder / "miniature")
    program = cpu_build.write_program(ENGINE, folder / "program")
    search = [folder / "bin", program, Path(sys.executable).parent, os.environ["PATH"]]
    variables = {
        "FOLDER": str(folder),
        "PATH": os.pathsep.join(map(str, search)),
        "PYTHONPATH": str(ROOT),
        "CHECKPOINT": str(folder / "miniature"),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_JOB_NAME": service_name,
        "SLURMD_NODENAME": "localhost",
        state.STATE_FOLDER: str(folder / "state"),
        state.FREE_PORTS: "1",
        **ENGINE.cpu_build.variables,
    }
    command = [sys.executable, "-B", str(slurm / "supervisor"), "serve", str(slurm)]
    log = folder / "job.log"
    with log.open("wb") as output:
        job = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    service = folder / "state" / service_name
    run = service / "jobs" / "7"
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not (service / state.ENDPOINT).exists():
            late = time.monotonic() > deadline_s
            if late or job.poll() is not None:
                texts = [path.read_text() for path in (log, *run.glob("*.log"))]
                raise AssertionError("\n".join(texts))
            time.sleep(0.2)
        endpoint = state.read_json(service / state.ENDPOINT) or {}
        url = f"http://{endpoint['host']}:{endpoint['ports']['http']}"
        yield Supervised(bundle, url, run, folder / "miniature", job)
    finally:
        if job.poll() is None:
            (run / state.DRAIN).touch()
            job.wait(STOP_TIMEOUT_S)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    folder = tmp_path_factory.mktemp("llama")
    yield from launched(
        render(folder, "llama", "llama-3.2-1b-instruct", engine_config=LONG), folder
    )


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    folder = tmp_path_factory.mktemp("qwen3-moe")
    yield from supervised(
        render(folder, "qwen3-moe", "qwen3-30b-a3b-fp8", engine_config=LONG), folder
    )


def processes(folder: Path) -> set[int]:
    """Live processes of the job whose scripts and state lie in a folder."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_dead = (path / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            environment = (path / "environ").read_bytes().split(b"\0")
            if not is_dead and f"FOLDER={folder}".encode() in environment:
                found.add(int(path.name))
    return found
