"""Ends what a test run left running, when the run has ended or was killed.

Every process that tests start inherits the environment variable `TEST_RUN` with the name of the
run, those of a run within a run with the names of both. The watcher is a process in a session of
its own that waits for the end of pytest, and for that of the shell that started it. Then it kills
all that carry the name and all that these have started, and removes what bears the name: the folder
of temporary files, folders of clusters, networks, control groups, shared memory.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

VARIABLE = "TEST_RUN"
# tests/run.sh: the process whose end ends pytest as well.
SHELL = "TEST_SHELL"
LIMIT_S = 30.0
POLL_S = 0.05
TEMPORARY = Path("/tmp")
PLACES = (TEMPORARY, *map(Path, ("/var/tmp", "/dev/shm", "/run/netns", "/etc/netns")))
# What Triton makes there for each server, whatever TMPDIR says, and leaves if it is killed.
OF_TRITON = "python_env_*"
CGROUPS = Path("/sys/fs/cgroup")


def begin() -> None:
    """Name this run, start its watcher, and give it a folder for temporary files."""
    run = uuid.uuid4().hex[:8]
    os.environ[VARIABLE] = "/".join(filter(None, (os.environ.get(VARIABLE), run)))
    shell = os.environ.pop(SHELL, "")
    os.posix_spawn(
        sys.executable,
        [sys.executable, __file__, run, str(os.getpid()), shell],
        {name: value for name, value in os.environ.items() if name != VARIABLE},
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
        setsid=True,
    )
    # Programs that are killed leave theirs behind. Pytest's own, which tell of failures, stay.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = TEMPORARY / f"run-{run}"
    folder.mkdir()
    folder.chmod(0o1777)  # other users of a machine's containers write there too, as in /tmp
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)


def mark() -> dict[str, str]:
    """For a process with an environment of its own."""
    return {VARIABLE: os.environ.get(VARIABLE, "")}


def unique(prefix: str) -> str:
    """A name for what lies outside of pytest's own folder, which the watcher removes."""
    run = os.environ.get(VARIABLE, "").rpartition("/")[2]
    return f"{prefix}-{run}-{uuid.uuid4().hex[:6]}"


def _wait(pytest: int, shell: int | None) -> None:
    """Until pytest has ended, or is killed since its shell has ended."""
    with suppress(ProcessLookupError):
        handles = {os.pidfd_open(pytest): pytest}
        with suppress(ProcessLookupError):
            if shell:
                handles[os.pidfd_open(shell)] = shell
        ended, _, _ = select.select(handles, [], [])
        if pytest not in [handles[one] for one in ended]:
            os.kill(pytest, signal.SIGKILL)


def processes(run: str) -> set[int]:
    """Those of the run, and what they have started with another environment."""
    parents: dict[int, int] = {}
    found = set()
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with suppress(OSError):  # it ended
            state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
            if state in "ZX" or pid == os.getpid():
                continue
            parents[pid] = int(parent)
            if run in _names(Path(f"/proc/{pid}/environ").read_bytes()):
                found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _names(environment: bytes) -> list[str]:
    for entry in environment.split(b"\0"):
        if entry.startswith(f"{VARIABLE}=".encode()):
            return entry.decode().partition("=")[2].split("/")
    return []


def _end(run: str) -> Iterator[str]:
    """Kill what is left; what was killed."""
    deadline_s = time.monotonic() + LIMIT_S
    while (left := processes(run)) and time.monotonic() < deadline_s:
        for pid in left:
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                os.kill(pid, signal.SIGKILL)
                yield f"process {pid}: {command.decode(errors='replace').strip()[:120]}"
        time.sleep(POLL_S)


def paths(run: str) -> list[Path]:
    """What bears the name of the run."""
    groups = (CGROUPS, *CGROUPS.glob("*"))
    return [path for place in (*PLACES, *groups) for path in place.glob(f"*{run}*")]


def _remove(path: Path) -> None:
    if path.parent == Path("/run/netns"):
        subprocess.run(["ip", "netns", "del", path.name], check=False, capture_output=True)
    elif CGROUPS in path.parents:
        for folder, _, _ in os.walk(path, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()
    elif path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def main(run: str, pytest: str, shell: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _wait(int(pytest), int(shell) if shell else None)
    for line in _end(run):
        print(f"tests: killed what the run left: {line}", file=sys.stderr, flush=True)
    for path in paths(run):
        _remove(path)
    if not _is_running("tritonserver"):
        for empty in TEMPORARY.glob(OF_TRITON):
            with suppress(OSError):
                empty.rmdir()


def _is_running(name: str) -> bool:
    """Whether there is a process of that name on this machine."""
    for path in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # it ended
            if path.read_text().strip() == name:
                return True
    return False


if __name__ == "__main__":
    main(*sys.argv[1:])
