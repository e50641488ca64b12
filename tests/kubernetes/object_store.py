"""The objects of a cluster and all that became of them; what an owner has goes with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

Object = dict[str, Any]
Event = tuple[str, str, Object]


class Objects:
    """By their place, such as `pods/NAME`. What is handed out or taken in is never shared."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._found: dict[str, Object] = {}
        self._history: list[Event] = []

    def get(self, place: str) -> Object | None:
        with self._changed:
            return deepcopy(self._found.get(place))

    def of(self, plural: str) -> tuple[int, list[Object]]:
        """All of a kind, and the version of everything at which they were so."""
        with self._changed:
            found = [row for at, row in self._found.items() if at.startswith(f"{plural}/")]
            return len(self._history), deepcopy(found)

    def places(self) -> list[str]:
        with self._changed:
            return list(self._found)

    def wait(self, version: int, timeout_s: float) -> list[Event]:
        """What happened after a version, as soon as there is something."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._history) > version, timeout_s)
            return deepcopy(self._history[version:])

    def create(self, place: str, new: Object) -> Object | None:
        """Nothing, if there is one already, or no more owner."""
        with self._changed:
            there = {row["metadata"]["uid"] for row in self._found.values()}
            owners = {row["uid"] for row in new["metadata"].get("ownerReferences", [])}
            if place in self._found or not owners <= there:
                return None
            own = {"uid": str(uuid4()), "creationTimestamp": now()}
            return self._put("ADDED", place, {**new, "metadata": {**new["metadata"], **own}})

    def change(self, place: str, how: Callable[[Object], Object]) -> Object | None:
        """Replaces an object, if it is there, by what `how` makes of it."""
        with self._changed:
            old = self.get(place)
            if old is None:
                return None
            new = how(deepcopy(old))
            return old if new == old else self._put("MODIFIED", place, new)

    def delete(self, place: str) -> Object | None:
        """A pod is gone only when its node says so."""
        if not place.startswith("pods/"):
            return self.remove(place)
        return self.change(place, _mark)

    def remove(self, place: str) -> Object | None:
        with self._changed:
            found = self._found.pop(place, None)
            if found is not None:
                self._note("DELETED", place, found)
                for owned in self._owned_by(found):
                    self.delete(owned)
            return found

    def _put(self, what: str, place: str, new: Object) -> Object:
        old = self._found.get(place, {})
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = new["metadata"].get("generation", 0) + 1
        self._found[place] = new
        self._note(what, place, new)
        return deepcopy(new)

    def _note(self, what: str, place: str, found: Object) -> None:
        found["metadata"]["resourceVersion"] = str(len(self._history) + 1)
        self._history.append((what, place, deepcopy(found)))
        self._changed.notify_all()

    def _owned_by(self, owner: Object) -> list[str]:
        uid = owner["metadata"]["uid"]
        owners = {at: row["metadata"].get("ownerReferences", []) for at, row in self._found.items()}
        return [at for at, rows in owners.items() if any(row["uid"] == uid for row in rows)]


def _mark(found: Object) -> Object:
    found["metadata"].setdefault("deletionTimestamp", now())
    return found


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
