"""The pages of the documentation: their blocks of code, and a machine on which those run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "model_repository" / "README.md",
]

# What is not run here, by its first words, and where it is instead.
ELSEWHERE = {
    "bash launch/demo.sh": "tests/launch/test_rehearse.py",
    "bash launch/setup_engine.sh": "tests/vllm, a step of tests/run.sh",
    "source .venv/bin/activate": "tests/first_hour.sh",
    "bash tests/run.sh": "this run",
    "python -m launch slurm": "tests/launch/slurm/test_typed.py, on a cluster",
    "python -m launch rehearse": "tests/launch/test_rehearse.py",
    "python -m launch attach": "tests/launch/test_attach.py",
    "python -m benchmarks.": "tests/benchmarks",
}

READY_S = 300

# Stands in for docker: runs the command of the container on this machine, with the paths of the
# mounts put back and the variables set.
DOCKER = """\
import os, subprocess, sys
arguments = sys.argv[1:]
assert arguments.pop(0) == "run", arguments
mounts, environment = {}, {}
with_value = {"--gpus", "--ipc", "--network", "--ulimit"}
while arguments[0].startswith("-"):
    option = arguments.pop(0)
    if option == "-v":
        source, target, mode = arguments.pop(0).split(":")
        assert mode == "ro", "the bundle and the weights are mounted read-only"
        mounts[target] = source
    elif option == "-e":
        name, _, value = arguments.pop(0).partition("=")
        environment[name] = value
    elif option in with_value:
        arguments.pop(0)
    else:
        assert option == "--rm", option
image, *command = arguments
for target, source in mounts.items():
    command = [source + word[len(target):] if word.startswith(target) else word for word in command]
print("image", image, flush=True)
sys.exit(subprocess.call(command, env={**os.environ, **environment}))
"""

SERVER = """\
import os, pathlib, sys
print(pathlib.Path(sys.argv[0]).name, *sys.argv[1:])
print("checkpoint", os.environ["CHECKPOINT"])
"""


@dataclass(frozen=True)
class Block:
    """A block of code: what it is in, as the page marks it, and its text."""

    page: Path
    kind: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Its commands, a here-document with the command that reads it."""
        found: list[str] = []
        ends: str | None = None
        for line in self.text.splitlines():
            if ends or (found and found[-1].endswith("\\")):
                found[-1] += f"\n{line}"
                ends = None if line == ends else ends
            elif line and not line.startswith("#"):
                found.append(line)
                begun = re.search(r"<<'(\w+)'$", line)
                ends = begun[1] if begun else None
        return found


def blocks(page: Path, *kinds: str) -> list[Block]:
    """The blocks of a page in their order; a kind is all that stands behind the three marks."""
    found = re.findall(r"^```(\S[^\n]*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(page, kind, text) for kind, text in found if not kinds or kind in kinds]


def elsewhere(command: str) -> str | None:
    """Where a command is run if not here."""
    return next((home for words, home in ELSEWHERE.items() if command.startswith(words)), None)


@contextmanager
def own_network() -> Iterator[list[str]]:
    """What begins a command on a network of its own; nothing where none may be made."""
    command = ["unshare", "-rn", "sh", "-c", "ip link set lo up && echo up && exec cat"]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL) as holder:
        assert holder.stdin and holder.stdout
        made = holder.stdout.readline() == b"up\n"
        enter = ["nsenter", "--preserve-credentials", "-U", "-n", "-t", str(holder.pid)]
        yield enter if made else []
        holder.stdin.close()


class Machine:
    """A folder and a shell with the toolkit on its path; docker and the engine may be stand-ins.

    `enter` begins every command.
    """

    def __init__(self, folder: Path, stand_ins: bool = True, enter: Sequence[str] = ()) -> None:
        self.folder, self._enter = folder, list(enter)
        path = [str(Path(sys.executable).parent), os.environ["PATH"]]
        if stand_ins:
            programs = folder / ".stand-ins"
            programs.mkdir()
            servers = {"docker": DOCKER, "trtllm-serve": SERVER, "tritonserver": SERVER}
            for name, code in servers.items():
                (programs / name).write_text(f"#!{sys.executable}\n{code}")
                (programs / name).chmod(0o755)
            path.insert(0, str(programs))
        self.environment = {
            **os.environ,
            "PATH": ":".join(path),
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
        }

    def run(self, script: str) -> str:
        """What a script prints; it must end with 0."""
        done = subprocess.run(
            [*self._enter, "bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def serving(self, command: str) -> Iterator[None]:
        """A server in another terminal, from when it is ready until it is interrupted there."""
        log = self.folder / "server.log"
        with log.open("w") as file:
            server = subprocess.Popen(
                [*self._enter, "bash", "-c", f"exec env {command}"],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            try:
                self._wait(server, log)
                yield
            finally:
                server.send_signal(signal.SIGINT)
                server.wait(60)

    def _wait(self, server: subprocess.Popen[bytes], log: Path) -> None:
        ends = time.monotonic() + READY_S
        while ": ready; " not in log.read_text():
            assert server.poll() is None and time.monotonic() < ends, log.read_text()
            time.sleep(0.1)
