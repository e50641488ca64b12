"""Strict building of typed facts: the frozen dataclasses that hold the facts are their schema.

`build(Gpu, data)` makes a `Gpu` of plain data by the annotations of its fields:

- a field without a default is a required key, one with a default an optional key;
- `Literal` is an enum, `X | None` may be null, `tuple[X, ...]` is a list, `Mapping[str, X]` has
  free keys, `dict[Literal[...], X]` exactly those, a nested dataclass its own ones, a `Path` names
  a file or folder of the data folder, and `Annotated[X, Check(...)]` narrows a value;
- what its reader takes as plain data has a literal for its form: `{"key": X, "optional?": X}`,
  `{"*": X}` for free keys, `[X]` for a list, `(X, Y)` for one of several; a field of a dataclass
  has it as `Annotated[X, Consistent(form)]`;
- a method `inconsistencies` of a dataclass yields the errors that no single field shows, each as a
  path from there and a text `what is wrong; how to mend it`.

Errors are collected, each with its dotted path and the nearest known name; `data_file` adds lines.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from ..diagnostics import NOWHERE, Diagnostic, located, nearest
from ..documents import DATA
from ..general_rules import (
    MISSING_KEY,
    UNKNOWN_KEY,
    UNKNOWN_VALUE,
    VALUE,
    VALUE_RANGE,
    VALUE_TYPE,
    Rule,
)

MAX_DEPTH = 50  # of a recursive schema

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on a value beyond its type; `requirement` continues "X is not allowed; "."""

    holds: Callable[[Any], bool]
    requirement: str


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T]):
    """A value, who says so, and whether that source was seen to say it."""

    value: T
    source: str
    verified: bool


@dataclass(frozen=True, slots=True, eq=False)
class Consistent:
    """Plain data of a kind; `inconsistencies` yields paths, and what is wrong at each."""

    kind: Any
    inconsistencies: Callable[[Any], Iterable[tuple[str, str]]] = lambda _: ()


def at_least(minimum: float) -> Check:
    return Check(lambda value: value >= minimum, f"must be >= {minimum}")


def one_of(names: Collection[object]) -> Check:
    """A condition for values that name something, such as a row of another table."""
    return Check(lambda value: value in names, f"must be one of {', '.join(map(str, names))}")


Positive = typing.Annotated[int, at_least(1)]
Text = typing.Annotated[str, Check(lambda text: bool(text.strip()), "must not be empty")]
Day = typing.Annotated[
    str, Check(lambda text: bool(re.fullmatch(r"\d{4}-\d\d-\d\d", text)), "must be YEAR-MONTH-DAY")
]


def build(kind: Any, data: Any) -> tuple[Any, list[Diagnostic]]:
    """Plain data as `kind`, or the errors by their dotted path."""
    reader = _Reader()
    value = reader.read(kind, data, "")
    return (None if reader.diagnostics else value), reader.diagnostics


