"""What a job writes of itself, and file operations whose failure never ends a service."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from . import state
from .state import JobFolder, Json

RESERVE = "reserve"
RESERVE_BYTES = 64 * 1024  # freed on a full disk, so that the record can still be written
RETRY_S = 1.0  # between tries of what failed
LAST_WORDS_S = 3.0  # for what failed at the end of a job
EVENTS_KEPT = 1000  # that could not be written yet

Result = TypeVar("Result")


class Record:
    """run.json and events.jsonl of this job, and every other file operation while it serves.

    One that fails is logged once, tried again, and ends nothing: a service that answers outlives
    a full disk, lost permissions and removed folders.
    """

    def __init__(self, job: JobFolder, first: Json) -> None:
        self.job = job
        self.run: Json = first
        self._reserve = job.path / RESERVE
        self._written = 0.0
        self._size = 0  # of run.json as it was written
        self._events: deque[str] = deque(maxlen=EVENTS_KEPT)
        self._faults: dict[str, tuple[str, float]] = {}
        self._has_begun = False

    def begin(self) -> None:
        """Nothing is written before it. Raises `OSError` where the folder cannot be had."""
        path = self.job.path
        path.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path / state.RUN):  # the job was requeued
            for request in (state.DRAIN, state.PROMOTE):
                (path / request).unlink(missing_ok=True)
            earlier = len(list(path.glob("run-*.json")))
            (path / state.RUN).replace(path / f"run-{earlier}.json")
            self.run["restarts"] = earlier + 1
        self._has_begun = True
        self.attempt(RESERVE, lambda: self._reserve.write_bytes(b"\0" * RESERVE_BYTES), 0)
        self.update()

    def attempt(self, what: str, action: Callable[[], Result], default: Result) -> Result:
        """The result of a file operation, `default` where it fails or has just failed.

        On a full disk it is done in the space of the reserve.
        """
        fault, next_try = self._faults.get(what, ("", 0.0))
        if time.monotonic() < next_try:
            return default
        try:
            result = action()
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if is_full and what != RESERVE and self._free_reserve():
                return self.attempt(what, action, default)
            said = f"{error.filename or self.job.path}: {error.strerror or error}"
            if said != fault:
                state.log(f"{what}: {said}; it is tried again")
            self._faults[what] = said, time.monotonic() + RETRY_S
            return default
        if self._faults.pop(what, None):
            state.log(f"{what}: works again")
        return result

    def _free_reserve(self) -> bool:
        try:
            self._reserve.unlink()
        except OSError:
            return False
        state.log(f"{self.job.path}: {os.strerror(errno.ENOSPC)}; its reserve is freed")
        return True

    def fault(self, what: str) -> str:
        """Why the last try of it failed; empty where it did not."""
        return self._faults.get(what, ("", 0.0))[0]

    def write(self, name: str, value: Any) -> None:
        self.attempt(name, lambda: state.write_json(self.job.path / name, value), None)

    def update(self, **values: Any) -> None:
        self.run.update(values, heartbeat=state.timestamp())
        if self._has_begun:
            self.attempt(state.RUN, self.save, None)

    def save(self) -> None:
        """run.json as it is now. Raises `OSError`."""
        self._written = -state.HEARTBEAT_S  # until it is there
        state.write_json(self.job.path / state.RUN, self.run)
        self._size = (self.job.path / state.RUN).stat().st_size
        self._written = time.monotonic()

    def _is_as_written(self) -> bool:
        """Compares only its size, since this is called often."""
        try:
            found = (self.job.path / state.RUN).lstat()
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == self._size

    def heartbeat(self) -> None:
        """Now and then, and where the file is gone, damaged or could not be written."""
        if not self._has_begun:
            return
        overdue = time.monotonic() - self._written > state.HEARTBEAT_S
        if overdue or not self._is_as_written():
            self.update()
        if self._events:
            self.attempt(state.EVENTS, self._append_events, None)

    def event(self, name: str, **values: Any) -> None:
        state.log(" ".join([name, *(f"{key}={value}" for key, value in values.items())]))
        self._events.append(json.dumps({"time": state.timestamp(), "event": name, **values}) + "\n")
        if self._has_begun:
            self.attempt(state.EVENTS, self._append_events, None)

    def _append_events(self) -> None:
        """All that wait, or none: a line is never left in part."""
        path = self.job.path / state.EVENTS
        path.parent.mkdir(parents=True, exist_ok=True)
        # A regular file, and no link to one that may be anybody's.
        is_own = path.is_file() and not path.is_symlink()
        state.set_aside(path, is_damaged=lambda: os.path.lexists(path) and not is_own)
        # A pipe would hold up the service until somebody reads it.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            lines = "".join(self._events).encode()
            try:
                if file.write(lines) < len(lines):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            except OSError:
                file.truncate(size)
                raise
        self._events.clear()

    def close(self) -> None:
        """The last record is tried again for a moment, since it cannot be written later."""
        deadline = time.monotonic() + LAST_WORDS_S
        while self._faults.keys() & {state.RUN, state.EVENTS} and time.monotonic() < deadline:
            time.sleep(RETRY_S / 10)
            self.heartbeat()
        self.attempt(RESERVE, lambda: self._reserve.unlink(missing_ok=True), None)
