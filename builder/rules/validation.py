"""Validates engine options against a release's table: every error with its path and remedy.

Values are read as the engine reads them: `"3"` is 3, 1 is true, and unknown keys are errors at any
depth. The findings of several tables for the same options can be merged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from ..diagnostics import Diagnostic, closest
from ..documents import Variable, groups_of
from ..facts.release import Field, Release, discriminator
from ..facts.release.record import by_name
from ..general_rules import (
    DEPRECATED,
    MISSING_KEY,
    UNCERTAIN_KEY,
    UNKNOWN_KEY,
    UNKNOWN_VALUE,
    VALUE_RANGE,
    VALUE_TYPE,
)
from .options import SHAPES, OptionPath, bounds, kind_fields, named, spelled, wrong_type
from .remedies import unknown_key, unknown_value


def validate(release: Release, options: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Every option that a release rejects or advises against: `where` is its dotted path.

    Severity is `warning` for deprecated options, and if the table itself is uncertain.
    """
    root = release.table["types"][release.table["root"]]
    # A list of options is not one of required ones: flags and other files may hold the rest.
    return _record(release, {**root, "partial": True}, options, OptionPath())


def _record(
    release: Release,
    record: Mapping[str, Any],
    value: Mapping[str, Any],
    place: OptionPath,
    kind: str = "",
) -> Iterator[Diagnostic]:
    for key, item in value.items():
        if (field := named(record["fields"], key)) is not None:
            yield from _option(release, field, item, place.key(key))
        else:
            yield unknown_key(release, record, str(key), place, kind, value)
    if record.get("partial"):
        return
    for name, field in record["fields"].items():
        if field.get("required") and not {name, *field.get("alias", ())} & set(value):
            remedy = f"add {place.path}.{name}"
            yield Diagnostic(place.path, f"{name} is required here", remedy, rule=MISSING_KEY)


def _option(release: Release, field: Field, value: Any, place: OptionPath) -> Iterator[Diagnostic]:
    """Errors of a known option: its value, its status, and doubts in its table."""
    doubt = field.get("uncertain")
    sure = doubt in (None, "kind")
    found = _value(release, field, value, place)
    yield from found if sure else (replace(row, severity="warning") for row in found)
    if doubt in ("existence", "kind"):
        what = f"it is not certain that release {release.name} knows this option"
        remedy = f"its table says {field['confidence']}; try it, or leave it out"
        yield Diagnostic(place.path, what, remedy, rule=UNCERTAIN_KEY, severity="warning")
    default = field.get("effective_default", field.get("default"))
    if field.get("status") in ("deprecated", "removed") and value != default:
        yield _deprecated(field, place, release.name)


def _value(release: Release, field: Field, value: Any, place: OptionPath) -> Iterator[Diagnostic]:
    kind = field["type"]
    if isinstance(value, Variable):
        return
    if value is None:
        if not field.get("nullable") and kind != "any":
            yield wrong_type(place.path, value, field)
    elif kind in SHAPES and not SHAPES[kind](value):
        yield wrong_type(place.path, value, field)
    elif kind == "record":
        yield from _record(release, release.table["types"][field["of"]], value, place)
    elif kind == "union":
        yield from _union(release, release.table["unions"][field["of"]], value, place)
    elif kind == "either":
        yield from _either(release, field, value, place)
    elif kind == "list":
        if len(value) < field.get("min_length", 0):
            remedy = "list at least one value"
            yield Diagnostic(place.path, "is empty", remedy, rule=VALUE_RANGE)
        for index, item in enumerate(value):
            yield from _value(release, field["items"], item, place.item(index))
    elif kind == "mapping":
        yield from _mapping(release, field, value, place)
    elif kind == "enum":
        yield from _enum(release, field, value, place)
    else:
        yield from bounds(field, value, place.path)


def _mapping(release: Release, field: Field, value: Any, place: OptionPath) -> Iterator[Diagnostic]:
    keys = {"type": field.get("keys", "any")}
    for key, item in value.items():
        inner = place.item(key)
        if keys["type"] in SHAPES and not SHAPES[keys["type"]](key):
            yield wrong_type(inner.path, key, keys, "has the key")
        yield from _value(release, field["items"], item, inner)


def _either(release: Release, field: Field, value: Any, place: OptionPath) -> Iterator[Diagnostic]:
    """No error if one alternative fits; else those of the one that was meant."""
    tried = [list(_value(release, option, value, place)) for option in field["of"]]
    if not all(tried):
        yield from bounds(field, value, place.path)
        return
    shape = (VALUE_TYPE, place.path)
    meant = [rows for rows in tried if (rows[0].rule, rows[0].where) != shape]
    if meant:
        yield from meant[0]
    else:
        yield wrong_type(place.path, value, field)


def _enum(release: Release, field: Field, value: Any, place: OptionPath) -> Iterator[Diagnostic]:
    if spelled(field, value) is not None:
        return
    fault = unknown_value(release, field, value, place)
    if not (field.get("open") and isinstance(value, str)) or _is_respelt(value, field["values"]):
        yield fault
    elif value != field.get("default"):
        what = f"{value} is no value of release {release.name}, and a plugin has to bring it"
        yield replace(fault, message=what, severity="warning")


def _is_respelt(value: str, values: Iterable[Any]) -> bool:
    """Whether a text is one of some values but for its dashes and capitals."""

    def letters(text: str) -> str:
        return re.sub(r"[-_. ]", "", text.lower())

    return letters(value) in {letters(str(each)) for each in values}


