"""A real Docker engine for as long as it is entered, apart from the machine's own.

It has processes, mounts and a network of its own, which end with it: the ports that it publishes
are open in that network alone. Its driver for GPUs is Docker's, and finds nothing to do.
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests import watcher
from tests.conftest import ROOT
from tests.handoff import container_runtime
from tests.kubernetes.conftest import tool

START_TIMEOUT_S = 300.0
POLL_S = 0.1
UNPACKED = ROOT / ".venv" / "docker" / "usr"
FIRST = (f"{UNPACKED}/sbin", f"{UNPACKED}/bin")
SEARCH = os.pathsep.join([*FIRST, os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
PROGRAMS = ("docker", "dockerd", "docker-init", "docker-proxy", "containerd", "runc", "ip")
ALONE = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
# The bash that waits is the first process, which has to bury those of containers.
ENTER = """\
mount -t tmpfs tmpfs /run && ip link set lo up || exit 1
dockerd "$@"
"""
OPTIONS = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--default-runtime=tests")
# Docker mounts its own programs into /sbin, and files into /etc.
LINKS = ("bin", "lib", "lib64")


def why_not() -> str | None:
    """What keeps an engine from running here; `None` where nothing does."""
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=SEARCH)]:
        return f"{', '.join(missing)} missing; tests/run.sh unpacks Debian's docker.io"
    mount = [*ALONE, "mount", "-t", "tmpfs", "none", "/mnt"]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    return f"no namespaces of its own: {done.stderr.strip()}" if done.returncode else None


class Engine:
    """`environment` is what a client of it needs. Its containers see the folders `shown`."""

    def __init__(self, folder: Path, shown: Sequence[Path]) -> None:
        self._folder = folder
        self._cgroup = watcher.unique("docker")
        self._socket = folder / "socket"
        self._log = folder / "log"
        self._shown = shown
        self.environment = {
            "PATH": SEARCH,
            "DOCKER_HOST": f"unix://{self._socket}",
            "DOCKER_CONFIG": str(folder / "client"),
        }

    def __enter__(self) -> Self:
        self._write_programs()
        data = f"--data-root={self._folder / 'data'}"
        runtime = f"--add-runtime=tests={self._folder / 'bin' / 'runtime'}"
        host, cgroup = f"--host=unix://{self._socket}", f"--cgroup-parent={self._cgroup}"
        shown = os.pathsep.join(map(str, self._shown))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*ALONE, "bash", "-c", ENTER, "enter", data, runtime, host, cgroup, *OPTIONS],
                env={
                    "PATH": f"{self._folder / 'bin'}:{SEARCH}",
                    container_runtime.SHOWS: shown,
                    **watcher.mark(),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def client(self, *command: str, data: bytes = b"") -> str:
        """What a command of Docker prints."""
        done = subprocess.run(
            ["docker", *command], env=self.environment, input=data, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def make_image(self, reference: str, variables: Mapping[str, str]) -> None:
        """An image of that name that holds nothing: its programs are those of the machine."""
        with tarfile.open(fileobj=(layer := io.BytesIO()), mode="w") as archive:
            for name in LINKS:
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
                archive.addfile(link)
        changes = [f"--change=ENV {name}={shlex.quote(value)}" for name, value in variables.items()]
        self.client("import", *changes, "-", reference, data=layer.getvalue())

    def deaths(self) -> list[str]:
        """The exit status of each container that has ended."""
        shown = ("--filter=event=die", "--format={{.Actor.Attributes.exitCode}}")
        return self.client("events", "--since=0", f"--until={time.time():.9f}", *shown).split()

    def inside(self, *command: str) -> list[str]:
        """The command as it runs in the network where the ports are published."""
        return ["nsenter", f"--net=/proc/{self._first()}/ns/net", *command]

    def _write_programs(self) -> None:
        for name in ("bin", "client/cli-plugins"):
            (self._folder / name).mkdir(parents=True)
        runtime = self._folder / "bin" / "runtime"
        own = shlex.join([sys.executable, str(container_runtime.__file__)])
        runtime.write_text(f'#!/bin/sh\nexec {own} "$@"\n')
        runtime.chmod(0o755)
        # Where this one is on the path, Docker has a driver for NVIDIA's GPUs, and runs it.
        (self._folder / "bin" / "nvidia-container-runtime-hook").symlink_to("/bin/true")
        plugin = self._folder / "client" / "cli-plugins" / "docker-compose"
        plugin.symlink_to(tool("docker-compose"))

    def _wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        answers = ["docker", "version"]
        while subprocess.run(answers, env=self.environment, capture_output=True).returncode:
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(POLL_S)

    def _first(self) -> str | None:
        """The first process of its own namespace, as the machine sees it."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return children.read_text().strip() or None

    def _stop(self) -> None:
        """With the first process of the namespace end all others; what they held is then free."""
        if self._process.poll() is None:
            os.kill(int(self._first() or self._process.pid), signal.SIGKILL)
        self._process.wait()
        cgroups = Path("/sys/fs/cgroup")
        for top in [*cgroups.glob(self._cgroup), *cgroups.glob(f"*/{self._cgroup}")]:
            for path, _, _ in os.walk(top, topdown=False):
                _remove_cgroup(Path(path))


def _remove_cgroup(path: Path) -> None:
    """Its processes have ended, but may not have left it yet."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return path.rmdir()
        except OSError:
            assert time.monotonic() < deadline, path
            time.sleep(POLL_S)