class _Reader:
    """Builds a value by its type; `diagnostics` is what does not fit, by path."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []

    def read(self, kind: Any, value: Any, path: str) -> Any:
        if isinstance(kind, dict | list | tuple | Consistent):
            self._plain(kind, value, path)
            return value
        origin, arguments = shape(kind)
        if origin is Any or origin is object:
            return value
        if origin is typing.Annotated:
            return self._checked(arguments, value, path)
        if origin is typing.Union:
            return self._union(arguments, value, path)
        if origin is Literal:
            return self._literal(arguments, value, path)
        if origin is tuple:
            return self._list(arguments[0], value, path)
        if origin is Mapping or origin is dict:
            return self._mapping(kind, arguments, value, path)
        if origin is Path:
            return self._path(value, path)
        if dataclasses.is_dataclass(origin):
            return self._dataclass(kind, origin, value, path)
        if not _is_scalar(origin, value):
            self._wrong_type(value, path, (kind,))
        return value

    def _add(self, path: str, message: str, fix: str, rule: Rule) -> None:
        self.diagnostics.append(located(NOWHERE, path, message, fix, rule))

    def _wrong_type(self, value: Any, path: str, kinds: Collection[Any]) -> None:
        expected = " or ".join(dict.fromkeys(map(_describe, kinds)))
        fix = f"{expected} is expected"
        if str in kinds and isinstance(value, int | float) and not isinstance(value, bool):
            fix = f'text is expected: write "{value}" in quotes'
        self._add(path, f"is {_shown(value)}", fix, VALUE_TYPE)

    def _plain(self, kind: Any, value: Any, path: str) -> None:
        """Checks data that stays plain by the literal that shows its form."""
        if isinstance(kind, Consistent):
            before = len(self.diagnostics)
            self._plain(kind.kind, value, path)
            if len(self.diagnostics) == before:
                self._inconsistent(kind.inconsistencies(value), path)
        elif isinstance(kind, tuple):
            self._union(kind, value, path)
        elif isinstance(kind, list):
            self._list(kind[0], value, path)
        elif "*" in kind:
            self._mapping(dict, (str, kind["*"]), value, path)
        else:
            kinds = {name.removesuffix("?"): inner for name, inner in kind.items()}
            if self._has_keys(value, path, {name: name in kind for name in kinds}):
                for name in kinds.keys() & value.keys():
                    self.read(kinds[name], value[name], _below(path, name))

    def _checked(self, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
        kind, *checks = arguments
        before = len(self.diagnostics)
        found = self.read(kind, value, path)
        if len(self.diagnostics) == before:
            for check in checks:
                if isinstance(check, Consistent):
                    self._plain(check, value, path)
                elif isinstance(check, Check) and not check.holds(found):
                    what = f"{_shown(value)} is not allowed"
                    self._add(path, what, check.requirement, VALUE_RANGE)
        return found

    def _union(self, kinds: tuple[Any, ...], value: Any, path: str) -> Any:
        """The value as the first kind that it fits, else the errors of the nearest one."""
        alike = [kind for kind in kinds if is_alike(kind, value)]
        if len(alike) == 1:
            return self.read(alike[0], value, path)
        if not alike:
            self._wrong_type(value, path, kinds)
            return value
        trials: list[list[Diagnostic]] = []
        for kind in alike:
            reader = _Reader()
            found = reader.read(kind, value, path)
            if not reader.diagnostics:
                return found
            trials.append(reader.diagnostics)
        fewest: list[Diagnostic] = min(trials, key=len)
        self.diagnostics += fewest
        return value

    def _literal(self, values: tuple[Any, ...], value: Any, path: str) -> Any:
        if not any(value == each and _same(value, each) for each in values):
            what = f"{_shown(value)} is not allowed"
            fix = nearest(str(value), map(str, values))
            self._add(path, what, fix, UNKNOWN_VALUE)
        return value

    def _list(self, kind: Any, value: Any, path: str) -> Any:
        if not isinstance(value, list):
            self._wrong_type(value, path, ([kind],))
            return value
        return tuple(self.read(kind, item, _below(path, i)) for i, item in enumerate(value))

    def _path(self, value: Any, path: str) -> Any:
        if not isinstance(value, str):
            self._wrong_type(value, path, (str,))
            return value
        if not (DATA / value).exists():
            what = f"{value} is neither a file nor a folder of builder/data"
            self._add(path, what, "correct it", UNKNOWN_VALUE)
        return DATA / value

    def _mapping(self, kind: Any, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            self._wrong_type(value, path, (dict,))
            return value
        key_kind, item_kind = arguments
        origin, names = shape(key_kind)
        if origin is Literal and typing.get_origin(kind) is dict:
            self._has_keys(value, path, dict.fromkeys(names, True))
        else:
            for key in value:
                self.read(key_kind, key, _below(path, key))
        return {key: self.read(item_kind, item, _below(path, key)) for key, item in value.items()}

    def _dataclass(self, kind: Any, origin: Any, value: Any, path: str) -> Any:
        fields = dataclass_fields(kind)
        before = len(self.diagnostics)
        keys = {name: required for name, (_, required) in fields.items()}
        if not self._has_keys(value, path, keys):
            return value
        if path.count(".") > MAX_DEPTH:
            self._add(path, "is nested too deeply", "flatten it", VALUE_TYPE)
            return value
        arguments = {
            name: self.read(fields[name][0], item, _below(path, name))
            for name, item in value.items()
            if name in fields
        }
        if len(self.diagnostics) > before:
            return value
        found = origin(**arguments)
        if hasattr(found, "inconsistencies"):
            self._inconsistent(found.inconsistencies(), path)
        return found

    def _inconsistent(self, found: Iterable[tuple[str, str]], path: str) -> None:
        for where, what in found:
            message, _, fix = what.partition("; ")
            self._add(_below(path, where) if where else path, message, fix, VALUE)

    def _has_keys(self, value: Any, path: str, keys: Mapping[str, bool]) -> bool:
        """Whether a value is a mapping; its unknown keys and the required ones that it lacks."""
        if not isinstance(value, dict):
            self._wrong_type(value, path, (dict,))
            return False
        missing = [name for name, required in keys.items() if required and name not in value]
        for name in value:
            if name not in keys:
                fix = nearest(str(name), keys)
                self._add(_below(path, name), "unknown key", fix, UNKNOWN_KEY)
        for name in missing:
            self._add(_below(path, name), "is missing", "add it", MISSING_KEY)
        return True


@cache
def shape(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type by what distinguishes it: one origin for each way to spell it, and its arguments."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if hasattr(kind, "__metadata__"):
        return typing.Annotated, arguments
    if isinstance(origin, type) and issubclass(origin, tuple | list):
        return tuple, arguments
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return (dict if origin is dict else Mapping), arguments
    if origin is types.UnionType:
        return typing.Union, arguments
    return origin or kind, arguments


@cache
def dataclass_fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """The type of every field and whether it is required, type variables filled in."""
    origin, arguments = shape(kind)
    filled = dict(zip(getattr(origin, "__parameters__", ()), arguments, strict=False))
    # Names in its checks are those of its module.
    names = vars(sys.modules[origin.__module__])
    hints = typing.get_type_hints(origin, names, include_extras=True)
    return {
        field.name: (
            filled.get(hints[field.name], hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(origin)
        if field.init
    }


def is_alike(kind: Any, value: Any) -> bool:
    """Whether a value has the outer shape of a type."""
    if isinstance(kind, dict | list):
        return isinstance(value, type(kind))
    origin, arguments = shape(kind)
    if origin is typing.Annotated:
        return is_alike(arguments[0], value)
    if origin is typing.Union:
        return any(is_alike(each, value) for each in arguments)
    if origin is Literal:
        return any(_same(value, each) for each in arguments)
    if origin is tuple:
        return isinstance(value, list)
    if origin is Path:
        return isinstance(value, str)
    if origin in (Mapping, dict) or dataclasses.is_dataclass(origin):
        return isinstance(value, dict)
    return _is_scalar(origin, value)


def _is_scalar(kind: Any, value: Any) -> bool:
    if kind is Any or kind is object:
        return True
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is None or kind is type(None):
        return value is None
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other)


_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a mapping",
    type(None): "null",
}


def _describe(kind: Any) -> str:
    if isinstance(kind, dict | list):
        return "a list" if isinstance(kind, list) else "a mapping"
    origin, arguments = shape(kind)
    if origin is typing.Annotated:
        return _describe(arguments[0])
    if origin is typing.Union:
        return " or ".join(dict.fromkeys(map(_describe, arguments)))
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    return "a list" if origin is tuple else _NAMES.get(origin, "a mapping")


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return "null" if value is None else str(value)[:60]


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
