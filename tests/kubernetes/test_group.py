"""A server on two pods: real Open MPI between hosts, without SSH, with nothing but what a pod has.

Each pod is a network, a host name and a set of mounts of its own, as user 1000 without rights, on a
root that can only be read. The engine's programs are stand-ins on the path.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import watcher
from tests.kubernetes import cluster_files, groups
from tests.kubernetes.cluster_files import SEVERAL_NODES
from tests.kubernetes.conftest import tool
from tests.kubernetes.network import Host, network

PATIENCE_S = 120.0
GROUP = "llama-group-0"
DOMAIN = "llama-group.namespace"
NAMES = (GROUP, f"{GROUP}-1")
RANKS_PER_NODE = 2

# The first rank runs the command, the others wait for its good end, as the engine's own do.
LAUNCHER = """\
#!/usr/bin/env bash
rank="$OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE"
echo "$rank $(hostname) $(id -u) $POD_WORD" >>"$SHARED/ranks"
export TLLM_SPAWN_PROXY_PROCESS=1
[[ $OMPI_COMM_WORLD_RANK != 0 ]] || { "$@" && touch "$SHARED/done"; }
until [[ -e $SHARED/done ]]; do sleep 0.1; done
"""
# Serves until it is asked to stop, and then as long as it takes to end what it has.
SERVER = """\
#!/usr/bin/env bash
trap 'sleep 1; echo drained >>"$SHARED/server"; exit 0' TERM
echo "up $*" >>"$SHARED/server"
until [[ -e $SHARED/fail ]]; do sleep 0.1; done
exit 3
"""
# The image has none of them that works.
SSH = """\
#!/usr/bin/env bash
echo "$0 was called" >>"$SHARED/server"
exit 97
"""
# What a pod is: everything may be read, its own folders written.
ENTER = """\
set -e
hostname "$NAME"
mount --make-rprivate /
mount --bind "$SHARED/passwd" /etc/passwd
mount --bind "$SHARED/hosts" /etc/hosts
for folder in "$SHARED" "$HOME"; do mount --bind "$folder" "$folder"; done
mount -o remount,bind,ro /
exec setpriv --reuid 1000 --regid 1000 --clear-groups --no-new-privs --bounding-set -all \\
  --inh-caps -all "$@"
"""


@dataclass
class Pods:
    """The pods of a group; `shared` is for the stand-ins alone."""

    folder: Path
    hosts: list[Host]
    bundle: Path
    variables: dict[str, str]
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    def log(self, index: int) -> str:
        return (self.folder / f"log{index}").read_text()

    def start(self, index: int, **changes: str) -> None:
        home = self.folder / f"home{index}"
        (home / "tmp").mkdir(parents=True)
        for path in (home, home / "tmp"):
            os.chown(path, 1000, 1000)
        own = {
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "NAME": NAMES[index],
            "SHARED": str(self.shared),
            "POD_WORD": f"word {index}",
            **groups.variables(f"{GROUP}.{DOMAIN}", len(NAMES), index),
            "PATH": f"{self.shared}/bin:/usr/bin:/bin",
        }
        inside = ["bash", f"{self.bundle}/kubernetes/group.sh"]
        alone = ["unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc"]
        command = ["ip", "netns", "exec", self.hosts[index].namespace, *alone]
        with (self.folder / f"log{index}").open("wb") as log:
            self.processes[index] = subprocess.Popen(
                [*command, "bash", "-c", ENTER, "enter", *inside],
                env={**self.variables, **own, **changes, **watcher.mark()},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_for_lines(self, name: str, count: int) -> list[str]:
        deadline = time.monotonic() + PATIENCE_S
        path = self.shared / name
        while not path.exists() or len(lines := path.read_text().splitlines()) < count:
            for index, process in self.processes.items():
                assert process.poll() is None, self.log(index)
            assert time.monotonic() < deadline, [self.log(index) for index in self.processes]
            time.sleep(0.05)
        return lines

    def wait_until_it_listens(self, index: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        table = Path(f"/proc/{self.processes[index].pid}/net/tcp6")  # of the pod's own network
        listener = f":{int(self.variables['GROUP_PORT']):04X} {'0' * 32}:0000 0A "
        while listener not in table.read_text():
            assert time.monotonic() < deadline, self.log(index)
            time.sleep(0.05)

    def signal(self, index: int, number: signal.Signals) -> None:
        """To the first process in the pod, as Kubernetes sends it; nothing there outlives that."""
        outside = self.processes[index].pid
        [first] = Path(f"/proc/{outside}/task/{outside}/children").read_text().split()
        os.kill(int(first), number)

    def end(self, index: int) -> int:
        return self.processes[index].wait(PATIENCE_S)

    def close(self) -> None:
        for index, process in self.processes.items():
            if process.poll() is None:
                self.signal(index, signal.SIGKILL)
            process.wait(PATIENCE_S)


def mount_bundle(folder: Path, rendered: Path) -> Path:
    """The files as a volume of ConfigMaps has them: behind links."""
    data = folder / "..data-1"
    for name in ("kubernetes", "trtllm_serve"):
        shutil.copytree(rendered.parent / name, data / name)
        (folder / name).symlink_to(f"..data/{name}")
    (folder / "..data").symlink_to(data.name)
    return folder


def lay_stand_ins(folder: Path) -> Path:
    """What the image would have: the engine's programs, and the name of the user."""
    (folder / "bin").mkdir(parents=True)
    os.chown(folder, 1000, 1000)
    for name, text in {
        "trtllm-llmapi-launch": LAUNCHER,
        "trtllm-serve": SERVER,
        "ssh": SSH,
        "sshd": SSH,
    }.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    (folder / "passwd").write_text("server:x:1000:1000::/nonexistent:/bin/bash\n")
    return folder


