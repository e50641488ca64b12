"""The runbook's commands for Kubernetes, typed as they are printed, with a real kubectl.

Behind it are a stand-in for the API server, and a node that runs the pods with a real Triton.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

from builder import pipeline
from tests.conftest import ABSENT
from tests.handoff import runbook
from tests.handoff.runbook import Block
from tests.handoff.shell import Shell
from tests.handoff.test_runbook_commands import typed
from tests.kubernetes import groups, schemas
from tests.kubernetes.box import OUTSIDE, need_what_a_box_needs
from tests.kubernetes.conftest import kubectl as kubectl
from tests.kubernetes.conftest import tool
from tests.kubernetes.node import Node, cluster
from tests.model_repository.conftest import find_programs

# For a number of nodes, what one server has on them.
MODELS = {1: "llama-tiny", 2: "openai/gpt-oss-120b"}
GPUS = {1: 1, 2: 8}
# The bundles where the runbook has them, each planned for another load.
CONCURRENCY = {"chat": 16, "chat-next": 8, "chat-previous": 4}
SERVES_AFTER = {
    "Make the objects, and wait until they are ready": "chat",
    "Let the new bundle take over, and wait until it has": "chat-next",
    "Let the previous bundle take over again, and wait until it has": "chat-previous",
}
STOP = "Drain and delete everything"
SETTINGS = "triton/model_repository/tensorrt_llm/1/model.yaml"
# The first rank runs the command, the others wait for its end.
LAUNCHER = """\
#!/usr/bin/env bash
export TLLM_SPAWN_PROXY_PROCESS=1
run='import socket, subprocess, sys
with socket.create_server(("", 2300)):
    sys.exit(subprocess.call(sys.argv[1:]))'
[[ $OMPI_COMM_WORLD_RANK != 0 ]] || exec python3 -c "$run" "$@"
until exec 3<>"/dev/tcp/$LWS_LEADER_ADDRESS/2300"; do sleep 0.2; done 2>/dev/null
cat <&3 2>/dev/null || true
"""
RUNNING = re.compile(r"^trtllm_model_requests_running\{.*\} [1-9]", re.MULTILINE)


@pytest.fixture(params=MODELS)
def nodes(request: pytest.FixtureRequest) -> int:
    """Of each server."""
    found: int = request.param
    if found > 1 and not schemas.definitions_are_here():
        pytest.skip(ABSENT)
    return found


@pytest.fixture
def commands(nodes: int, tmp_path: Path) -> list[Block]:
    """Those of the middle one of three bundles."""
    request = {
        "name": "chat",
        "checkpoint": MODELS[nodes],
        "hardware": {"gpu": "gb200", "num_gpus": GPUS[nodes]},
        "engine": {"release": "1.2.1"},
        "workload": {"isl": 512, "osl": 128, "concurrency": 1},
        "targets": {"triton": {}, "kubernetes": {"deregistration_s": 1}, "handoff": {}},
    }
    file = tmp_path / "request.yaml"
    file.write_text(yaml.safe_dump(request))
    for name, load in CONCURRENCY.items():
        pipeline.render(str(file), tmp_path / name, [f"workload.concurrency={load}"])
    blocks = runbook.read(tmp_path / "chat" / "handoff" / "runbook.md")
    return [block for block in blocks if block.chapter in ("setup", "kubernetes")]


@pytest.fixture
def node(nodes: int, tmp_path: Path, one_layer: Path) -> Iterator[Node]:
    """With the GPUs that one server takes, and an image with what a group needs."""
    need_what_a_box_needs()
    for name in ("mpirun", "openssl") if nodes > 1 else ():
        tool(name)
    groups.make_key(tmp_path / "key")
    claims, secrets = {"model": one_layer}, {"server-group": tmp_path / "key"}
    with TemporaryDirectory(dir=OUTSIDE) as folder:
        launcher = Path(folder) / "bin" / "trtllm-llmapi-launch"
        launcher.parent.mkdir()
        launcher.write_text(LAUNCHER)
        launcher.chmod(0o755)
        programs = [launcher.parent, *find_programs(Path(folder) / "programs")]
        with cluster(tmp_path, claims, secrets, programs, GPUS[nodes]) as running:
            yield running


@pytest.fixture
def shell(node: Node, kubectl: Path, tmp_path: Path) -> Iterator[Shell]:
    own = {
        "PATH": f"{kubectl.parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        "KUBECACHEDIR": str(tmp_path / "cache"),
    }
    with Shell(tmp_path, {**os.environ, **own}) as opened:
        yield opened


def answer(node: Node, script: str) -> str:
    """What a client gets at the address of the service."""
    question = json.dumps({"text_input": script, "sampling_param_max_tokens": 100})
    found = node.ask("chat", "/v2/models/tensorrt_llm/generate", question)
    assert found is not None, f"{script}: no answer"
    return found


def ask_for_long(node: Node, clients: Executor) -> Future[str]:
    """A request that is under way, for longer than a pod has until it is asked to end."""
    client = clients.submit(answer, node, "tokens=60 step_ms=100")
    while not (client.done() or RUNNING.search(node.ask("chat", "/metrics", port="metrics") or "")):
        time.sleep(0.1)
    return client


def test_every_command_under_kubernetes_does_what_the_runbook_says(
    nodes: int, commands: list[Block], node: Node, shell: Shell, tmp_path: Path
) -> None:
    """Whatever replaces or stops a server, the request that is under way gets its whole answer."""
    before = node.objects.places()
    with ThreadPoolExecutor() as clients:
        for block in commands:
            ends_one = node.boxes and (block.title in SERVES_AFTER or block.title == STOP)
            client = ask_for_long(node, clients) if ends_one else None
            output = typed(shell, [block])
            assert client is None or "0:59" in client.result()
            if bundle := SERVES_AFTER.get(block.title):
                assert len(node.boxes) == nodes
                settings = {box.read(f"/bundle/{SETTINGS}") for box in node.boxes.values()}
                assert settings == {(tmp_path / bundle / SETTINGS).read_bytes()}
                assert '"0:0 0:1 0:2"' in answer(node, "tokens=3")
            if "kubectl logs" in block.script:
                assert "Started HTTPService" in output
    assert node.exit_codes == [0] * len(SERVES_AFTER) * nodes
    assert [place for place in node.objects.places() if not place.startswith("events/")] == before


def test_the_three_bundles_differ_where_it_looks(commands: list[Block], tmp_path: Path) -> None:
    assert {block.title for block in commands} >= {*SERVES_AFTER, STOP}
    assert len({(tmp_path / name / SETTINGS).read_bytes() for name in CONCURRENCY}) == 3
