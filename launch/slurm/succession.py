"""The lock of succession: one successor of a service at a time, asked for by job or by person."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from builder.diagnostics import Diagnostic
from builder.errors import NotReady

from ..run import now
from . import scheduler
from .overview import is_running
from .service import Service, read_json, write_json


class Succession:
    """The right of `owner`, a job that serves, to have a successor. Its supervisor reads it too."""

    def __init__(self, service: Service, owner: str) -> None:
        self._service = service
        self._path = service.folder / "successor.lock"
        self._facts = {"owner": owner, "successor": None, "since": now()}

    def take(self) -> None:
        """Raises `NotReady` if another successor is under way."""
        if self._is_stale():
            self._path.unlink(missing_ok=True)
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            held = read_json(self._path) or {}
            what = f"has a successor under way: job {held.get('successor') or 'not named yet'}"
            remedy = "see it with: launch slurm status"
            raise NotReady(Diagnostic(f"service {self._service.name}", what, remedy)) from None
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(self._facts, file)

    def name(self, job_id: str) -> None:
        self._facts = {**self._facts, "successor": job_id}
        write_json(self._path, self._facts)

    def release(self) -> None:
        """A successor that has taken over removed it already, and may have taken it anew."""
        if read_json(self._path) == self._facts:
            self._path.unlink(missing_ok=True)

    def _is_stale(self) -> bool:
        """Whether its successor, or before there is one its owner, is no more."""
        held = read_json(self._path)
        if held is None:
            return False
        return not is_running(str(held["successor"] or held["owner"]), scheduler.jobs())


@contextmanager
def lock(service: Service, owner: str) -> Iterator[Succession]:
    """Held until the successor has taken over or failed."""
    found = Succession(service, owner)
    found.take()
    try:
        yield found
    finally:
        found.release()
