"""A pod as processes of this machine: its command, its variables, its mounts, its rights.

What a kubelet does is done by hand: a root that can only be read, the volumes at their places, a
user without rights, processes and a network of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import watcher
from tests.conftest import ROOT
from tests.kubernetes.cluster_files import Object, pod_files
from tests.kubernetes.conftest import tool
from tests.kubernetes.network import Host

PATIENCE_S = 600.0
# Where files lie that a pod sees, whose /tmp is its own.
OUTSIDE = Path("/var/tmp")
USERS = "server:x:1000:1000::/nonexistent:/bin/bash\n"

# A root of two layers: the machine's, which cannot be written, and the places of volumes.
ENTER = """\
set -e
hostname "$BOX_NAME"
mount --make-rprivate /
mount -t tmpfs tmpfs "$BOX/layers"
mkdir "$BOX/layers/upper" "$BOX/layers/work"
layers="lowerdir=/,upperdir=$BOX/layers/upper,workdir=$BOX/layers/work"
mount -t overlay overlay -o "$layers" "$BOX/root"
cd "$BOX/root"
mount -t proc proc proc
mount --rbind /dev dev
while read -r source place mode; do
  [[ -e .$place ]] || mkdir -p ".$place"
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
CONNECT = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 20)"


def need_what_a_box_needs() -> None:
    if os.getuid() != 0:
        pytest.skip("only root may make the mounts of a pod")
    for name in ("ip", "nsenter", "pivot_root", "setpriv", "unshare"):
        tool(name)


@dataclass(frozen=True, slots=True)
class Volumes:
    """What volumes hold: the ConfigMaps by name, and the folders behind claims and Secrets."""

    maps: Mapping[str, Object]
    claims: Mapping[str, Path]
    secrets: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class Box:
    """A running pod; `container` is its container as it is rendered."""

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
    def log_file(self) -> Path:
        return self.folder / "log"

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def read(self, path: str) -> bytes:
        """A file as the container has it."""
        return Path(f"/proc/{self.first}/root{path}").read_bytes()

    def ask(self, path: str, port: str | int, body: str = "") -> str | None:
        """An answer of 200 from inside the pod's network."""
        url = f"http://127.0.0.1:{self._port(port)}{path}"
        done = self.run("-c", GET, url, body)
        return done.stdout if done.returncode == 0 else None

    def _port(self, port: str | int) -> str | int:
        ports: dict[str, int] = {
            row["name"]: row["containerPort"] for row in self.container["ports"]
        }
        return ports.get(str(port), port)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Python in the pod's network."""
        network = ["nsenter", f"--net=/proc/{self.process.pid}/ns/net"]
        command = [*network, sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def passes(self, probe: str) -> bool:
        """Whether a probe of the container is content."""
        match self.container[probe]:
            case {"httpGet": {"path": path, "port": port}}:
                return self.ask(path, port) is not None
            case {"exec": {"command": ["python3", *arguments]}}:
                return self.run(*arguments).returncode == 0
            case {"tcpSocket": {"port": port}}:
                return self.run("-c", CONNECT, str(self._port(port))).returncode == 0
        raise AssertionError(f"{probe} is of no kind known here")

    def wait_for(self, probe: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.passes(probe):
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.2)

    def send(self, number: signal.Signals) -> None:
        """To its first process, as soon as that is there."""
        while self.process.poll() is None:
            with suppress(ValueError, FileNotFoundError, ProcessLookupError):
                os.kill(self.first, number)
                break
            time.sleep(0.01)

    def kill(self) -> None:
        """Nothing in the pod outlives its first process."""
        self.send(signal.SIGKILL)
        self.process.wait(PATIENCE_S)


@contextmanager
def boxed(
    pod: Object, volumes: Volumes, programs: Sequence[Path], host: Host | None = None
) -> Iterator[Box]:
    """The container of a pod until the end of the block. `programs` are folders for the front of
    the path; without a `host` the pod is alone in its network."""
    with ExitStack() as stack:
        folder = OUTSIDE / watcher.unique("pod")
        for name in ("", "layers", "root"):
            (folder / name).mkdir()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        container = pod["containers"][0]
        (folder / "passwd").write_text(USERS)
        lines = [*_mounts(pod, volumes, folder), f"{folder}/passwd /etc/passwd ro"]
        if host:
            lines.append(f"{host.hosts} /etc/hosts ro")
        # The checkout stays in sight where it lies in a folder that the pod has for itself.
        (folder / "mounts").write_text("\n".join([*lines, f"{ROOT} {ROOT} ro", ""]))
        path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
        variables = {row["name"]: row["value"] for row in container["env"]}
        network = (
            ["ip", "netns", "exec", host.namespace, "unshare"] if host else ["unshare", "--net"]
        )
        alone = ("--mount", "--uts", "--ipc", "--pid", "--fork")
        command = [*network, *alone, "bash", "-c", ENTER, "enter", *container["command"]]
        own = {"PATH": path, "BOX": str(folder), "BOX_NAME": host.name if host else "pod"}
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env={**variables, **own, **watcher.mark()},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        found = Box(folder, container, process)
        stack.callback(found.kill)
        yield found


def _mounts(pod: Object, found: Volumes, folder: Path) -> Iterator[str]:
    """A line for each mount of the container: what, where, and whether it can be written."""
    volumes = {row["name"]: row for row in pod["volumes"]}
    for mount in pod["containers"][0]["volumeMounts"]:
        volume = volumes[mount["name"]]
        mode = "ro" if mount.get("readOnly") else "rw"
        source = folder / mount["name"]
        if "emptyDir" in volume:
            yield f"tmpfs {mount['mountPath']} {mode}"
            continue
        if "persistentVolumeClaim" in volume:
            claim = found.claims[volume["persistentVolumeClaim"]["claimName"]]
            yield f"{claim} {mount['mountPath']} {mode}"
            continue
        if "secret" in volume:
            yield f"{found.secrets[volume['secret']['secretName']]} {mount['mountPath']} {mode}"
            continue
        source.mkdir()
        if "projected" in volume:
            for path, (data, bits) in pod_files(found.maps, pod).items():
                (source / path).parent.mkdir(parents=True, exist_ok=True)
                (source / path).write_bytes(data)
                (source / path).chmod(bits)
        yield f"{source} {mount['mountPath']} {mode}"
