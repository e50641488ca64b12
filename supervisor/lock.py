"""The lock of a service's succession: one job at a time submits the next one."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress

from . import state
from .state import Json, ServiceFolder

UNNAMED_LOCK_S = 120.0  # whoever holds the lock submits at once, and names the successor
# Without hard links a lock is empty until it is written. Less than a job waits between two tries.
EMPTY_LOCK_S = 3.0


class SuccessorLock:
    """The right of `owner`, a job that serves, to submit its successor, one at a time.

    `is_alive` tells whether a job waits or runs, and `None` where Slurm does not say. All methods
    may raise `OSError`.
    """

    def __init__(
        self, service: ServiceFolder, owner: str, is_alive: Callable[[str], bool | None]
    ) -> None:
        self._path = service.lock_file
        self._owner = owner
        self._is_alive = is_alive
        self._successor: str | None = None
        self._written: Json = {}  # by this one, which holds nothing when it is to acquire it
        # The other holder, or the unreadable file, and since when it was seen.
        self._seen: tuple[object, float] = (None, 0.0)

    @property
    def content(self) -> Json:
        """The current `owner` and `successor`; empty if the lock is free."""
        return state.read_record(self._path, state.LOCK_FIELDS) or {}

    @property
    def is_empty(self) -> bool:
        """Another job is about to write it, or ended as it was: to be tried again."""
        found = self._look()
        return found is not None and _is_empty(found)

    def acquire(self) -> bool:
        """Whether the lock is now this owner's. That of a job that is gone is broken."""
        found = self._look()
        if found is not None and self._is_stale(self.content, found):
            self._set_aside(found)
        content = self._content(None)
        try:
            state.create_json(self._path, content)
        except FileExistsError:
            return False
        self._successor, self._written = None, content
        return True

    def _look(self) -> os.stat_result | None:
        try:
            return self._path.lstat()
        except OSError as fault:
            if fault.errno in state.NO_FILE:
                return None
            raise

    def _is_stale(self, held: Json, found: os.stat_result) -> bool:
        """Damaged, of a job that is gone, or held for too long by one that has named none.

        Also what this owner could not remove: its own, or the one that made it the successor.
        """
        if not held:
            return not _is_empty(found) or self._seen_s(_identity(found)) > EMPTY_LOCK_S
        if held == self._written or held["successor"] == self._owner:
            return True
        is_late = self._seen_s(held) > UNNAMED_LOCK_S
        if held["successor"] is None and is_late:
            return True
        return self._is_alive(held["successor"] or held["owner"]) is False

    def _seen_s(self, what: object) -> float:
        """For how long that and nothing else was seen."""
        if what != self._seen[0]:
            self._seen = what, time.monotonic()
        return time.monotonic() - self._seen[1]

    def _set_aside(self, found: os.stat_result) -> None:
        """That file only: another job may have done so first, and hold the lock by now."""
        if (now := self._look()) is None or _identity(now) != _identity(found):
            return
        aside = state.name_of_damaged(self._path)
        with suppress(FileNotFoundError):
            self._path.rename(aside)
            if _identity(aside.lstat()) == _identity(found):
                state.log(f"{self._path} is damaged, or holds nothing any more: set aside")
                return
            with suppress(FileExistsError):
                state.name_new(aside, self._path)
            aside.unlink()

    def name_successor(self, job_id: str | None) -> None:
        self._successor, self._written = job_id, self._content(job_id)
        state.write_json(self._path, self._written)

    def _content(self, successor: str | None) -> Json:
        return {"owner": self._owner, "successor": successor, "since": state.timestamp()}

    def release(self) -> None:
        """A successor that took over has removed it already, and may have acquired it anew."""
        held = self.content
        if held.get("owner") == self._owner and held["successor"] in (self._successor, None):
            self._path.unlink(missing_ok=True)

    def release_as_successor(self) -> None:
        """The owner is itself the successor that the lock names, and now serves."""
        if self.content.get("successor") == self._owner:
            self._path.unlink(missing_ok=True)


def _is_empty(file: os.stat_result) -> bool:
    return stat.S_ISREG(file.st_mode) and file.st_size == 0


def _identity(file: os.stat_result) -> tuple[int, int, int]:
    """Numbers of files come again: one that was written anew has another time."""
    return file.st_ino, file.st_mtime_ns, file.st_size