@pytest.fixture
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    if os.getuid() != 0:
        pytest.skip("only root may give each pod a network of its own")
    for name in ("mpirun", "openssl", "ip", "unshare", "setpriv"):
        tool(name)
    rendered = cluster_files.render(
        tmp_path_factory.mktemp("group") / "bundle",
        "deepseek-v3.2-nvfp4-gb200",
        "trtllm_serve",
        *SEVERAL_NODES,
    )
    [group] = cluster_files.of_kind(rendered, "LeaderWorkerSet")
    leader, _ = cluster_files.pods(group)
    variables = {row["name"]: row["value"] for row in leader["containers"][0]["env"]}
    with ExitStack() as stack:
        folder = Path("/var/tmp") / watcher.unique("group")
        folder.mkdir()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        shared = lay_stand_ins(folder / "shared")
        joined = stack.enter_context(network(shared))
        hosts = [stack.enter_context(joined.joined(name, DOMAIN)) for name in NAMES]
        groups.make_key(folder / "key")
        bundle = mount_bundle(folder / "bundle", rendered)
        own = {
            "GROUP_SCRIPT": f"{bundle}/trtllm_serve/serve.sh",
            "GROUP_RANKS_PER_NODE": str(RANKS_PER_NODE),
            "GROUP_TLS_FOLDER": str(folder / "key"),
        }
        found = Pods(folder, hosts, bundle, {**variables, **own})
        stack.callback(found.close)
        yield found


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_run_on_all_pods_as_nobody_special(pods: Pods, first: int) -> None:
    """Whichever pod is there first, each rank has the variables of its own pod."""
    pods.start(first)
    time.sleep(1)
    pods.start(1 - first)
    lines = sorted(pods.wait_for_lines("ranks", len(NAMES) * RANKS_PER_NODE))
    assert lines == [
        f"0 4 {NAMES[0]} 1000 word 0",
        f"1 4 {NAMES[0]} 1000 word 0",
        f"2 4 {NAMES[1]} 1000 word 1",
        f"3 4 {NAMES[1]} 1000 word 1",
    ]
    [up] = pods.wait_for_lines("server", 1)
    assert up.startswith("up serve /models/DeepSeek-V3.2-NVFP4 --host 0.0.0.0")


def test_the_group_ends_with_the_last_answer(pods: Pods) -> None:
    """All pods are asked to end at once."""
    pods.start(0)
    pods.start(1)
    pods.wait_for_lines("server", 1)
    for index in (1, 0):
        pods.signal(index, signal.SIGTERM)
    assert [pods.end(0), pods.end(1)] == [0, 0], pods.log(0) + pods.log(1)
    assert (pods.shared / "server").read_text().splitlines()[1:] == ["drained"]


def test_the_first_pod_ends_as_its_server_does(pods: Pods) -> None:
    """Its ranks would wait for ever."""
    pods.start(0, GROUP_REST_S="2")
    pods.start(1)
    pods.wait_for_lines("server", 1)
    (pods.shared / "fail").touch()
    assert pods.end(0) == 3


def test_a_pod_with_another_certificate_is_not_trusted(pods: Pods) -> None:
    groups.make_key(pods.folder / "other")
    pods.start(1, GROUP_TLS_FOLDER=str(pods.folder / "other"))
    pods.wait_until_it_listens(1)
    pods.start(0, GROUP_START_TIMEOUT_S="3")
    assert pods.end(0) == 2
    assert "does not answer" in pods.log(0)
    assert "certificate verify failed" in pods.log(0)


def test_a_pod_without_a_certificate_says_what_is_missing(pods: Pods) -> None:
    pods.start(0, GROUP_TLS_FOLDER="/nowhere")
    assert pods.end(0) == 2
    assert "make the Secret of type kubernetes.io/tls" in pods.log(0)
