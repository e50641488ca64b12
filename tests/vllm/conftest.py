"""Bundles for vLLM, served by vLLM itself: its CPU build on miniatures."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from builder import bundle as bundles
from builder import pipeline
from builder.facts import engines
from launch import cpu_build
from supervisor.ports import free_ports
from tests.conftest import NO_VLLM
from tests.launch.conftest import Launcher

ENGINE = engines.load("vllm")
# What a machine that does other things as well may take: three processes import PyTorch.
START_TIMEOUT_S = 400
DEPLOYMENT = {
    "hardware": {"gpu": "h100", "num_gpus": 1},
    "engine": {"name": "vllm", "release": "0.32.0"},
    "workload": {"isl": 512, "osl": 128, "concurrency": 16},
}


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
    document["targets"] = {"vllm_serve": {"port": free_ports(1)[0]}, "monitoring": {}}
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "deployment.yaml"
    file.write_text(json.dumps({**document, **changes}))
    return pipeline.render(str(file), folder / "bundle", [], False)


@dataclass(frozen=True)
class Served:
    """A bundle that vLLM serves, where it does, and what its launcher left in its folder."""

    bundle: bundles.Bundle
    launcher: Launcher
    url: str
    run: Path

    @property
    def miniature(self) -> Path:
        return self.run / "miniature"

    def post(self, path: str, **body: Any) -> Any:
        answer = httpx.post(f"{self.url}{path}", json=body, timeout=60, trust_env=False)
        answer.raise_for_status()
        return answer.json()


def serve(bundle: bundles.Bundle, folder: Path) -> Iterator[Served]:
    """`launch up` of a bundle, until it is told to stop; it must not be running afterwards."""
    folder.mkdir()
    options = ("--engine", "vllm", "--run-dir", folder / "run", "--timeout", str(START_TIMEOUT_S))
    launcher = Launcher(folder, "up", bundle.folder, *options)
    try:
        url = re.sub(r"^http: ", "", launcher.line("http: "))
        yield Served(bundle, launcher, url, folder / "run")
    finally:
        if launcher.process.poll() is None:
            launcher.signal(signal.SIGINT)
            launcher.end(120)
        assert launcher.process.stdout is not None
        launcher.process.stdout.close()
