"""Ctrl-C and termination as one exception, raised once and never within a critical step."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
