"""The parts of deployment files and site profiles: strict schemas, and what does not fit them.

A part is a class with annotated attributes: one without a default is a required key. A type is a
scalar, `Any`, a `Literal`, a list, a mapping, another part, or one of these `| None`; `Annotated`
narrows it by `Bounds`, changes what is given by `Before`, and judges or changes what was read by
`After`. All errors are found at once, each with the dotted path of its value.

`builder.facts.schema` does the same for what ships; here whoever wrote the file is told what to
write instead, nothing that may be a credential is repeated, and parts have defaults to fill in.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Literal, Self, dataclass_transform, get_type_hints

from . import credentials
from .diagnostics import Diagnostic, nearest
from .errors import BadInput
from .facts.schema import shape


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an annotated value keeps; lengths are of texts, lists and mappings.

    A text matches all of `pattern`. A number that is not `exact` may be a text, and is finite where
    it must be.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    exact: bool = True
    finite: bool = False


@dataclass(frozen=True, slots=True)
class Before:
    """Makes of what is given what is read then."""

    change: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class After:
    """Makes of what was read the value, or raises `ValueError` with `what is wrong; a remedy`."""

    change: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Default:
    make: Callable[[], Any]


def default(make: Callable[[], Any]) -> Any:
    """The value of an attribute that is not given, made anew for each part."""
    return _Default(make)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(default,))
class Strict:
    """A part of a deployment file: unknown keys are errors, values never change."""

    # What other tools call an attribute -> its name here; without a type, so that it is none.
    other_names = MappingProxyType[str, str]({})

    def __init__(self, **values: Any) -> None:
        """Of values that are known to be right; `read` is for what somebody wrote."""
        part: Any = type(self)
        defaults = _defaults(part)
        self.__dict__.update(
            {
                name: values[name] if name in values else defaults[name].make()
                for name in fields(part)
            }
        )

    @classmethod
    def read(cls, data: Any, path: str = "") -> tuple[Self | None, list[Diagnostic]]:
        """The part, or everything that is wrong with it below a path."""
        reader = _PartReader()
        found = reader.part(cls, data, path)
        return (None if reader.diagnostics else found), reader.diagnostics

    @classmethod
    def of(cls, data: Any) -> Self:
        """The part that data is, which was read before. Raises `BadInput`."""
        found, diagnostics = cls.read(data)
        if found is None:
            raise BadInput(diagnostics)
        return found

    @classmethod
    def prepared(cls, data: Any) -> Any:
        """What is read in the place of what is given. Raises `ValueError` as `After` does."""
        return data

    def check(self) -> None:
        """Raises `ValueError`, as `After` does, where the values do not fit each other."""

    def data(self, exclude_none: bool = False) -> dict[str, Any]:
        """The part as plain data; `exclude_none` leaves out attributes, and no keys of mappings."""
        return {
            name: _plain(value, exclude_none)
            for name, value in self.__dict__.items()
            if not (exclude_none and value is None)
        }

    def replaced(self, **values: Any) -> Self:
        """The same part with other values, which are known to be right."""
        return type(self)(**{**self.__dict__, **values})

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} does not change: {name}")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({values})"


def fields(part: Any) -> Mapping[str, Any]:
    """The type of each attribute of a part, by its name."""
    return _fields(part)


@cache
def _fields(part: type) -> Mapping[str, Any]:
    return get_type_hints(part, include_extras=True)


@cache
def _defaults(part: Any) -> Mapping[str, _Default]:
    """What makes the values of those attributes that need not be given."""
    given = {name: getattr(part, name) for name in fields(part) if hasattr(part, name)}
    return {
        name: value if isinstance(value, _Default) else _Default(partial(_same, value))
        for name, value in given.items()
    }


def _same(value: Any) -> Any:
    return value


def _plain(value: Any, exclude_none: bool) -> Any:
    if isinstance(value, Strict):
        return value.data(exclude_none)
    if isinstance(value, dict):
        return {key: _plain(item, exclude_none) for key, item in value.items()}
    return [_plain(item, exclude_none) for item in value] if isinstance(value, list) else value


class _PartReader:
    """Reads values by their types; `diagnostics` is what does not fit, in the words of the file."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []

    def part(self, part: Any, value: Any, path: str) -> Any:
        if isinstance(value, part):
            return value
        before = len(self.diagnostics)
        value = self._judged(part.prepared, value, path)
        if len(self.diagnostics) > before:
            return None
        if not isinstance(value, dict):
            self._not_a_mapping(value, path)
            return None
        found, known, defaults = {}, fields(part), _defaults(part)
        meant = {name: ours for name, ours in part.other_names.items() if name in value}
        for name, kind in known.items():
            place = _below(path, name)
            if name in value:
                found[name] = self.read(kind, value[name], place)
            elif name not in defaults and name not in meant.values():
                fix = f"write {_EXAMPLES[place]}" if place in _EXAMPLES else "add it"
                self._add(place, "is missing", fix)
        for name in value:
            if not isinstance(name, str):
                self._wrong(name, _below(path, name), "keys should be strings")
            elif name not in known:
                fix = f"write {meant[name]}" if name in meant else nearest(name, known)
                self._add(_below(path, name), "unknown key", fix)
        if len(self.diagnostics) > before:
            return None
        made = part(**found)
        self._judged(lambda _: made.check(), made, path)
        return made

    def read(self, kind: Any, value: Any, path: str) -> Any:
        """The value of a type, or anything where an error was found."""
        origin, arguments = shape(kind)
        if origin is typing.Annotated:
            return self._annotated(arguments, value, path)
        if origin is typing.Union:
            return self._union(arguments, value, path)
        if origin is Literal:
            if not any(value == one and type(value) is type(one) for one in arguments):
                allowed = one_of([repr(one) for one in arguments])
                self._add(path, f"{_shown(value, path)} is not allowed", f"allowed: {allowed}")
            return value
        if origin is dict:
            return self._mapping(arguments, value, path)
        if isinstance(origin, type) and issubclass(origin, Strict):
            return self.part(origin, value, path)
        if origin is tuple:  # as `shape` calls lists
            if not isinstance(value, list):
                self._wrong(value, path, "input should be a valid list")
                return value
            return [self.read(arguments[0], item, _below(path, i)) for i, item in enumerate(value)]
        return value if origin is Any else self._scalar(origin, value, path)

    def _scalar(self, kind: type, value: Any, path: str) -> Any:
        if kind is str:
            if not isinstance(value, str):
                shown = _shown(value, path)
                one = isinstance(value, int | float)
                self._add(
                    path,
                    f"is {shown}, not text",
                    f"""write "{shown}" in quotes (in a shell '"{shown}"')"""
                    if one
                    else "write one name",
                )
        elif kind is bool:
            if not isinstance(value, bool):
                self._wrong(value, path, "input should be a valid boolean")
        elif isinstance(value, bool) or not isinstance(value, int | kind):
            what = "integer" if kind is int else "number"
            self._wrong(value, path, f"input should be a valid {what}")
        return float(value) if kind is float and isinstance(value, int) else value

    def _annotated(self, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
        """A value by its type and by all that is said about it, in this order."""
        kind, *notes = arguments
        before = len(self.diagnostics)
        for note in notes:
            if isinstance(note, Before):
                value = self._judged(note.change, value, path)
        if len(self.diagnostics) > before:
            return value
        inexact = any(isinstance(note, Bounds) and not note.exact for note in notes)
        found = self._number(value, path) if inexact else self.read(kind, value, path)
        for note in notes:
            if len(self.diagnostics) > before:
                return found
            if isinstance(note, Bounds):
                self._limited(note, found, value, path)
            elif isinstance(note, After):
                found = self._judged(note.change, found, path)
        return found

    def _number(self, value: Any, path: str) -> Any:
        """A number that may be given as a text."""
        try:
            return float(value)
        except ValueError:
            what = "input should be a valid number, unable to parse string as a number"
        except TypeError:
            what = "input should be a valid number"
        self._wrong(value, path, what)
        return value

    def _union(self, kinds: tuple[Any, ...], value: Any, path: str) -> Any:
        """The value as the one of the types that has its shape, else as the first."""
        if value is None and type(None) in kinds:
            return None
        others = [kind for kind in kinds if kind is not type(None)]
        mapping = [kind for kind in others if shape(kind)[0] is dict and isinstance(value, dict)]
        scalars = [kind for kind in others if shape(kind)[0] is not dict]
        return self.read((mapping or scalars)[0], value, path)

    def _mapping(self, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            self._not_a_mapping(value, path)
            return value
        key_kind, item_kind = arguments
        found = {}
        for key, item in value.items():
            place = _below(path, key)
            name = self.read(key_kind, key, f"{place}.[key]")
            if name in found:
                self._add(place, f"says {name} again", "keep one")
            found[name] = self.read(item_kind, item, place)
        return found

    def _limited(self, limits: Bounds, value: Any, given: Any, path: str) -> None:
        """What a value breaks of its limits: the first thing, with the value as it was given."""
        if not isinstance(value, str | list | dict):
            self._range(limits, value, given, path)
        elif not self._has_length(limits, value, path):
            return
        elif isinstance(value, str) and limits.pattern and not _matches(limits.pattern, value):
            what = f"{_shown(value, path)} is not allowed"
            self._add(path, what, f"it must match {limits.pattern}")

    def _has_length(
        self, limits: Bounds, value: str | list[Any] | dict[Any, Any], path: str
    ) -> bool:
        least, most, length = limits.min_length or 0, limits.max_length, len(value)
        if length >= least and (most is None or length <= most):
            return True
        count, word = (least, "least") if length < least else (most, "most")
        if isinstance(value, str):
            letters = "character" if count == 1 else "characters"
            self._wrong(value, path, f"string should have at {word} {count} {letters}")
        elif length < least:
            self._add(path, "is empty", f"write {_example(path)}")
        else:
            what = f"list should have at most {most} items after validation, not {length}"
            self._wrong(value, path, what)
        return False

    def _range(self, limits: Bounds, value: Any, given: Any, path: str) -> None:
        kind = type(value)
        if limits.finite and not math.isfinite(value):
            self._wrong(given, path, "input should be a finite number")
        elif limits.le is not None and not value <= limits.le:
            self._out_of_range(given, path, f"<= {kind(limits.le)}")
        elif limits.lt is not None and not value < limits.lt:
            self._wrong(given, path, f"input should be less than {kind(limits.lt):g}")
        elif limits.ge is not None and not value >= limits.ge:
            self._out_of_range(given, path, f">= {kind(limits.ge)}")
        elif limits.gt is not None and not value > limits.gt:
            self._out_of_range(given, path, f"> {kind(limits.gt)}")

    def _out_of_range(self, given: Any, path: str, bound: str) -> None:
        self._add(path, f"{_shown(given, path)} is out of range", f"must be {bound}")

    def _judged(self, change: Callable[[Any], Any], value: Any, path: str) -> Any:
        """What is made of a value, with the error that this finds."""
        try:
            return change(value)
        except ValueError as error:
            what, _, remedy = str(error).partition("; ")
            self._add(path, what, remedy)
            return value

    def _not_a_mapping(self, value: Any, path: str) -> None:
        self._add(path, f"is {_shown(value, path)}, not a mapping", f"write {_example(path)}")

    def _wrong(self, value: Any, path: str, message: str) -> None:
        self._add(path, f"is {_shown(value, path)}", message)

    def _add(self, path: str, message: str, fix: str) -> None:
        self.diagnostics.append(Diagnostic(path, message, fix))


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _matches(pattern: str, text: str) -> bool:
    """Whether all of a text matches; `$` alone would let a line break through."""
    return _pattern(pattern).fullmatch(text) is not None


def one_of(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _shown(value: Any, path: str) -> str:
    return credentials.shown(value, path)


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


_EXAMPLES: Mapping[str, str] = {
    "name": "name: my-deployment",
    "checkpoint": "checkpoint: a folder, or a hub name",
    "targets": "targets: [trtllm_serve, triton]",
    "hardware": "hardware: {gpu: gb200, num_gpus: 4}",
    "engine": "engine: {release: 1.2.1}",
    "workload": "workload: {isl: 800, osl: 1600, concurrency: 64}",
}


def _example(path: str) -> str:
    return _EXAMPLES.get(path, f"{path.rpartition('.')[2]}: {{KEY: VALUE}}")
