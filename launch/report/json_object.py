"""Typed reading of untrusted JSON: each value has the expected type, or a diagnostic says where."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import field, fields
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

from builder import files
from builder.diagnostics import Diagnostic
from builder.errors import BadInput

# Of a result file with a figure for every token of thousands of requests.
MAX_VALUES = 4_000_000
REMEDY = "write the file again with the tool that made it"

T = TypeVar("T")


# How `JsonObject.read` takes a field, by the first word of its annotation.
KINDS = {"str": "text", "float": "number", "int": "count", "bool": "flag"}


def json_field(path: str) -> Any:
    """A dataclass field that `JsonObject.read` takes from a dotted path, not from its own name."""
    return field(metadata={"path": path})


class UnknownFormat(BadInput):
    """No result of any tool that is known."""


class JsonObject:
    """A JSON object and its location. Absent and null values are None.

    All objects of one document collect their diagnostics in one list, which `check` raises.
    """

    def __init__(
        self, document: Any, where: str, path: str = "", diagnostics: list[Diagnostic] | None = None
    ) -> None:
        self.where, self.path = where, path
        self.diagnostics: list[Diagnostic] = [] if diagnostics is None else diagnostics
        if not isinstance(document, dict):
            self._wrong("", document, "an object")
            document = {}
        self.values: dict[str, Any] = document
        self._children: dict[str, JsonObject] = {}

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

    def child(self, key: str) -> JsonObject:
        """The object under a key, empty if it is missing."""
        if key not in self._children:
            found = {} if (value := self.values.get(key)) is None else value
            child = JsonObject(found, self.where, self._at(key), self.diagnostics)
            self._children[key] = child
        return self._children[key]

    def children(self, key: str) -> Iterator[JsonObject]:
        """The objects of the list under a key."""
        value = self.values.get(key)
        if not isinstance(value, list):
            if value is not None:
                self._wrong(key, value, "a list")
            return
        for index, item in enumerate(value):
            yield JsonObject(item, self.where, f"{self._at(key)}[{index}]", self.diagnostics)

    def named(self, key: str) -> dict[str, JsonObject]:
        """The objects of the object under a key, by name."""
        child = self.child(key)
        return {name: child.child(name) for name in child.values}

    def read(self, dataclass: type[T], **others: Any) -> T:
        """A dataclass: some of its fields as given, the others from here by their annotations."""
        for one in fields(dataclass):  # type: ignore[arg-type]
            if one.name not in others:
                *parents, key = one.metadata.get("path", one.name).split(".")
                holder = reduce(JsonObject.child, parents, self)
                kind, _, optional = str(one.type).partition(" ")
                is_absent = bool(optional) and key not in holder
                others[one.name] = None if is_absent else getattr(holder, KINDS[kind])(key)
        return dataclass(**others)

    def require(self, key: str) -> None:
        """A diagnostic if the key is missing."""
        if key not in self:
            self.fault(key, "is missing")

    def fault(self, key: str, what: str) -> None:
        """A diagnostic of what is wrong at a key."""
        location = self._at(key) or "the document"
        self.diagnostics.append(Diagnostic(f"{self.where}: {location}", what, REMEDY))

    def check(self) -> None:
        """Raises `BadInput` with every diagnostic so far."""
        if self.diagnostics:
            raise BadInput(self.diagnostics)

    def _wrong(self, key: str, value: object, expected: str) -> None:
        self.fault(key, f"is {_shown(value)}; {expected} is expected")

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}".strip(".")


def load(text: str) -> Any:
    """JSON with NaN and infinities as null, since some tools write them for unknown values."""
    return files.parse_json(text, max_values=MAX_VALUES, constant=lambda _: None)


def read_text(path: Path) -> str:
    content = files.read_bytes(path, BadInput, files.MAX_JSON_BYTES)
    try:
        return content.decode("utf-8-sig")
    except ValueError:
        what = "is not UTF-8 text"
        raise UnknownFormat(Diagnostic(str(path), what, "give a result file")) from None


def read_json(path: Path) -> Any:
    try:
        return load(read_text(path))
    except ValueError as error:
        what = f"is not valid JSON: {error}"
        raise BadInput(Diagnostic(str(path), what, REMEDY)) from None


def _is_number(value: object) -> bool:
    """A number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < 1 << 1000


def _shown(value: object) -> str:
    if value is None:
        return "null"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."
