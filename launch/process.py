"""A server process: in a session of its own, logged to a file, stopped with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from builder.diagnostics import Diagnostic
from builder.errors import NotReady

from .interrupts import Interrupts

# Marks every process of one server: a process that leaves the group, as MPI workers do, keeps it.
MARK = "TRTLLM_LAUNCH_SERVER"
POLL_S = 0.05
# For what a server leaves behind: time between being asked to end and being killed.
LEFTOVER_GRACE_S = 5.0
KILL_GRACE_S = 30.0
TAIL_BYTES = 64 * 1024


class ServerProcess:
    """Runs while entered. `grace_s` is how long it may take to end when asked.

    The log is appended to, so that what was there stays. Leaving asks the server itself to end and
    lets it end its workers, since workers that got the signal too would drop what the server still
    answers. Whatever is left after that is ended and, where that does not help, killed.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        log: Path,
        grace_s: float,
        interrupts: Interrupts,
    ) -> None:
        self.log = log
        self._argv = list(argv)
        self._cwd = cwd
        self._mark = uuid.uuid4().hex
        self._environment = {**environment, MARK: self._mark}
        self._grace_s = grace_s
        self.interrupts = interrupts
        self.killed = False
        self.left = 0

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    self._argv,
                    cwd=self._cwd,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                what = f"cannot be started: {error.strerror}"
                raise NotReady(Diagnostic(self._argv[0], what, "install it")) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_status(self, timeout_s: float) -> int | None:
        """Its exit status as a shell gives it, or `None` if it still runs after the timeout."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return status if status >= 0 else 128 - status

    def last_lines(self, count: int = 20) -> list[str]:
        """The end of the log, without empty lines and Triton's tables."""
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - TAIL_BYTES))
            text = log.read().decode("utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        return [line for line in lines if not line.startswith(("|", "+-"))][-count:]

    def stop(self) -> None:
        """End the server and everything that it started. A second signal skips the waiting.

        `killed` says afterwards whether the server itself did not end when asked, `left` how many
        processes were still there when it had ended.

        Raises `NotReady` naming processes that even SIGKILL does not end.
        """
        with self.interrupts.held():
            if self._process.poll() is None:
                self._process.terminate()
                self._wait(self._grace_s, lambda: self._process.poll() is not None)
            if self._process.poll() is not None:
                self.left = self.left or len(self._members())
                _signal(self._members(), signal.SIGTERM)
                self._wait(LEFTOVER_GRACE_S, lambda: not self._members())
            self.killed = self._process.poll() is None
            _signal(self._members(), signal.SIGKILL)
            deadline = time.monotonic() + KILL_GRACE_S
            while self._process.poll() is None or self._members():
                if time.monotonic() > deadline:
                    stuck = ", ".join(map(str, self._members()))
                    raise NotReady(Diagnostic(f"process {stuck}", "does not end even when killed"))
                time.sleep(POLL_S)

    def _wait(self, timeout_s: float, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + timeout_s
        while not done() and time.monotonic() < deadline:
            if self.interrupts.again.wait(POLL_S):
                return

    def _members(self) -> list[int]:
        """Live processes of this server: its group, and all that carry its mark."""
        return [pid for pid in _pids() if _belongs(pid, self.pid, self._mark)]


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _belongs(pid: int, group: int, mark: str) -> bool:
    try:
        # After the command name, which may hold spaces and brackets: state, parent, group.
        state, _, its_group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
        if state in "ZX":
            return False
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return int(its_group) == group or f"{MARK}={mark}".encode() in environment


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