def _union(
    release: Release, union: Mapping[str, Any], value: Any, place: OptionPath
) -> Iterator[Diagnostic]:
    name = union["discriminator"]
    chooser = discriminator(union)
    rest = dict(value)
    key = _chooser_key(release, union, value)
    if key is None:
        remedy = f"one of {', '.join(union['types'])}"
        yield Diagnostic(place.path, f"{name} is required here", remedy, rule=MISSING_KEY)
    elif key != name:
        what, remedy = f"unknown option in {place.path}", f"did you mean {name}?"
        yield Diagnostic(place.key(key).path, what, remedy, rule=UNKNOWN_KEY)
    given = union.get("default") if key is None else rest.pop(key, union.get("default"))
    kind = spelled(chooser, given)
    if kind is None:
        if key is not None and not isinstance(given, Variable):
            yield unknown_value(release, chooser, given, place.key(key))
        any_kind = {"fields": kind_fields(release, union, None), "partial": True}
        yield from _record(release, any_kind, rest, place)
        return
    if key is None or key not in value:
        kind = _kind_of(release, union, rest)
    record = release.table["types"][union["types"][kind]]
    if record.get("only_in_python"):
        what = f"{kind} can be given from Python only"
        where = place.key(name).path
        yield Diagnostic(where, what, "choose another", rule=UNKNOWN_VALUE)
    yield from _record(release, record, rest, place, f"{name} {kind}")


def _chooser_key(
    release: Release, union: Mapping[str, Any], value: Mapping[str, Any]
) -> str | None:
    """The key that selects the kind, which may be misspelt; `None` if it is missing."""
    name = str(union["discriminator"])
    if name in value or "default" in union:
        return name
    known = by_name(kind_fields(release, union, None))
    strays = [str(key) for key in value if key not in known]
    return next((key for key in strays if closest(key, [name])), None)


def _kind_of(release: Release, union: Mapping[str, Any], value: Mapping[str, Any]) -> str:
    """The kind that has most of the options; in a tie the default."""

    def known(kind: str) -> tuple[int, bool]:
        own = by_name(kind_fields(release, union, kind))
        return len(set(value) & set(own)), kind == union["default"]

    return str(max(union["types"], key=known))


def _deprecated(field: Field, place: OptionPath, release: str) -> Diagnostic:
    what, remedy = f"is {field['status']} in release {release}", "leave it out"
    if "replaced_by" in field:
        remedy = f"use {field['replaced_by']}"
    elif "effect" in field:
        remedy = f"{remedy}; its effect: {field['effect']}"
    return Diagnostic(place.path, what, remedy, rule=DEPRECATED, severity="warning")


def checked(release: Release, find: Callable[[Release], Iterable[Diagnostic]]) -> list[Diagnostic]:
    """The findings of `find` with the table of a release. For a release without a table they are
    merged from its neighbours: an option that only one of them rejects may be right."""
    return agreed({table.name: list(find(table)) for table in release.judges})


def agreed(found: Mapping[str, Sequence[Diagnostic]]) -> list[Diagnostic]:
    """One list of what each release found, oldest release first.

    An error stays an error if all releases have one at its place or above it. If only some have, it
    becomes a warning that names them; so do warnings of some.
    """
    if len(found) == 1:
        return list(*found.values())
    verdicts = {name: Refusals(rows) for name, rows in found.items()}
    doubtful: list[Diagnostic] = []
    shared: dict[tuple[object, ...], tuple[str, list[Diagnostic]]] = {}
    for name, diagnostics in found.items():
        for row in diagnostics:
            accepting = [other for other in found if not verdicts[other].refuses(row)]
            if row.severity == "error" and accepting:
                what = f"{name} refuses it, {' and '.join(accepting)} not: {row.message}"
                doubtful.append(replace(row, message=what, severity="warning"))
                continue
            silent = [other for other in found if not verdicts[other].has(row)]
            if row.severity == "warning" and silent:
                what = f"{name} warns of it, {' and '.join(silent)} not: {row.message}"
                doubtful.append(replace(row, message=what))
                continue
            key = (*_place(row), row.rule, row.severity)
            if key not in shared or shared[key][0] != name:  # said once, in the newest one's words
                shared[key] = name, []
            shared[key][1].append(row)
    rows = [*chain.from_iterable(rows for _, rows in shared.values()), *doubtful]
    wrong = {_place(row) for row in rows if row.severity == "error"}
    return [row for row in rows if row.severity == "error" or _place(row) not in wrong]


class Refusals:
    """The findings of one release, to compare with findings of others."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        errors = [row for row in diagnostics if row.severity == "error"]
        self._places = {_place(row) for row in diagnostics}
        self._paths = {(row.within, row.path) for row in diagnostics}
        self._wrong = {_place(row) for row in errors}
        self._groups = {(row.within, _name(row)) for row in errors}

    def has(self, row: Diagnostic) -> bool:
        """Whether anything was found at the place of a finding."""
        return _place(row) in self._places

    def refuses(self, row: Diagnostic) -> bool:
        """Whether an error was found at the place of a finding, or for a group that it is in."""
        return _place(row) in self._wrong or any(
            (row.within, group) in self._groups for group in groups_of(_name(row))
        )

    def takes(self, row: Diagnostic) -> bool:
        """Whether nothing was found against the path of a finding, nor an error for its group."""
        return (row.within, row.path) not in self._paths and not self.refuses(row)


def _place(row: Diagnostic) -> tuple[object, ...]:
    return row.within, _name(row), row.location


def _name(row: Diagnostic) -> str:
    return row.path or row.where
