"""The runbook's commands for Docker Compose, typed as they are printed, with a real Docker engine.

The container has no GPU, and its image holds nothing: programs of this machine run in it, a real
Triton with a scripted engine and the stand-in for trtllm-serve. All else is as the bundle says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from builder import pipeline
from builder.bundle import Bundle
from tests import watcher
from tests.conftest import ROOT
from tests.handoff import docker_engine
from tests.handoff.docker_engine import Engine
from tests.handoff.shell import Shell
from tests.handoff.test_runbook_commands import blocks, typed
from tests.kubernetes.box import GET

USER = 1000
CHAPTERS = ("setup", "compose")


class Served(NamedTuple):
    """A server: how it is rendered, a question to its HTTP port, and a part of the answer."""

    options: dict[str, str]
    path: str
    question: dict[str, Any]
    answer: str


SERVERS = {
    "triton": Served(
        {"key_file": "/any"},
        "/v2/models/tensorrt_llm/generate",
        {"text_input": "Hello", "sampling_param_max_tokens": 3},
        "text_output",
    ),
    "trtllm_serve": Served(
        {},
        "/v1/completions",
        {"model": "llama-tiny", "prompt": "Hello", "max_tokens": 3},
        "completion_tokens",
    ),
}


@pytest.fixture
def engine(with_script: Mapping[str, str]) -> Iterator[Engine]:
    if reason := docker_engine.why_not():
        pytest.skip(f"no Docker engine on this machine: {reason}")
    own = with_script["PATH"].removesuffix(os.environ["PATH"]).strip(os.pathsep)
    installed = {Path(entry).parent for entry in own.split(os.pathsep)}
    # Not in /tmp, which is the container's own, and short: the name of a socket has to be.
    folder = Path("/var/tmp") / watcher.unique("docker")
    folder.mkdir()
    try:
        with Engine(folder, [Path("/usr"), Path(sys.base_prefix), ROOT, *installed]) as running:
            yield running
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a bundle for Docker Compose and its next one lie, with all that they need."""

    bundle: Bundle
    folder: Path
    environment: Mapping[str, str]

    @property
    def compose(self) -> str:
        return f"docker compose --file {self.bundle.folder}/compose/compose.yaml"


Prepare = Callable[[str], Machine]


@pytest.fixture
def prepare(
    engine: Engine,
    with_engine: Mapping[str, str],
    with_script: Mapping[str, str],
    one_layer: Path,
    tmp_path: Path,
) -> Prepare:
    def write(server: str) -> Machine:
        asked = {
            "name": "chat",
            "checkpoint": "llama-tiny",
            "hardware": {"gpu": "h100", "num_gpus": 1},
            "engine": {"release": "1.2.1"},
            "workload": {"isl": 32, "osl": 8, "concurrency": 8},
            "targets": {server: SERVERS[server].options, "compose": {}, "handoff": {}},
        }
        (file := tmp_path / "chat.yaml").write_text(yaml.safe_dump(asked))
        pipeline.render(str(file), tmp_path / "chat-next", ["workload.concurrency=4"])
        bundle = pipeline.render(str(file), tmp_path / "chat")
        document = yaml.safe_load((bundle.folder / "compose" / "compose.yaml").read_text())
        installed = with_script if server == "triton" else with_engine
        image = document["services"]["server"]["image"]
        variables = ("PATH", "TENSORRT_LLM_REFERENCE_RELEASE")
        engine.make_image(image, {name: installed[name] for name in variables})
        (key := tmp_path / "key").write_text("key-of-the-test-0123456789\n")
        key.chmod(0o600)
        os.chown(key, USER, USER)
        own = {"CHECKPOINT_FOLDER": str(one_layer), "SERVER_KEY_FILE": str(key)}
        return Machine(bundle, tmp_path, {**with_engine, **engine.environment, **own})

    return write


def check(engine: Engine, server: str) -> None:
    """The published port answers."""
    _, path, question, answer = SERVERS[server]
    asked = (f"http://127.0.0.1:8000{path}", json.dumps(question))
    command = engine.inside(sys.executable, "-c", GET, *asked)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer in done.stdout, done.stderr


@pytest.mark.parametrize("server", SERVERS)
def test_every_command_of_docker_compose_does_what_the_runbook_says(
    server: str, prepare: Prepare, engine: Engine
) -> None:
    """Both containers, that of the bundle and that of the next one, end in order."""
    machine = prepare(server)
    *commands, down = [block for block in blocks(machine.bundle) if block.chapter in CHAPTERS]
    with Shell(machine.folder, machine.environment) as shell:
        typed(shell, commands)
        check(engine, server)
        typed(shell, [down])
    assert engine.deaths() == ["0", "0"]
    assert engine.client("ps", "--all", "--quiet") == ""
    assert "chat" not in engine.client("network", "ls")


def test_a_server_has_a_gpu_and_no_rights_until_another_bundle_takes_its_place(
    prepare: Prepare, engine: Engine
) -> None:
    """It is started again when it dies: the empty places where it may write are its own again."""
    machine = prepare("triton")
    kill = "kill -KILL $(cat /proc/1/task/1/children)"
    with Shell(machine.folder, machine.environment) as shell:
        shell.type(f"{machine.compose} up --detach --wait")
        status = shell.type(f"{machine.compose} exec server cat /proc/1/status")
        variables = shell.type(f"{machine.compose} exec server cat /proc/1/environ").split("\0")
        touch = f"{machine.compose} exec --user 0 server touch /file || echo refused"
        written = shell.type(touch)
        shell.type(f"{machine.compose} exec server touch /tmp/file /home/server/file")
        shell.type(f"{machine.compose} exec server sh -c '{kill}' || echo it has ended")
        state = "docker inspect --format '{{.RestartCount}} {{.State.Status}}' chat-server-1"
        shell.type(f"until {state} | grep --line-regexp '1 running'; do sleep 0.1; done")
        before = engine.client("ps", "--quiet")
        shell.type(f"{machine.compose} up --detach --wait")
        assert engine.client("ps", "--quiet") == before
        assert engine.deaths() == ["137"]
        check(engine, "triton")
        shell.type(f"mv chat chat-previous; mv chat-next chat; {machine.compose} up --detach")
    assert engine.client("ps", "--quiet") not in (before, "")
    assert f"Uid:\t{USER}\t{USER}" in status
    assert "CapBnd:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "NVIDIA_VISIBLE_DEVICES=0" in variables
    assert "Read-only" in written and "refused" in written
