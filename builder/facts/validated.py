"""Typed facts of data that was validated before: what `schema.build` makes, without its checks."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..documents import DATA
from .schema import Consistent, build, dataclass_fields, is_alike, shape

_Convert = Callable[[Any], Any]


def build_validated(kind: Any, data: Any) -> Any:
    """Data that was validated before as `kind`: faster, and without any check."""
    convert = _converter(kind)
    return convert(data) if convert else data


def _converter(kind: Any) -> _Convert | None:
    """What makes validated data a value of a type; `None` where the data is the value."""
    is_plain = isinstance(kind, dict | list | tuple | Consistent)
    return None if is_plain else _converter_of(kind)


@cache
def _converter_of(kind: Any) -> _Convert | None:
    origin, arguments = shape(kind)
    if origin is typing.Annotated:
        return _converter(arguments[0])
    if origin is typing.Union:
        return _converter_of_union(arguments)
    if origin is tuple:
        item = _converter(arguments[0])
        return (lambda value: tuple(map(item, value))) if item else tuple
    if origin is Mapping or origin is dict:
        below = _converter(arguments[1]) if arguments else None
        return below and (lambda value: {key: below(each) for key, each in value.items()})
    if origin is Path:
        return lambda value: DATA / value
    return _Build(kind) if dataclasses.is_dataclass(origin) else None


def _converter_of_union(kinds: tuple[Any, ...]) -> _Convert | None:
    converters = [(kind, _converter(kind)) for kind in kinds]
    if not any(convert for _, convert in converters):
        return None

    def convert(value: Any) -> Any:
        alike = [row for row in converters if is_alike(row[0], value)]
        if len(alike) == 1:
            ((_, found),) = alike
            return found(value) if found else value
        found, _ = build(typing.Union[kinds], value)  # noqa: UP007, of a tuple
        return found

    return convert


class _Build:
    """Makes a dataclass of validated data; its fields are looked at once it is used, as a type may
    hold itself."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._origin, _ = shape(kind)
        self._converters: dict[str, _Convert] | None = None

    def __call__(self, value: Any) -> Any:
        if self._converters is None:
            fields = dataclass_fields(self._kind).items()
            found = {name: _converter(kind) for name, (kind, _) in fields}
            self._converters = {name: row for name, row in found.items() if row}
        given = dict(value)
        for name, convert in self._converters.items():
            if name in given:
                given[name] = convert(given[name])
        return self._origin(**given)
