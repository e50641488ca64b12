"""Checks data against the class that describes it and builds that class, or lists every error.

A description is a dataclass (facts), a `Strict` class (deployments, site profiles), or a literal
for data that stays plain: `{"key": X, "optional?": X}`, `{"*": X}` for free keys, `[X]` for a list
and `(X, Y)` for one of several. An attribute without a default is a required key. A type is a
scalar, a class like these, `X | None`, `list[X]`, `tuple[X, ...]`, a mapping, or

- `Literal`: an enum; `dict[Literal[...], X]` has exactly these keys;
- `Path`: a file or folder of `builder/data`;
- `Annotated[X, note]`: X narrowed or changed by `Bounds`, `Check`, `one_of`, `Before` or `After`;
- `Annotated[Mapping, Plain(literal)]`: plain data in a dataclass.

A method `inconsistencies` of a dataclass yields the errors that no single key shows, each as a path
and a text `what is wrong; how to fix it`. Every error has a dotted path and a fix; whoever read the
file adds its name and the line.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, Generic, Literal, Self, TypeVar, dataclass_transform

from . import credentials, general_rules
from .diagnostics import Diagnostic, either, nearest
from .documents import DATA
from .errors import BadInput

MAX_DEPTH = 50  # of a recursive schema
MOST_KEYS = 50  # of one part of a file, of which an error lists all
# The names of bounds of a number, and what holds of a number and its bound.
BOUNDS = tuple(
    (name, sign, getattr(operator, name))
    for name, sign in (("le", "<="), ("lt", "<"), ("ge", ">="), ("gt", ">"))
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of a number, or the length and pattern of a text, list or mapping.

    A text matches all of `pattern`. A number that is not `exact` may be written as text.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Check:
    """A condition beyond the type; `requirement` is the fix: "must be a version"."""

    holds: Callable[[Any], Any]
    requirement: str


@dataclass(frozen=True, slots=True)
class Reference:
    """The value is one of `names()`: of files, or of rows elsewhere."""

    names: Callable[[], Collection[object]]


@dataclass(frozen=True, slots=True)
class Before:
    """Changes a value before it is read. May raise `ValueError` as `After` does."""

    change: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class After:
    """Changes what was read, or raises `ValueError` with `what is wrong; how to fix it`."""

    change: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Plain:
    """Data that stays plain; `inconsistencies` yields paths and what is wrong at each."""

    form: Any
    inconsistencies: Callable[[Any], Iterable[tuple[str, str]]] = lambda _: ()


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T]):
    """A value, its source, and whether somebody saw the value in that source."""

    value: T
    source: str
    verified: bool


def one_of(names: Collection[object]) -> Reference:
    return Reference(lambda: names)


Positive = typing.Annotated[int, Bounds(ge=1)]
Text = typing.Annotated[str, Check(str.strip, "must not be empty")]
Day = typing.Annotated[
    str, Check(re.compile(r"\d{4}-\d\d-\d\d").fullmatch, "must be YEAR-MONTH-DAY")
]


def _is_expression(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


Expression = typing.Annotated[str, Check(_is_expression, "must be a regular expression")]


def default(make: Callable[[], Any]) -> Any:
    """The value of an attribute that is not set, made anew for each object."""
    return dataclasses.field(default_factory=make)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(default,))
class Strict:
    """A part of a deployment file. Unlike a dataclass, its class costs nothing to define."""

    # Names that other tools use -> the names here; without a type, so that these are no keys.
    other_names = MappingProxyType[str, str]({})
    # Examples for the errors of keys, by path.
    examples = MappingProxyType[str, str]({})

    def __init__(self, **values: Any) -> None:
        """Takes checked values; `read` is for data that somebody wrote."""
        for name in fields_of(type(self)):
            found = values[name] if name in values else getattr(type(self), name)
            if isinstance(found, dataclasses.Field):
                make: Any = found.default_factory
                found = make()
            self.__dict__[name] = found

    @classmethod
    def read(cls, data: Any, path: str = "") -> tuple[Self | None, list[Diagnostic]]:
        """The part, or everything that is wrong with it below a path."""
        found, diagnostics = build(cls, data, path)
        return found, [Diagnostic(row.path, row.message, row.fix) for row in diagnostics]

    @classmethod
    def of(cls, data: Any) -> Self:
        """The part of data that was read before. Raises `BadInput`."""
        found, diagnostics = cls.read(data)
        if found is None:
            raise BadInput(diagnostics)
        return found

    @classmethod
    def prepared(cls, data: Any) -> Any:
        """Changes data before it is read. Raises `ValueError` as `After` does."""
        return data

    def check(self) -> None:
        """Raises `ValueError`, as `After` does, if the values do not fit together."""

    def data(self, exclude_none: bool = False) -> dict[str, Any]:
        """The part as plain data; `exclude_none` leaves out attributes, but no keys of mappings."""
        return {
            name: _plain_data(value, exclude_none)
            for name, value in self.__dict__.items()
            if not (exclude_none and value is None)
        }

    def replaced(self, **values: Any) -> Self:
        """A copy with other values, which are known to be right."""
        return type(self)(**{**self.__dict__, **values})

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} does not change: {name}")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__dict__})"


def _plain_data(value: Any, exclude_none: bool) -> Any:
    if isinstance(value, Strict):
        return value.data(exclude_none)
    if isinstance(value, dict):
        return {key: _plain_data(item, exclude_none) for key, item in value.items()}
    return [_plain_data(item, exclude_none) for item in value] if isinstance(value, list) else value


def build(kind: Any, data: Any, path: str = "") -> tuple[Any, list[Diagnostic]]:
    """Data as an object of `kind`, or `None` and the errors by path."""
    reader = _Reader(getattr(kind, "examples", {}))
    value = reader.read(kind, data, path)
    return (None if reader.diagnostics else value), reader.diagnostics


def known(form: Any, value: Any) -> Any:
    """The parts of plain data that a literal names, without nulls of optional keys."""
    if isinstance(form, list) and isinstance(value, list):
        return [known(form[0], item) for item in value]
    if not isinstance(form, dict) or not isinstance(value, dict):
        return value
    if "*" in form:
        return {name: known(form["*"], item) for name, item in value.items()}
    kinds = {name.removesuffix("?"): inner for name, inner in form.items()}
    named = {name: item for name, item in value.items() if name in kinds}
    return {n: known(kinds[n], v) for n, v in named.items() if v is not None or n in form}


class _Reader:
    """Builds a value by its type and collects the errors."""

    def __init__(self, examples: Mapping[str, str]) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._examples = examples

    def read(self, kind: Any, value: Any, path: str) -> Any:
        if isinstance(kind, dict | list | tuple | Plain):
            self._plain(kind, value, path)
            return value
        origin, arguments = shape(kind)
        if origin is Any or origin is object:
            return value
        if origin is typing.Annotated:
            return self._annotated(arguments, value, path)
        if origin is typing.Union:
            return self._union(arguments, value, path)
        if origin is Literal:
            if not any(value == each and type(value) is type(each) for each in arguments):
                self._not_allowed(value, arguments, path)
            return value
        if _is_strict(origin):
            if isinstance(value, origin):
                return value
            before = len(self.diagnostics)
            value = self._changed(origin.prepared, value, path)
            if len(self.diagnostics) > before:
                return None
        if not is_alike(kind, value):
            self._wrong_type(value, path, (kind,))
            return value
        if origin in (list, tuple):
            items = [self.read(arguments[0], each, _below(path, i)) for i, each in enumerate(value)]
            return origin(items)
        if origin is Mapping or origin is dict:
            return self._mapping(origin, arguments, value, path)
        if origin is Path:
            if not (DATA / value).exists():
                what = f"{value} is neither a file nor a folder of builder/data"
                self._add(path, what, "correct it", general_rules.UNKNOWN_VALUE)
            return DATA / value
        return self._object(kind, origin, value, path) if _is_class(origin) else value

    def _add(self, path: str, message: str, fix: str, rule: general_rules.Rule) -> None:
        self.diagnostics.append(Diagnostic("", message, fix, rule, path=path))

    def _wrong_type(self, value: Any, path: str, kinds: Iterable[Any]) -> None:
        expected = dict(chain.from_iterable(map(_described, kinds)))
        shown = _shown(value, path)
        fix = next(iter(expected.values()))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and _TYPES[str][0] in expected:
            fix = f"""write "{shown}" in quotes (in a shell '"{shown}"')"""
        elif path in self._examples or fix == _MAPPING[1]:
            fix = f"write {self._example(path)}"
        self._add(path, f"{shown} is not {either(expected)}", fix, general_rules.VALUE_TYPE)

    def _example(self, path: str) -> str:
        last = path.rpartition(".")[2]
        return self._examples.get(path, f"{last}: {{KEY: VALUE}}" if last else "KEY: VALUE")

    def _not_allowed(self, value: Any, names: Collection[object], path: str) -> None:
        fix = nearest(str(value), map(str, names))
        self._add(path, f"{_shown(value, path)} is not allowed", fix, general_rules.UNKNOWN_VALUE)

    def _plain(self, kind: Any, value: Any, path: str) -> None:
        """Checks data that stays plain by the literal that describes it."""
        if isinstance(kind, Plain):
            before = len(self.diagnostics)
            self._plain(kind.form, value, path)
            if len(self.diagnostics) == before:
                self._inconsistent(kind.inconsistencies(value), path)
        elif isinstance(kind, tuple):
            self._union(kind, value, path)
        elif not is_alike(kind, value):
            self._wrong_type(value, path, (kind,))
        elif isinstance(kind, list):
            for index, item in enumerate(value):
                self.read(kind[0], item, _below(path, index))
        elif "*" in kind:
            self._mapping(Mapping, (str, kind["*"]), value, path)
        else:
            kinds = {name.removesuffix("?"): inner for name, inner in kind.items()}
            self._check_keys(value, path, {name: name in kind for name in kinds})
            for name in kinds.keys() & value.keys():
                self.read(kinds[name], value[name], _below(path, name))

    def _annotated(self, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
        """A value by its type and then by all notes, in this order."""
        kind, *notes = arguments
        before = len(self.diagnostics)
        for note in notes:
            if isinstance(note, Before):
                value = self._changed(note.change, value, path)
        if len(self.diagnostics) > before:
            return value
        inexact = any(isinstance(note, Bounds) and not note.exact for note in notes)
        found = self._number(value, path) if inexact else self.read(kind, value, path)
        for note in notes:
            if len(self.diagnostics) > before:
                break
            if isinstance(note, Bounds):
                self._bounded(note, found, value, path)
            elif isinstance(note, Check) and not note.holds(found):
                what = f"{_shown(value, path)} is not allowed"
                self._add(path, what, note.requirement, general_rules.VALUE_RANGE)
            elif isinstance(note, Reference) and found not in (names := note.names()):
                self._not_allowed(found, names, path)
            elif isinstance(note, Plain):
                self._plain(note, value, path)
            elif isinstance(note, After):
                found = self._changed(note.change, found, path)
        return found

    def _number(self, value: Any, path: str) -> Any:
        try:
            return float(value)
        except (TypeError, ValueError):
            self._wrong_type(value, path, (float,))
            return value

    def _bounded(self, bounds: Bounds, value: Any, given: Any, path: str) -> None:
        """The first bound that a value breaks, with the value as it was written."""
        if isinstance(value, str | list | dict):
            if not self._has_length(bounds, value, path):
                return
            if (
                bounds.pattern
                and isinstance(value, str)
                and not re.fullmatch(bounds.pattern, value)
            ):
                what = f"{_shown(value, path)} is not allowed"
                self._add(path, what, f"it must match {bounds.pattern}", general_rules.VALUE_RANGE)
            return
        for name, sign, holds in BOUNDS:
            if (limit := getattr(bounds, name)) is not None and not holds(value, limit):
                self._out_of_range(given, path, f"{sign} {limit}")
                return
        if not math.isfinite(value):
            self._out_of_range(given, path, "finite")

    def _has_length(
        self, bounds: Bounds, value: str | list[Any] | dict[Any, Any], path: str
    ) -> bool:
        length, least, most = len(value), bounds.min_length or 0, bounds.max_length
        if length >= least and (most is None or length <= most):
            return True
        is_text = isinstance(value, str)
        limit = f"at least {least}" if length < least else f"at most {most}"
        fix = f"write {limit} {'characters' if is_text else 'items'}"
        if length:
            what = f"{_shown(value, path)} is too {'short' if length < least else 'long'}"
        else:
            what, fix = "is empty", "write something" if is_text else f"write {self._example(path)}"
        self._add(path, what, fix, general_rules.VALUE_RANGE)
        return False

    def _out_of_range(self, given: Any, path: str, bound: str) -> None:
        what = f"{_shown(given, path)} is out of range"
        self._add(path, what, f"must be {bound}", general_rules.VALUE_RANGE)

    def _union(self, kinds: tuple[Any, ...], value: Any, path: str) -> Any:
        """The value as the first kind that it fits, else the errors of the nearest one."""
        if value is not None:
            kinds = tuple(kind for kind in kinds if kind not in (None, NoneType))
        if len(kinds) == 1:
            return self.read(kinds[0], value, path)
        alike = [kind for kind in kinds if is_alike(kind, value)]
        if not alike:
            self._wrong_type(value, path, kinds)
            return value
        trials: list[list[Diagnostic]] = []
        for kind in alike:
            reader = _Reader(self._examples)
            found = reader.read(kind, value, path)
            if not reader.diagnostics:
                return found
            trials.append(reader.diagnostics)
        fewest: list[Diagnostic] = min(trials, key=len)
        self.diagnostics += fewest
        return value

    def _mapping(self, origin: Any, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
        key_kind, item_kind = arguments
        kind, names = shape(key_kind)
        if kind is Literal and origin is dict:
            self._check_keys(value, path, dict.fromkeys(names, True))
        found = {}
        for key, item in value.items():
            place = _below(path, key)
            name = key
            if kind is not Literal or origin is not dict:
                name = self.read(key_kind, key, place)
            if name in found:
                self._add(place, f"repeats {name}", "keep one", general_rules.VALUE)
            found[name] = self.read(item_kind, item, place)
        return found

    def _object(self, kind: Any, origin: Any, value: Any, path: str) -> Any:
        before = len(self.diagnostics)
        fields = fields_of(kind)
        keys = {name: required for name, (_, required) in fields.items()}
        if path.count(".") > MAX_DEPTH:
            self._add(path, "is nested too deeply", "flatten it", general_rules.VALUE_TYPE)
            return None
        found = {
            name: self.read(inner, value[name], _below(path, name))
            for name, (inner, _) in fields.items()
            if name in value
        }
        self._check_keys(value, path, keys, getattr(origin, "other_names", {}))
        if len(self.diagnostics) > before:
            return None
        made = origin(**found)
        if isinstance(made, Strict):
            self._changed(lambda _: made.check(), made, path)
        elif hasattr(made, "inconsistencies"):
            self._inconsistent(made.inconsistencies(), path)
        return made

    def _inconsistent(self, found: Iterable[tuple[str, str]], path: str) -> None:
        for where, what in found:
            message, _, fix = what.partition("; ")
            self._add(_below(path, where) if where else path, message, fix, general_rules.VALUE)

    def _changed(self, change: Callable[[Any], Any], value: Any, path: str) -> Any:
        """The value that a function makes of another one, or the error that it raises."""
        try:
            return change(value)
        except ValueError as error:
            message, _, fix = str(error).partition("; ")
            self._add(path, message, fix, general_rules.VALUE)
            return value

    def _check_keys(
        self,
        value: Mapping[Any, Any],
        path: str,
        keys: Mapping[str, bool],
        other_names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        meant = {name: ours for name, ours in other_names.items() if name in value}
        for name in value:
            if name not in keys:
                near = nearest(str(name), keys, most=MOST_KEYS)
                fix = f"write {meant[name]}" if name in meant else near
                self._add(_below(path, name), "unknown key", fix, general_rules.UNKNOWN_KEY)
        for name, required in keys.items():
            if required and name not in value and name not in meant.values():
                place = _below(path, name)
                fix = f"write {self._example(place)}" if place in self._examples else "add it"
                self._add(place, "is missing", fix, general_rules.MISSING_KEY)


@cache
def shape(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """One origin for each kind of type, however it is spelled, and its arguments."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if hasattr(kind, "__metadata__"):
        return typing.Annotated, arguments
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return (dict if origin is dict else Mapping), arguments
    if origin is types.UnionType:
        return typing.Union, arguments
    return origin or kind, arguments


