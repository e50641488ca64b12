"""The lock of a service's succession: one job at a time submits the next one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from .state import (
    LOCK_FIELDS,
    Json,
    ServiceFolder,
    create_json,
    log,
    read_record,
    set_aside,
    timestamp,
    write_json,
)

UNNAMED_LOCK_S = 120.0  # whoever holds the lock submits at once, and names the successor


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
        self._seen: tuple[Json, float] = ({}, 0.0)  # what others hold, and since when it is seen

    @property
    def content(self) -> Json:
        """`owner` and `successor` as they are now; empty where nobody holds the lock."""
        return read_record(self._path, LOCK_FIELDS) or {}

    def acquire(self) -> bool:
        """Whether the lock is now this owner's. That of a job that is gone is broken."""
        if self._is_stale(self.content):
            log(f"{self._path} is damaged, or holds nothing any more: set aside")
            set_aside(self._path, is_damaged=lambda: True)
        content = self._content(None)
        try:
            create_json(self._path, content)
        except FileExistsError:
            return False
        self._successor, self._written = None, content
        return True

    def _is_stale(self, held: Json) -> bool:
        """Damaged, of a job that is gone, or held for too long by one that has named none.

        Also what this owner could not remove: its own, or the one that made it the successor.
        """
        if not held:
            return os.path.lexists(self._path)
        if held == self._written or held["successor"] == self._owner:
            return True
        if held != self._seen[0]:
            self._seen = held, time.monotonic()
        is_late = time.monotonic() - self._seen[1] > UNNAMED_LOCK_S
        if held["successor"] is None and is_late:
            return True
        return self._is_alive(held["successor"] or held["owner"]) is False

    def name_successor(self, job_id: str | None) -> None:
        self._successor, self._written = job_id, self._content(job_id)
        write_json(self._path, self._written)

    def _content(self, successor: str | None) -> Json:
        return {"owner": self._owner, "successor": successor, "since": timestamp()}

    def release(self) -> None:
        """A successor that took over has removed it already, and may have acquired it anew."""
        held = self.content
        if held.get("owner") == self._owner and held["successor"] in (self._successor, None):
            self._path.unlink(missing_ok=True)

    def release_as_successor(self) -> None:
        """The owner is itself the successor that the lock names, and now serves."""
        if self.content.get("successor") == self._owner:
            self._path.unlink(missing_ok=True)
