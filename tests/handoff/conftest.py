"""Bundles with a runbook, and a machine on which the engine is installed for them to run on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import pipeline, verification
from builder.bundle import Bundle
from launch import engine, triton
from supervisor.ports import free_ports, listen
from tests.conftest import ROOT
from tests.launch.conftest import FEW_CHECKS
from tests.model_repository.conftest import find_programs
from tests.monitoring.conftest import start as start

# The second server on this machine listens so far from the first.
STEP = 200


@pytest.fixture(scope="session")
def with_engine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a shell on a machine where engine, server and toolkit are installed."""
    folder = tmp_path_factory.mktemp("engine")
    entries = engine.path_entries("reference", folder / "python", lambda path: path)
    if found := triton.prepare(folder / "tritonserver"):
        entries.append(found)
    path = [*map(str, entries), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {
        **os.environ,
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{FEW_CHECKS}",
        "TENSORRT_LLM_REFERENCE_RELEASE": "1.2.1",
    }


@pytest.fixture(scope="session")
def with_script(
    with_engine: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The same where a scripted engine, which starts at once, comes before the reference engine."""
    scripted = find_programs(tmp_path_factory.mktemp("scripted"))
    return {**with_engine, "PATH": os.pathsep.join([*map(str, scripted), with_engine["PATH"]])}


def free_port() -> int:
    """A port that is free, and the one of a second server beside it too."""
    while True:
        [port] = free_ports(1)
        with suppress(OSError), listen("127.0.0.1", port + STEP):
            return port


Generations = Callable[[dict[str, Any]], Bundle]


@pytest.fixture
def generations(tmp_path: Path, one_layer: Path) -> Generations:
    """Three bundles of a deployment where its runbook has them: this, the last and the next one."""

    def render(targets: dict[str, Any]) -> Bundle:
        name = f"runbook-{uuid.uuid4().hex[:8]}"
        request = {
            "name": name,
            "checkpoint": str(shutil.copytree(one_layer, tmp_path / "my model")),
            "hardware": {"gpu": "h100", "num_gpus": 1},
            "engine": {"release": "1.2.1"},
            "workload": {"isl": 32, "osl": 8, "concurrency": 8},
            "targets": {**targets, "handoff": {}},
        }
        (tmp_path / "request.yaml").write_text(yaml.safe_dump(request))
        for suffix in ("-previous", "-next"):
            settings = [f"notes=[{suffix}]"]
            pipeline.render(str(tmp_path / "request.yaml"), tmp_path / f"{name}{suffix}", settings)
        return pipeline.render(str(tmp_path / "request.yaml"), tmp_path / name)

    return render


@pytest.fixture
def signed(tmp_path: Path) -> Callable[[Bundle], None]:
    """Signs a bundle, and leaves the list of those who may beside it."""

    def sign(bundle: Bundle) -> None:
        key = tmp_path / "key"
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
        subprocess.run(make, check=True)
        public = (tmp_path / "key.pub").read_text()
        (tmp_path / "allowed_signers").write_text(f"maker@example.org {public}")
        verification.sign(bundle.folder, key)

    return sign
