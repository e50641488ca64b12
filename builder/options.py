"""Nested engine options judged against a release: every fault with its path and remedy.

Values are judged as the engine's own validation does: `"3"` is 3, 1 is true, and a key that the
release does not know is refused at any depth.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from . import release as releases
from .documents import load_yaml
from .errors import Problem, closest, nearest
from .release import Field, Release, discriminator

FORMER = Path(__file__).parent / "data" / "formats" / "former_options.yaml"
ANY_KEY = "*"
WRONG_VALUES = frozenset({"value-type", "unknown-value", "value-range"})
MAX_DIGITS = 4300  # Python reads no longer number from text


def problems(release: Release, options: Mapping[str, Any]) -> Iterator[Problem]:
    """Every option that a release rejects or advises against: `where` is its dotted path.

    Severity is `warning` for what is deprecated, and where the table itself is not sure.
    """
    root = release.table["types"][release.table["root"]]
    # A list of options is not one of required ones: flags and other files may hold the rest.
    return _Judge(release).record({**root, "partial": True}, options, _Place())


def normalise(release: Release, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without `problems`, every key by its own name and every value in its own type."""
    return _normalised_record(release, release.top_level, options)


@cache
def former_options() -> Mapping[str, str]:
    """Options that were gone or had moved before the first release table: name to remedy."""
    table: Mapping[str, str] = load_yaml(FORMER.read_text(encoding="utf-8"))["options"]
    return table


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an option stands: its path in the file, and its path in the table."""

    path: str = ""
    schema: str = ""

    def key(self, key: object) -> _Place:
        return _Place(*(f"{at}.{key}" if at else str(key) for at in (self.path, self.schema)))

    def item(self, key: object) -> _Place:
        return _Place(f"{self.path}.{key}", f"{self.schema}.{ANY_KEY}")


@dataclass(frozen=True)
class _Judge:
    """The options of one file against one release."""

    release: Release

    def record(
        self, record: Mapping[str, Any], value: Mapping[str, Any], place: _Place, kind: str = ""
    ) -> Iterator[Problem]:
        fields = _by_name(record["fields"])
        for key, item in value.items():
            inner = place.key(key)
            if key in fields:
                yield from self._option(fields[key], item, inner)
            else:
                yield self._unknown(record, str(key), place, kind)
        for name, field in () if record.get("partial") else record["fields"].items():
            if field.get("required") and not {name, *field.get("alias", ())} & set(value):
                remedy = f"add {place.path}.{name}"
                yield Problem(place.path, f"{name} is required here", remedy, rule="missing-key")

    def _option(self, field: Field, value: Any, place: _Place) -> Iterator[Problem]:
        """The faults of a known option: of its value, of its age, and of our knowledge of it."""
        sure = "uncertain" not in field
        found = self._value(field, value, place)
        yield from found if sure else (replace(row, severity="warning") for row in found)
        if field.get("uncertain") == "existence":
            what = f"it is not certain that release {self.release.name} knows this option"
            remedy = f"its table says {field['confidence']}; try it, or leave it out"
            yield Problem(place.path, what, remedy, rule="uncertain-key", severity="warning")
        default = field.get("effective_default", field.get("default"))
        if field.get("status") in ("deprecated", "removed") and value != default:
            yield _deprecated(field, place, self.release.name)

    def _value(self, field: Field, value: Any, place: _Place) -> Iterator[Problem]:
        kind = field["type"]
        if value is None:
            if not field.get("nullable") and kind != "any":
                yield _wrong_type(place.path, value, field)
        elif kind in _SHAPES and not _SHAPES[kind](value):
            yield _wrong_type(place.path, value, field)
        elif kind == "record":
            yield from self.record(self.release.table["types"][field["of"]], value, place)
        elif kind == "union":
            yield from self._union(self.release.table["unions"][field["of"]], value, place)
        elif kind == "either":
            yield from self._either(field, value, place)
        elif kind == "list":
            if len(value) < field.get("min_length", 0):
                remedy = "list at least one value"
                yield Problem(place.path, "is empty", remedy, rule="value-range")
            for index, item in enumerate(value):
                yield from self._value(field["items"], item, place.item(index))
        elif kind == "mapping":
            yield from self._mapping(field, value, place)
        elif kind == "enum":
            yield from self._enum(field, value, place)
        else:
            yield from _bounds(field, value, place.path)

    def _mapping(self, field: Field, value: Any, place: _Place) -> Iterator[Problem]:
        keys = {"type": field.get("keys", "any")}
        for key, item in value.items():
            inner = place.item(key)
            if keys["type"] in _SHAPES and not _SHAPES[keys["type"]](key):
                yield _wrong_type(inner.path, key, keys, "has the key")
            yield from self._value(field["items"], item, inner)

    def _either(self, field: Field, value: Any, place: _Place) -> Iterator[Problem]:
        """No fault if one alternative fits; else those of the one that was meant."""
        tried = [list(self._value(option, value, place)) for option in field["of"]]
        if not all(tried):
            yield from _bounds(field, value, place.path)
            return
        shape = ("value-type", place.path)
        meant = [rows for rows in tried if (rows[0].rule, rows[0].where) != shape]
        if meant:
            yield from meant[0]
        else:
            yield _wrong_type(place.path, value, field)

    def _enum(self, field: Field, value: Any, place: _Place) -> Iterator[Problem]:
        if _spelled(field, value) is None and not (field.get("open") and isinstance(value, str)):
            yield self._unknown_value(field, value, place)

    def _union(self, union: Mapping[str, Any], value: Any, place: _Place) -> Iterator[Problem]:
        name, types = union["discriminator"], self.release.table["types"]
        chooser = discriminator(union)
        rest = dict(value)
        key = self._chooser_key(union, value)
        if key is None:
            remedy = f"one of {', '.join(union['types'])}"
            yield Problem(place.path, f"{name} is required here", remedy, rule="missing-key")
        elif key != name:
            remedy = f"did you mean {name}?"
            what = f"unknown option in {place.path}"
            yield Problem(place.key(key).path, what, remedy, rule="unknown-key")
        given = union.get("default") if key is None else rest.pop(key, union.get("default"))
        kind = _spelled(chooser, given)
        if kind is None:
            if key is not None:
                yield self._unknown_value(chooser, given, place.key(key))
            yield from self.record(self._any_kind(union), rest, place)
            return
        if key is None or key not in value:
            kind = self._kind_of(union, rest)
        record = types[union["types"][kind]]
        if record.get("only_in_python"):
            what = f"{kind} can be given from Python only"
            where = place.key(name).path
            yield Problem(where, what, "choose another", rule="unknown-value")
        yield from self.record(record, rest, place, f"{name} {kind}")

    def _chooser_key(self, union: Mapping[str, Any], value: Mapping[str, Any]) -> str | None:
        """The key that says which kind is meant, which may be misspelt; `None` if it is missing."""
        name = str(union["discriminator"])
        if name in value or "default" in union:
            return name
        strays = [str(key) for key in value if key not in _by_name(self._any_kind(union)["fields"])]
        return next((key for key in strays if closest(key, [name])), None)

    def _any_kind(self, union: Mapping[str, Any]) -> dict[str, Any]:
        """The options of all kinds of a union, for options whose kind cannot be known."""
        records = [self.release.table["types"][kind] for kind in union["types"].values()]
        fields: dict[str, Field] = {}
        for record in reversed(records):
            fields |= record["fields"]
        return {"fields": fields, "partial": True}

    def _kind_of(self, union: Mapping[str, Any], value: Mapping[str, Any]) -> str:
        """The kind that knows most of the options, of equal ones the default."""

        def known(kind: str) -> tuple[int, bool]:
            fields = self.release.table["types"][union["types"][kind]]["fields"]
            return len(set(value) & set(_by_name(fields))), kind == union["default"]

        return str(max(union["types"], key=known))

    def _unknown_value(self, field: Field, value: Any, place: _Place) -> Problem:
        remedy = nearest(str(value), [str(item) for item in field["values"]])
        others = [other for other in self._others if _allows(other, place.schema, value)]
        if others:
            remedy = f"{self._age(others)}; {remedy}"
        return Problem(
            place.path,
            f"{_shown(value)} is not allowed in release {self.release.name}",
            remedy,
            rule="unknown-value",
        )

    def _unknown(self, record: Mapping[str, Any], key: str, place: _Place, kind: str) -> Problem:
        """A key that a record does not know, with the most certain thing to do about it."""
        inner = place.key(key)
        fields = _by_name(record["fields"])
        near = closest(key, fields)
        others = [other for other in self._others if inner.schema in other.paths]
        remedy = (
            self._other_kind(inner, kind)
            or self._renamed(inner, others)
            or self._former(key, others)
            or self._age(others)
            or self._of_flag(key, inner)
            or self._elsewhere(key, near)
            or (near and f"did you mean {near}?")
            or self._misspelt_elsewhere(key)
        )
        open_keys = record.get("open_keys", ())
        unsure = key in open_keys or (ANY_KEY in open_keys and (others or not remedy))
        what = f"unknown option in {kind or place.path or self.release.name}"
        if unsure:
            what = (
                f"no option of {place.path or self.release.name} that its table knows for certain"
            )
        return Problem(
            inner.path,
            what,
            remedy or nearest(key, fields),
            rule="unknown-key",
            severity="warning" if unsure else "error",
        )

    def _other_kind(self, place: _Place, kind: str) -> str:
        """An option that only other kinds of the same union have."""
        if not kind or place.schema not in self.release.paths:
            return ""
        name = kind.split()[0]
        holder, key = place.schema.rsplit(".", 1)
        (union,) = (row for row in self.release.paths[holder] if row["type"] == "union")
        kinds = self.release.table["unions"][union["of"]]["types"]
        types = self.release.table["types"]
        having = [one for one, record in kinds.items() if key in _by_name(types[record]["fields"])]
        return f"it is an option of {name} {', '.join(having)}"

    def _renamed(self, place: _Place, others: Sequence[Release]) -> str:
        """An option of another release that this one knows by another name."""
        for other in others:
            for word, path in other.words.items():
                here = self.release.words.get(word)
                if path == place.schema and here not in (None, path):
                    return f"it is an option of release {other.name}; here it is {here}"
        return ""

    def _former(self, key: str, others: Sequence[Release]) -> str:
        """An engine option that is gone or has moved."""
        known = former_options().get(key, "") if self._others else ""
        return known and "; ".join(filter(None, (self._age(others), known)))

    def _of_flag(self, key: str, place: _Place) -> str:
        """A flag of the server command that was written as an option."""
        for flag in self.release.serve_flags:
            names = {name.lstrip("-") for name in flag.spellings}
            path = flag.yaml_path or flag.name
            if key in names and path in self.release.paths and path != place.schema:
                return f"this is a flag of the server; the option is {path}"
            if key in names and place.schema == key and not flag.positional:
                return f"this is a flag of the server; give {flag.spellings[0]} on its command line"
        return ""

    def _elsewhere(self, key: str, near: str | None) -> str:
        """An option that has its place elsewhere; and the one that may have been meant here."""
        homes = self._homes.get(key, ())
        if not homes:
            return ""
        listed = " or ".join(
            home if "." in home else f"{home} at the top level" for home in homes[:3]
        )
        also = f"; or did you mean {near}?" if near and abs(len(near) - len(key)) <= 2 else ""
        return f"its place is {listed}{also}"

    def _misspelt_elsewhere(self, key: str) -> str:
        near = closest(key, self._homes)
        return f"did you mean {self._homes[near][0]}?" if near else ""

    @cached_property
    def _homes(self) -> Mapping[str, Sequence[str]]:
        """The paths of every option name, shortest first."""
        homes: dict[str, list[str]] = {}
        for path in sorted(self.release.paths, key=lambda path: (path.count("."), path)):
            if ANY_KEY not in path.split("."):
                homes.setdefault(path.rpartition(".")[2], []).append(path)
        return homes

    @cached_property
    def _others(self) -> list[Release]:
        """The other releases that ship, read only once a fault was found."""
        names = (name for name in releases.known() if name != self.release.name)
        root = self.release.table["root"]  # another kind of file has nothing to do with them
        return [other for other in map(releases.load, names) if other.table["root"] == root]

    def _age(self, others: Sequence[Release]) -> str:
        """What is known in other releases, in words."""
        names, order = [other.name for other in others], releases.known()
        if names and self.release.name in order:
            here = order.index(self.release.name)
            if all(order.index(name) > here for name in names):
                return f"it came with release {names[0]}"
            if all(order.index(name) < here for name in names):
                return f"it is gone since release {order[order.index(names[-1]) + 1]}"
        return f"release {', '.join(names)} knows it" if names else ""


def _allows(release: Release, path: str, value: Any) -> bool:
    rows = release.paths.get(path, ())
    return any(row["type"] == "enum" and _spelled(row, value) is not None for row in rows)


def _by_name(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Fields by every name that a file may give them."""
    return {name: row for key, row in fields.items() for name in (key, *row.get("alias", ()))}


