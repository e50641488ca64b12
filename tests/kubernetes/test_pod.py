"""The pod of each server as it is rendered: its command, its variables, its mounts, its rights.

A real Triton runs in it with a scripted engine, and the stand-in for trtllm-serve.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from builder import pipeline
from launch import engine
from tests.kubernetes import cluster_files
from tests.kubernetes.box import OUTSIDE, PATIENCE_S, Box, Volumes, boxed, need_what_a_box_needs
from tests.model_repository.conftest import find_programs

# For each server: what is rendered beside it, and a question of three tokens.
SERVERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "triton": (
        "targets.triton.key_file=/any",
        "/v2/models/tensorrt_llm/generate",
        {"text_input": "tokens=3", "sampling_param_max_tokens": 3},
    ),
    "trtllm_serve": (
        "targets.trtllm_serve.port=8000",
        "/v1/completions",
        {"model": "llama-tiny", "prompt": "Hello", "max_tokens": 3, "ignore_eos": True},
    ),
}
# What is in their answers.
THREE_TOKENS = {"triton": '"0:0 0:1 0:2"', "trtllm_serve": '"completion_tokens":3'}


def programs(server: str, folder: Path) -> list[Path]:
    """Folders for the front of the path."""
    if server == "triton":
        return find_programs(folder)
    return engine.path_entries("reference", folder, Path)


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def box(server: str, one_layer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    need_what_a_box_needs()
    bundle = tmp_path_factory.mktemp("pod") / "bundle"
    rendered = cluster_files.render(bundle, "llama-tiny", server, SERVERS[server][0])
    [pod] = cluster_files.served_pods(rendered)
    (key := tmp_path_factory.mktemp("key") / "key").write_text("key-of-the-test-0123456789\n")
    maps, claims = cluster_files.config_maps(rendered), {"model": one_layer}
    volumes = Volumes(maps, claims, {"server-key": key.parent})
    with (
        TemporaryDirectory(dir=OUTSIDE) as folder,
        boxed(pod, volumes, programs(server, Path(folder) / "programs")) as found,
    ):
        yield found


def test_the_server_starts_with_no_more_than_its_pod_has(box: Box) -> None:
    """The probes get the answers that they wait for."""
    for probe in ("startup", "readiness", "liveness"):
        box.wait_for(f"{probe}Probe")
    status = Path(f"/proc/{box.first}/status").read_text()
    rights = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Cap"))
    assert int(rights["CapEff"], 16) == 0
    assert "NoNewPrivs:\t1" in status


def test_it_answers(box: Box, server: str) -> None:
    _, path, question = SERVERS[server]
    answer = box.ask(path, "http", json.dumps(question))
    assert answer is not None, box.log
    assert THREE_TOKENS[server] in answer


def test_what_docker_compose_asks_is_answered_too(box: Box, server: str, tmp_path: Path) -> None:
    own = [f"targets.compose.server={server}"]
    bundle = pipeline.render("llama-tiny", tmp_path / "bundle", own, more_targets=["compose"])
    document = yaml.safe_load((bundle.folder / "compose/compose.yaml").read_text())
    _, python, *arguments = document["services"]["server"]["healthcheck"]["test"]
    assert python == "python3"
    done = box.run(*arguments)
    assert done.returncode == 0, done.stderr


def test_it_ends_in_order_when_it_is_asked_to(box: Box) -> None:
    """In less time than its pod has, without a complaint about a place that it could not write."""
    box.send(signal.SIGTERM)
    assert box.process.wait(PATIENCE_S) == 0, box.log
    assert "Read-only file system" not in box.log