def _is_strict(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Strict)


def _is_class(kind: Any) -> bool:
    return _is_strict(kind) or dataclasses.is_dataclass(kind)


def fields_of(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    """The type of every attribute and whether it is required, type variables filled in."""
    return _fields_of(kind)


@cache
def _fields_of(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    origin, arguments = shape(kind)
    if issubclass(origin, Strict):
        hints = typing.get_type_hints(origin, include_extras=True)
        return {name: (hint, not hasattr(origin, name)) for name, hint in hints.items()}
    filled = dict(zip(getattr(origin, "__parameters__", ()), arguments, strict=False))
    # Names in its checks are those of its module.
    names = vars(sys.modules[origin.__module__])
    hints = typing.get_type_hints(origin, names, include_extras=True)
    missing = dataclasses.MISSING
    return {
        row.name: (
            filled.get(hints[row.name], hints[row.name]),
            row.default is missing and row.default_factory is missing,
        )
        for row in dataclasses.fields(origin)
        if row.init
    }


def is_alike(kind: Any, value: Any) -> bool:
    """Whether a value has the outer form of a type."""
    if isinstance(kind, dict | list):
        return isinstance(value, type(kind))
    origin, arguments = shape(kind)
    if origin is typing.Annotated:
        changed = any(isinstance(note, Before) for note in arguments[1:])
        loose = any(isinstance(note, Bounds) and not note.exact for note in arguments[1:])
        return changed or (loose and isinstance(value, str)) or is_alike(arguments[0], value)
    if origin is typing.Union:
        return any(is_alike(each, value) for each in arguments)
    if origin is Literal:
        return any(type(value) is type(each) for each in arguments)
    if origin in (list, tuple):
        return isinstance(value, list)
    if origin is Path:
        return isinstance(value, str)
    if origin in (Mapping, dict) or _is_class(origin):
        return isinstance(value, dict)
    if origin is Any or origin is object:
        return True
    if origin is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if origin is None or origin is NoneType:
        return value is None
    return isinstance(value, origin) and isinstance(value, bool) == (origin is bool)


_MAPPING = ("a mapping", "write KEY: VALUE")
_LIST = ("a list", "write [ITEM, ...]")
# Words for types, and what to write.
_TYPES: Mapping[Any, tuple[str, str]] = {
    int: ("an integer", "write one such as 8"),
    float: ("a number", "write one such as 0.5"),
    bool: ("true or false", "write true or false"),
    str: ("text", "write one name"),
    Path: ("text", "write a path"),
    NoneType: ("null", "write null"),
    list: _LIST,
    tuple: _LIST,
}


def _described(kind: Any) -> Iterable[tuple[str, str]]:
    if isinstance(kind, dict | list):
        return [_LIST if isinstance(kind, list) else _MAPPING]
    origin, arguments = shape(kind)
    if origin is typing.Annotated:
        return _described(arguments[0])
    if origin is typing.Union:
        return chain.from_iterable(map(_described, arguments))
    if origin is Literal:
        names = list(map(str, arguments))
        return [(f"one of {', '.join(names)}", f"write {either(names)}")]
    return [_TYPES.get(origin, _MAPPING)]


def _shown(value: Any, path: str) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return "null" if value is None else credentials.shown(value, path)


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
