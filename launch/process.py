"""Runs a server process in a separate session, logged to a file, and stops all its children.

Ctrl-C and termination become one exception, raised once and never within a critical step.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

from builder.diagnostics import Diagnostic
from builder.errors import NotReady
from builder.files import reason
from supervisor.checks import foreign_listener

from . import guardian
from .guardian import MARK, POLL_S

KILL_GRACE_S = 30.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TAIL_BYTES = 64 * 1024


class ServerProcess:
    """Runs while entered. `grace_s` is how long it may take to end when asked.

    The log is appended to, so that what was there stays. Leaving asks the server itself to end and
    lets it end its workers, since workers that got the signal too would drop what the server still
    answers. Whatever is left after that is ended and, where that does not help, killed. Should this
    process itself be killed, a guardian does the same, within half a minute.
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
        self.grace_s = grace_s
        self.interrupts = interrupts
        self.killed = False
        self.left = 0

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            self._guardian = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", guardian.__file__),
                    *(self._mark, str(self.grace_s), str(self.log.absolute())),
                ],
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
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
                what = f"cannot be started: {reason(error)}"
                self._dismiss_guardian()
                raise NotReady(Diagnostic(self._argv[0], what, "install it")) from error
        self._tell_guardian(f"{self.pid}\n".encode())
        return self

    def _tell_guardian(self, line: bytes) -> None:
        pipe = self._guardian.stdin
        if pipe and not pipe.closed:
            with suppress(BrokenPipeError):  # somebody has ended it
                pipe.write(line)
                pipe.flush()

    def _dismiss_guardian(self) -> None:
        self._tell_guardian(guardian.ENDED)
        self._guardian.communicate()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def owns(self, host: str, ports: Iterable[int]) -> bool:
        """Whether no other process is known to listen there, which could answer instead."""
        return not any(foreign_listener(port, f"{MARK}={self._mark}", host) for port in ports)

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
            killed, left = guardian.end(
                self.pid, self._mark, self.grace_s, self._has_ended, self._wait
            )
            self.killed, self.left = self.killed or killed, self.left or left
            deadline = time.monotonic() + KILL_GRACE_S
            while self._process.poll() is None or self._members():
                if time.monotonic() > deadline:
                    stuck = ", ".join(map(str, self._members()))
                    raise NotReady(Diagnostic(f"process {stuck}", "does not end even when killed"))
                time.sleep(POLL_S)
            self._dismiss_guardian()

    def _has_ended(self) -> bool:
        return self._process.poll() is not None

    def _wait(self, timeout_s: float, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + timeout_s
        while not done() and time.monotonic() < deadline:
            if self.interrupts.again.wait(POLL_S):
                return

    def _members(self) -> list[int]:
        """Live processes of this server: its group, and all that carry its mark."""
        return guardian.members(self.pid, self._mark)


class Interrupted(KeyboardInterrupt):
    """A signal asks this process to end. An event loop passes on this kind of exception."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Interrupts:
    """While entered, the first signal raises `Interrupted`; a second one only sets `again`.

    With `exit_at_second` it ends the process at once: whatever counts is on disk already.
    """

    def __init__(self, exit_at_second: bool = False) -> None:
        self._exit_at_second = exit_at_second
        self.again = threading.Event()
        self._first: int | None = None
        self._holds = 0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            previous = signal.getsignal(number)
            if (number, previous) != (signal.SIGHUP, signal.SIG_IGN):  # as nohup sets it
                self._previous[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A critical step: a signal that arrives in it is raised after it."""
        arrived_before = self._first
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        if self._first is not None and arrived_before is None and not self._holds:
            raise Interrupted(self._first)

    def check(self) -> None:
        """For whoever waits: raises a signal that has arrived.

        Python drops what a handler raises while it runs a finalizer.
        """
        if self._first is not None:
            raise Interrupted(self._first)

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        if self._first is not None:
            if self._exit_at_second:
                os._exit(128 + number)
            self.again.set()
            return
        self._first = number
        if not self._holds:
            raise Interrupted(number)