def _deprecated(field: Field, place: _Place, release: str) -> Problem:
    what = f"is {field['status']} in release {release}"
    if "replaced_by" in field:
        remedy = f"use {field['replaced_by']}"
    else:
        remedy = (
            f"leave it out; its effect: {field['effect']}" if "effect" in field else "leave it out"
        )
    return Problem(place.path, what, remedy, rule="deprecated", severity="warning")


_EXPECTED = {
    "record": "a mapping",
    "union": "a mapping",
    "mapping": "a mapping",
    "list": "a list",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "object": "a Python object, which no file can hold",
}


def _expected(field: Field) -> str:
    if field["type"] == "either":
        return " or ".join(dict.fromkeys(map(_expected, field["of"])))
    if field["type"] == "enum":
        return f"one of {', '.join(map(str, field['values']))}"
    return _EXPECTED.get(field["type"], "another value")


def _wrong_type(path: str, value: Any, field: Field, what: str = "is") -> Problem:
    expected = f"expected {_expected(field)}"
    return Problem(path, f"{what} {_shown(value)}", expected, rule="value-type")


def _shown(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value, default=str))[:60]


def _spelled(field: Field, value: Any) -> Any:
    """The allowed value that was given, in its own spelling; `None` if there is none."""
    for allowed in field["values"]:
        if value == allowed and isinstance(value, bool) == isinstance(allowed, bool):
            return allowed
        if field.get("case_insensitive") and str(value).lower() == str(allowed).lower():
            return allowed
    return None


