"""A test run that is killed leaves no process, no network, no folder of a server behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import killed_run, watcher
from tests.conftest import ROOT
from tests.handoff import docker_engine
from tests.slurm import cluster as clusters

HANG_S = 120.0
# As tests/run.sh starts pytest, with the process of pytest in a file.
SHELL = """\
export TEST_SHELL=$$
"$0" -m pytest -q -p no:cacheprovider "$1" >"$2/log" 2>&1 & echo $! >"$2/pytest"
wait
"""


def has_ended(pid: int) -> bool:
    """Whether or not anybody has heard of it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


class Killable:
    """A run of `killed_run.py` below a shell, once all of its servers run."""

    def __init__(self, folder: Path) -> None:
        ready = folder / "ready"
        variables = {**os.environ, killed_run.READY: str(ready)}
        self.log = folder / "log"
        self.shell = subprocess.Popen(
            ["bash", "-c", SHELL, sys.executable, str(killed_run.__file__), str(folder)],
            cwd=ROOT,
            env={name: value for name, value in variables.items() if name != "CI"},
        )
        deadline_s = time.monotonic() + HANG_S
        while not ready.exists() or not ready.read_text():
            assert self.shell.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline_s, self.log.read_text()
            time.sleep(0.05)
        self.pytest = int((folder / "pytest").read_text())
        self.run = ready.read_text().rpartition("/")[2]

    def programs(self) -> set[str]:
        names = set()
        for pid in watcher.processes(self.run):
            with suppress(FileNotFoundError, ProcessLookupError):  # it ended
                names.update(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:3])
        return {name.rpartition("/")[2] for name in names}

    def left(self) -> list[str]:
        """What bears its name, and processes."""
        paths = [str(path) for path in watcher.paths(self.run)]
        return [*map(str, watcher.processes(self.run)), *paths]


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[Killable]:
    run = Killable(tmp_path)
    yield run
    run.shell.kill()
    run.shell.wait()


@pytest.mark.parametrize("victim", ["pytest", "shell"])
def test_nothing_is_left_of_a_run_that_is_killed(victim: str, killable: Killable) -> None:
    expected = {"tritonserver"}
    expected |= set() if clusters.why_not() else {"slurmctld", "slurmd", "munged", "supervisor"}
    expected |= set() if docker_engine.why_not() else {"dockerd"}
    assert killable.programs() >= expected
    os.kill(killable.pytest if victim == "pytest" else killable.shell.pid, signal.SIGKILL)
    deadline_s = time.monotonic() + HANG_S
    while left := killable.left():
        assert time.monotonic() < deadline_s, left
        time.sleep(0.1)
    assert has_ended(killable.pytest)
