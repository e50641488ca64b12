"""The pod of each server as it is rendered: its command, its variables, its mounts, its rights.

A real Triton runs in it with a scripted engine, and the stand-in for trtllm-serve.
What a kubelet does is done by hand: a root that can only be read, the volumes at their places, a
user without rights, processes and a network of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import pipeline
from launch import engine
from tests.conftest import ROOT
from tests.kubernetes import cluster_files
from tests.kubernetes.conftest import tool
from tests.kubernetes.test_objects import pod_files
from tests.model_repository.conftest import find_programs

PATIENCE_S = 60.0
SECRET = "key-of-the-test-0123456789"

# A root of two layers: the machine's, which cannot be written, and the places of volumes.
ENTER = """\
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$BOX/layers"
mkdir "$BOX/layers/upper" "$BOX/layers/work"
layers="lowerdir=/,upperdir=$BOX/layers/upper,workdir=$BOX/layers/work"
mount -t overlay overlay -o "$layers" "$BOX/root"
cd "$BOX/root"
mount -t proc proc proc
mount --rbind /dev dev
while read -r source place mode; do
  mkdir -p ".$place"
  if [[ $source == tmpfs ]]; then
    mount -t tmpfs -o mode=1777 tmpfs ".$place"
  else
    mount --bind "$source" ".$place"
    [[ $mode != ro ]] || mount -o remount,bind,ro ".$place"
  fi
done <"$BOX/mounts"
mount -o remount,ro .
ip link set lo up
pivot_root . . && umount -l .
cd /
exec unshare --user --map-user=1000 --map-group=1000 setpriv --no-new-privs "$@"
"""
GET = """\
import sys, urllib.request
kind = {"Content-Type": "application/json"}
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode() or None, kind)
sys.stdout.write(urllib.request.urlopen(request, timeout=20).read().decode())
"""


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


@dataclass(frozen=True, slots=True)
class Box:
    """A running pod; `container` is its container as it is rendered."""

    server: str
    folder: Path
    container: Mapping[str, Any]
    process: subprocess.Popen[bytes]

    @property
    def first(self) -> int:
        """Its first process, as the machine sees it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        [found] = children.read_text().split()
        return int(found)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def ask(self, path: str, port: str | int, body: str = "") -> str | None:
        """An answer of 200 from inside the pod's network."""
        ports = {row["name"]: row["containerPort"] for row in self.container["ports"]}
        url = f"http://127.0.0.1:{ports.get(str(port), port)}{path}"
        done = self.run("-c", GET, url, body)
        return done.stdout if done.returncode == 0 else None

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Python in the pod's network."""
        network = ["nsenter", f"--net=/proc/{self.process.pid}/ns/net"]
        command = [*network, sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def wait_for(self, probe: str) -> None:
        """Until a probe of the container is content."""
        http = self.container[f"{probe}Probe"]["httpGet"]
        deadline = time.monotonic() + PATIENCE_S
        while self.ask(http["path"], http["port"]) is None:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.2)


def mounts(rendered: Path, pod: Mapping[str, Any], model: Path, folder: Path) -> Iterator[str]:
    """A line for each mount of the container: what, where, and whether it can be written."""
    volumes = {row["name"]: row for row in pod["volumes"]}
    for mount in pod["containers"][0]["volumeMounts"]:
        volume = volumes[mount["name"]]
        mode = "ro" if mount.get("readOnly") else "rw"
        source = folder / mount["name"]
        if "emptyDir" in volume:
            yield f"tmpfs {mount['mountPath']} {mode}"
            continue
        if mount["name"] == "model":
            yield f"{model} {mount['mountPath']} {mode}"
            continue
        source.mkdir()
        if "projected" in volume:
            for path, (data, bits) in pod_files(rendered, pod).items():
                (source / path).parent.mkdir(parents=True, exist_ok=True)
                (source / path).write_bytes(data)
                (source / path).chmod(bits)
        if "secret" in volume:
            (source / "key").write_text(f"{SECRET}\n")
        yield f"{source} {mount['mountPath']} {mode}"


@pytest.fixture(scope="module", params=SERVERS)
def box(request: pytest.FixtureRequest, make_miniature: Callable[[str], Path]) -> Iterator[Box]:
    server: str = request.param
    if os.getuid() != 0:
        pytest.skip("only root may make the mounts of a pod")
    for name in ("ip", "nsenter", "pivot_root", "setpriv", "unshare"):
        tool(name)
    with ExitStack() as stack:
        # Not in /tmp, which is the pod's own.
        folder = Path("/var/tmp") / f"pod-{uuid.uuid4().hex[:8]}"
        for name in ("", "layers", "root"):
            (folder / name).mkdir()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        rendered = cluster_files.render(
            folder / "bundle-files", "llama-tiny", server, SERVERS[server][0]
        )
        [pod] = cluster_files.served_pods(rendered)
        container = pod["containers"][0]
        lines = mounts(rendered, pod, make_miniature("llama-tiny"), folder)
        # The checkout stays in sight where it lies in a folder that the pod has for itself.
        (folder / "mounts").write_text("\n".join([*lines, f"{ROOT} {ROOT} ro", ""]))
        found_programs = map(str, programs(server, folder / "programs"))
        path = os.pathsep.join([*found_programs, os.environ["PATH"]])
        variables = {row["name"]: row["value"] for row in container["env"]}
        alone = ("--mount", "--uts", "--ipc", "--net", "--pid", "--fork")
        command = ["unshare", *alone, "bash", "-c", ENTER, "enter", *container["command"]]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env={**variables, "PATH": path, "BOX": str(folder)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        found = Box(server, folder, container, process)
        yield found
        if process.poll() is None:
            os.kill(found.first, signal.SIGKILL)
        process.wait(PATIENCE_S)


def test_the_server_starts_with_no_more_than_its_pod_has(box: Box) -> None:
    """The probes get the answers that they wait for."""
    for probe in ("startup", "readiness", "liveness"):
        box.wait_for(probe)
    status = Path(f"/proc/{box.first}/status").read_text()
    rights = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Cap"))
    assert int(rights["CapEff"], 16) == 0
    assert "NoNewPrivs:\t1" in status


def test_it_answers(box: Box) -> None:
    _, path, question = SERVERS[box.server]
    answer = box.ask(path, "http", json.dumps(question))
    assert answer is not None, box.log
    assert THREE_TOKENS[box.server] in answer


def test_what_docker_compose_asks_is_answered_too(box: Box, tmp_path: Path) -> None:
    own = [f"targets.compose.server={box.server}"]
    bundle = pipeline.render("llama-tiny", tmp_path / "bundle", own, more_targets=["compose"])
    document = yaml.safe_load((bundle.folder / "compose/compose.yaml").read_text())
    _, python, *arguments = document["services"]["server"]["healthcheck"]["test"]
    assert python == "python3"
    done = box.run(*arguments)
    assert done.returncode == 0, done.stderr


def test_it_ends_in_order_when_it_is_asked_to(box: Box) -> None:
    """In less time than its pod has, without a complaint about a place that it could not write."""
    os.kill(box.first, signal.SIGTERM)
    assert box.process.wait(PATIENCE_S) == 0, box.log
    assert "Read-only file system" not in box.log
