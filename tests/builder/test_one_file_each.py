"""A GPU, a model, a release and a preset are one file each: added to a copy of the toolkit, they go
through plan, check and every target."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.documents import DATA
from tests.conftest import ROOT

GPU, MODEL, RELEASE, PRESET = "z900", "example/Tiny-Two", "1.2.9", "tiny-two-z900"
LABEL = "NVIDIA-Z900-96GB"
FILES = {
    "gpu": f"hardware/{GPU}.yaml",
    "model": "models/tiny-two.yaml",
    "release": f"releases/{RELEASE}.json",
    "preset": f"presets/{PRESET}.yaml",
}
TARGETS = ["trtllm_serve", "triton", "slurm", "kubernetes", "compose", "monitoring", "handoff"]
SITE = {
    "name": "here",
    "gpu_request": "gres",
    "container": {"runtime": "none"},
    "mpi": "pmix",
    "exclusive": True,
}
IMAGE = "registry.example/tritonserver:26.07-trtllm-python-py3"
Toolkit = Callable[..., subprocess.CompletedProcess[str]]


def contents() -> dict[str, str]:
    """The four files, each written as a person would: after one that ships."""
    gpu = (DATA / "hardware" / "h200.yaml").read_text()
    model = (DATA / "models" / "llama-tiny.yaml").read_text()
    release = json.loads((DATA / "releases" / "1.2.1.json").read_text())
    preset = {
        "name": PRESET,
        "checkpoint": MODEL,
        "hardware": {"gpu": GPU, "num_gpus": 1},
        "engine": {"release": RELEASE},
        "workload": {"isl": 128, "osl": 64, "concurrency": 4},
        "images": {"triton": IMAGE},
        "targets": {
            **dict.fromkeys(TARGETS),
            "slurm": {"server": "triton", "site": SITE},
            "kubernetes": {"server": "triton", "model": {"claim": "models"}},
            "compose": {"server": "triton"},
        },
    }
    return {
        "gpu": gpu.replace("name: h200", f"name: {GPU}").replace('"NVIDIA-H200"', f'"{LABEL}"'),
        "model": model.replace("name: llama-tiny", f"name: {MODEL}"),
        "release": json.dumps({**release, "release": RELEASE}, indent=1),
        "preset": json.dumps(preset, indent=1),  # JSON is YAML
    }


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toolkit")
    for part in ("builder", "templates", "model_repository", "supervisor"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for kind, text in contents().items():
        (folder / "builder" / "data" / FILES[kind]).write_text(text)
    return folder


@pytest.fixture
def toolkit(checkout: Path, tmp_path: Path) -> Toolkit:
    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "builder", *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return run


def test_one_file_each_is_all_that_every_target_needs(toolkit: Toolkit, tmp_path: Path) -> None:
    done = toolkit("render", PRESET, "-o", "bundle")
    assert done.returncode == 0, done.stderr
    bundle = tmp_path / "bundle"
    rendered = {path.relative_to(bundle).parts[0] for path in bundle.rglob("*") if path.is_file()}
    assert set(TARGETS) <= rendered
    manifest = json.loads((bundle / "manifest.json").read_text())
    for name in (FILES["gpu"], FILES["model"], FILES["release"]):
        assert f"data/{name}" in manifest["inputs"]["files"]
    assert LABEL in "".join(path.read_text() for path in (bundle / "kubernetes").rglob("*.yaml"))
    checked = toolkit("check", "bundle", "--gpu", GPU, "--release", RELEASE)
    assert checked.returncode == 0, checked.stdout


def test_what_was_added_is_listed(toolkit: Toolkit) -> None:
    listed = json.loads(toolkit("presets", "--json").stdout)
    (row,) = (row for row in listed if row["name"] == PRESET)
    assert (row["model"], row["gpu"], row["release"]) == (MODEL, GPU, RELEASE)
    assert RELEASE in toolkit("release", "list").stdout
    assert toolkit("inspect", MODEL).returncode == 0