def _bounds(field: Field, value: Any, path: str) -> Iterator[Problem]:
    if field["type"] in ("int", "float", "either") and (_is_number(value) or _is_int(value)):
        number = value if isinstance(value, int) else float(value)
        for bound, holds, text in _BOUNDS:
            if (limit := field.get(bound)) is not None and not holds(number, limit):
                remedy = f"give a value {text} {limit}"
                yield Problem(path, f"{value} is out of range", remedy, rule="value-range")
                return
        if isinstance(number, float) and not math.isfinite(number):
            what, remedy = f"{value} is no finite number", "give a number"
            yield Problem(path, what, remedy, rule="value-range", severity="warning")
    elif isinstance(value, str) and len(value) < field.get("min_length", 0):
        yield Problem(path, "is empty", "give a value", rule="value-range")


_BOUNDS: tuple[tuple[str, Callable[[float, float], bool], str], ...] = (
    ("ge", lambda value, limit: value >= limit, "of at least"),
    ("gt", lambda value, limit: value > limit, "above"),
    ("le", lambda value, limit: value <= limit, "of at most"),
    ("lt", lambda value, limit: value < limit, "below"),
)


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float | str) or (isinstance(value, str) and not value.isascii()):
        return False
    try:
        float(value)
    except (ValueError, OverflowError):
        return False
    return True


