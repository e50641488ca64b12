"""Published deployments pass the smoke checks of the model, served as their start scripts ask."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
import uvicorn
from fastapi import FastAPI

from builder import pipeline
from builder.facts import release as releases
from launch import endpoint, target
from launch import serving as served
from launch.run import Run
from launch.smoke import suite
from launch.target import Target
from tensorrt_llm import options
from tensorrt_llm.commands import serve

# Checks whose outcome depends on the model. Batches are in test_models.py.
CHECKS = {"P2", "P3", "P6", "P7", "P8", "P14", "P17", "P19", "P21", "P21.tools", "P22"}
# What the reference engine does not have of a preset; the table of docs/presets.md says it.
WITHOUT = {"nemotron-3-super-nvfp4-b200": ["engine_config.speculative_config=null"]}

# What a start script calls: it prints its arguments.
STAND_IN = "#!/bin/sh\nprintf '%s\\n' \"$@\"\n"


def arguments(one: Target, folder: Path) -> list[str]:
    """The arguments that the start script gives to the engine's server."""
    program = folder / "bin" / "trtllm-serve"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **one.environment, "PATH": path}
    done = subprocess.run(one.command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@contextmanager
def serving(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The reference engine's command in a thread, from when it listens until it has ended."""
    servers: list[uvicorn.Server] = []
    listens = Event()

    def run(app: FastAPI, listener: socket.socket) -> None:
        servers.append(uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none")))
        listener.listen()
        listens.set()
        servers[0].run(sockets=[listener])

    def command() -> None:
        status.append(serve.main(words))
        listens.set()

    status: list[int] = []
    monkeypatch.setattr(serve, "run", run)
    thread = Thread(target=command)
    thread.start()
    listens.wait()
    assert servers, "the command has ended before it served"
    yield
    servers[0].should_exit = True
    thread.join()
    assert status == [0]


@pytest.mark.parametrize(
    "preset",
    [
        "deepseek-r1-0528-nvfp4-b200",
        "gpt-oss-120b-b200",
        "llama-3.3-70b-fp8-h100",
        "minimax-m2.5-nvfp4-b300",
        "nemotron-3-super-nvfp4-b200",
        "qwen3.5-397b-nvfp4-b300",
    ],
)
def test_a_published_deployment_passes(
    preset: str,
    tmp_path: Path,
    make_miniature: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = pipeline.render(preset, tmp_path / "bundle", WITHOUT.get(preset, ()), False)
    one = target.read(bundle, "trtllm_serve").on_free_ports()
    if "DRAFT_CHECKPOINT" in one.environment:
        one = served.with_miniature(one, "reference", Run(tmp_path, {}))
    else:
        folder = make_miniature(one.environment["CHECKPOINT"])
        one = one.with_environment(CHECKPOINT=str(folder))
    monkeypatch.setattr(options, "release", lambda: releases.load(one.release))
    few = [check for check in suite.POSITIVE if check.id in CHECKS]
    with serving(arguments(one, tmp_path), monkeypatch):
        at = endpoint.from_rehearsal(one, "reference", os.getpid())
        results = suite.run(at, lambda _: None, few)
    assert {result.id for result in results} == CHECKS
    assert [result for result in results if result.outcome == "failed"] == []
    if "DRAFT_CHECKPOINT" in one.environment:
        [drafts] = [result for result in results if result.id == "P19"]
        assert 1 < float(drafts.evidence.split()[0]) < 4  # tokens per step
    asks_for = {"P21": "guided_decoding_backend:", "P21.tools": "--tool_parser"}
    files = "".join(path.read_text() for path in (bundle.folder / "trtllm_serve").iterdir())
    for check, words in asks_for.items():
        [result] = [result for result in results if result.id == check]
        assert (result.outcome == "passed") == (words in files), result
