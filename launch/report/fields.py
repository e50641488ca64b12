"""Values out of a JSON document that others wrote, each of its kind or a problem with its place."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from builder.diagnostics import Diagnostic
from builder.errors import BadInput

REMEDY = "write the file again with the tool that made it"


class Fields:
    """A JSON object and its place. What is absent or null is None; what is wrong is noted.

    All objects below one document note their problems in one list, so that `check` raises them
    together.
    """

    def __init__(
        self, document: Any, where: str, path: str = "", problems: list[Diagnostic] | None = None
    ) -> None:
        self.where, self.path = where, path
        self.diagnostics: list[Diagnostic] = [] if problems is None else problems
        if not isinstance(document, dict):
            self._wrong("", document, "an object")
            document = {}
        self.values: dict[str, Any] = document

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is None or isinstance(value, str):
            return value
        self._wrong(key, value, "text")
        return None

    def number(self, key: str) -> float | None:
        value = self.values.get(key)
        if value is None or (_is_number(value) and math.isfinite(value)):
            return value  # an int stays one: it is a count
        self._wrong(key, value, "a number")
        return None

    def count(self, key: str) -> int | None:
        value = self.number(key)
        if value is not None and value >= 0 and value == int(value):
            return int(value)
        if value is not None:
            self._wrong(key, value, "a count")
        return None

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        self._wrong(key, value, "true or false")
        return False

    def child(self, key: str) -> Fields:
        """The object under a key, empty where there is none."""
        value = self.values.get(key)
        return Fields({} if value is None else value, self.where, self._at(key), self.diagnostics)

    def children(self, key: str) -> Iterator[Fields]:
        """The objects of the list under a key."""
        value = self.values.get(key)
        if not isinstance(value, list):
            if value is not None:
                self._wrong(key, value, "a list")
            return
        for index, item in enumerate(value):
            yield Fields(item, self.where, f"{self._at(key)}[{index}]", self.diagnostics)

    def named(self, key: str) -> dict[str, Fields]:
        """The objects of the object under a key, by name."""
        child = self.child(key)
        return {name: child.child(name) for name in child.values}

    def need(self, key: str) -> None:
        """Note a problem if there is nothing under a key."""
        if key not in self:
            self.diagnostics.append(
                Diagnostic(f"{self.where}: {self._at(key)}", "is missing", REMEDY)
            )

    def check(self) -> None:
        """Raise `BadInput` with all that was wrong so far."""
        if self.diagnostics:
            raise BadInput(self.diagnostics)

    def _wrong(self, key: str, value: object, wanted: str) -> None:
        place = self._at(key) or "the document"
        what = f"is {_kind(value)}; {wanted} is expected"
        self.diagnostics.append(Diagnostic(f"{self.where}: {place}", what, REMEDY))

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}".strip(".")


def load(text: str) -> Any:
    """JSON, with NaN and infinities as null: they are how some tools say that they do not know."""
    return json.loads(text, parse_constant=lambda _: None)


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as fault:
        reason = (fault.strerror or str(fault)).lower()
        raise BadInput(Diagnostic(str(path), f"cannot be read: {reason}")) from None
    except ValueError:
        raise BadInput(Diagnostic(str(path), "is no text in UTF-8", "give a result file")) from None


def read_json(path: Path) -> Any:
    try:
        return load(read_text(path))
    except (ValueError, RecursionError) as fault:
        what = f"is no JSON: {fault}"
        raise BadInput(Diagnostic(str(path), what, REMEDY)) from None


def _is_number(value: object) -> bool:
    """A number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < 1 << 1000


def _kind(value: object) -> str:
    if value is None:
        return "null"
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