def _is_int(value: Any) -> bool:
    if isinstance(value, str):
        whole = re.fullmatch(r"\s*[+-]?\d+(_\d+)*(\.0+)?\s*", value, re.ASCII)
        return whole is not None and len(value) <= MAX_DIGITS
    if isinstance(value, float):
        return value.is_integer() and abs(value) < 2**63
    return isinstance(value, int)


_TRUE = {"true", "yes", "on", "y", "t", "1"}
_FALSE = {"false", "no", "off", "n", "f", "0"}


def _is_bool(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in _TRUE | _FALSE
    return isinstance(value, int | float) and value in (0, 1)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


# What the engine's validation takes for a value of each type, as pydantic does unless it is strict.
_SHAPES: dict[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "float": _is_number,
    "bool": _is_bool,
    "str": lambda value: isinstance(value, str),
    "object": lambda value: False,
    "list": lambda value: (
        isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    ),
    "mapping": _is_mapping,
    "record": _is_mapping,
    "union": _is_mapping,
}

_CONVERT: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: int(value.partition(".")[0]) if isinstance(value, str) else int(value),
    "float": lambda value: float(value) if isinstance(value, str) else value,
    "bool": lambda value: str(value).lower() in _TRUE | {"1.0"},
}


def _normalised_record(
    release: Release, fields: Mapping[str, Field], value: Mapping[str, Any]
) -> dict[str, Any]:
    own = {alias: name for name, row in fields.items() for alias in row.get("alias", ())}
    return {
        own.get(key, key): _normalised(release, fields[own.get(key, key)], item)
        if own.get(key, key) in fields
        else item
        for key, item in value.items()
    }


def _normalised(release: Release, field: Field, value: Any) -> Any:
    kind, types = field["type"], release.table["types"]
    if value is None:
        return None
    if kind in ("record", "union", "mapping") and not isinstance(value, Mapping):
        return value
    if kind == "record":
        return _normalised_record(release, types[field["of"]]["fields"], value)
    if kind == "union":
        union = release.table["unions"][field["of"]]
        chooser = discriminator(union)
        name = _spelled(chooser, value.get(union["discriminator"], union.get("default")))
        kinds = [union["types"][name]] if name else reversed(union["types"].values())
        fields = {key: row for kind in kinds for key, row in types[kind]["fields"].items()}
        return _normalised_record(release, {**fields, union["discriminator"]: chooser}, value)
    if kind == "mapping":
        convert = _CONVERT.get(field.get("keys", "any"), lambda key: key)
        return {
            convert(key): _normalised(release, field["items"], item) for key, item in value.items()
        }
    if kind == "list" and _SHAPES["list"](value):
        return [_normalised(release, field["items"], item) for item in value]
    if kind == "enum":
        spelled = _spelled(field, value)
        return value if spelled is None else spelled
    if kind in _CONVERT and _SHAPES[kind](value):
        return _CONVERT[kind](value)
    return value
