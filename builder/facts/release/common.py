"""What two releases both accept: the table to plan a release by that lies between them.

It is the older table, of which everything is left out that the newer one does not have. Names that
changed since are mostly still read by newer releases, while new ones may not be there yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .record import record_types

Table = Mapping[str, Any]
Row = Mapping[str, Any]

# What only the older release is known by, and what no list of both can be made of.
_NONE: Mapping[str, Any] = {"containers": {}, "support_matrix": None}
_LOWER_BOUNDS, _UPPER_BOUNDS = ("ge", "gt", "min_length"), ("le", "lt")
_DEFAULTS = ("default", "default_factory", "effective_default")


def table(name: str, older: Table, newer: Table) -> dict[str, Any]:
    """The table of a release called `name` between two others."""
    options = _Options(older, newer)
    root = options.record(older["root"], newer["root"])
    return {
        **{key: value for key, value in older.items() if key not in ("nearest", *_NONE)},
        "release": name,
        "provenance": _provenance(older, newer),
        "root": root,
        "types": options.types,
        "unions": options.unions,
        "serve": _serve(older["serve"], newer["serve"]),
        "subcommands": {
            command: _flags(flags, newer["subcommands"][command])
            for command, flags in older["subcommands"].items()
            if command in newer["subcommands"]
        },
        "endpoints": _endpoints(older["endpoints"], newer["endpoints"]),
        "moe": _moe(older["moe"], newer["moe"]),
        "containers": {server: [] for server in older["containers"]},
        "environment": _shared(older["environment"], newer["environment"]),
        **_architectures(older, newer),
    }


def _provenance(older: Table, newer: Table) -> dict[str, Any]:
    names = f"{older['release']} and {newer['release']}"
    sources = [*older["provenance"]["sources"], *newer["provenance"]["sources"]]
    return {"sources": sources, "confidence": f"no table of its own: what {names} both accept"}


class _Options:
    """The options that two tables have in common, group by group."""

    def __init__(self, older: Table, newer: Table) -> None:
        self._older, self._newer = older, newer
        self._names: dict[tuple[str, str], str] = {}
        self.types: dict[str, Any] = {}
        self.unions: dict[str, Any] = {}

    def record(self, one: str, other: str) -> str:
        """The name of the group of options that two groups share."""
        if (one, other) in self._names:
            return self._names[one, other]
        name = one if one not in self.types else f"{one}&{other}"
        self._names[one, other] = name
        mine, theirs = self._older["types"][one], self._newer["types"][other]
        self.types[name] = record = {**mine, "fields": {}}
        spelled = _by_name(theirs["fields"])
        for key, row in mine["fields"].items():
            names = [word for word in (key, *row.get("alias", ())) if word in spelled]
            if not names or (found := self._option(row, spelled[names[0]])) is None:
                continue
            kept = {part: value for part, value in found.items() if part != "alias"}
            record["fields"][names[0]] = kept | ({"alias": names[1:]} if names[1:] else {})
        return name

    def _option(self, row: Row, other: Row) -> dict[str, Any] | None:
        """What both take; `None` if they have no value in common."""
        found = self._narrowed(row, other)
        if found is None:
            return None
        found["nullable"] = bool(row.get("nullable") and other.get("nullable"))
        if _default(row) != _default(other):  # what the release does by itself is not known
            found = {key: value for key, value in found.items() if key not in _DEFAULTS}
        if "uncertain" in other:
            found |= {key: other[key] for key in ("uncertain", "confidence")}
        if other.get("status") in ("deprecated", "removed"):
            found |= {
                key: other[key] for key in ("status", "replaced_by", "effect") if key in other
            }
        return found

    def _narrowed(self, row: Row, other: Row) -> dict[str, Any] | None:
        one, two = row["type"], other["type"]
        if "either" in (one, two):
            return self._either(row, other)
        if two == "any":
            return self._whole(row, self._older)
        if one == "any":
            return self._whole(other, self._newer)
        if {one, two} == {"int", "float"}:
            return _bounded({**row, "type": "int"}, other)
        if {one, two} == {"enum", "str"}:
            return {**(row if one == "enum" else other)}
        if {one, two} == {"record", "mapping"}:
            return self._open(row if one == "record" else other, own=one == "record")
        if one == "record" and two == "union":
            return self._one_kind(row, self._newer["unions"][other["of"]])
        if one != two:
            return None
        if one == "record":
            return {**row, "of": self.record(row["of"], other["of"])}
        if one == "union":
            return self._union(row, other)
        if one == "enum":
            return _enum(row, other)
        if one in ("list", "mapping"):
            items = self._option(row["items"], other["items"])
            return None if items is None else _bounded({**row, "items": items}, other)
        return _bounded(dict(row), other)

    def _one_kind(self, row: Row, union: Row) -> dict[str, Any] | None:
        """A group of options that has become one kind of several."""
        kind = union["types"].get(union.get("default"))
        return kind and {**row, "of": self.record(row["of"], kind)}

    def _open(self, row: Row, own: bool) -> dict[str, Any]:
        """A group of options where the other release takes any mapping."""
        return self._whole(row, self._older if own else self._newer)

    def _whole(self, row: Row, side: Table) -> dict[str, Any]:
        """An option as one release has it, with all groups of options that it may hold."""
        rows = [row]
        while rows:
            each = rows.pop()
            if each["type"] == "union":
                self.unions.setdefault(each["of"], side["unions"][each["of"]])
            if each["type"] == "either":
                rows += each["of"]
            if "items" in each:
                rows.append(each["items"])
            for kind in record_types(each, side["unions"]):
                if kind not in self.types:
                    self.types[kind] = side["types"][kind]
                    rows += side["types"][kind]["fields"].values()
        return dict(row)

    def _either(self, row: Row, other: Row) -> dict[str, Any] | None:
        mine = row["of"] if row["type"] == "either" else [row]
        theirs = other["of"] if other["type"] == "either" else [other]
        kept = [
            found
            for option in mine
            if (found := next(filter(None, (self._narrowed(option, o) for o in theirs)), None))
        ]
        if not kept:
            return None
        if len(kept) == 1 and row["type"] != "either":
            return kept[0]
        rest = {key: value for key, value in row.items() if key not in ("type", "of")}
        return {**rest, "type": "either", "of": kept}

    def _union(self, row: Row, other: Row) -> dict[str, Any] | None:
        mine, theirs = self._older["unions"][row["of"]], self._newer["unions"][other["of"]]
        if mine["discriminator"] != theirs["discriminator"]:
            return None
        types = {
            kind: self.record(of, theirs["types"][kind])
            for kind, of in mine["types"].items()
            if kind in theirs["types"]
        }
        if not types:
            return None
        same = mine.get("default") == theirs.get("default") and mine.get("default") in types
        default = {"default": mine["default"]} if same else {}
        kept = {key: value for key, value in mine.items() if key not in ("types", "default")}
        self.unions[row["of"]] = {**kept, "types": types, **default}
        return dict(row)


def _default(row: Row) -> Any:
    return row.get("effective_default", row.get("default"))


def _by_name(fields: Mapping[str, Row]) -> dict[str, Row]:
    return {name: row for key, row in fields.items() for name in (key, *row.get("alias", ()))}


def _enum(row: Row, other: Row) -> dict[str, Any] | None:
    if row.get("open") or other.get("open"):
        return {**(other if row.get("open") else row)}
    loose = row.get("case_insensitive") and other.get("case_insensitive")
    theirs = [str(value).lower() if loose else value for value in other["values"]]
    values = [v for v in row["values"] if (str(v).lower() if loose else v) in theirs]
    return {**row, "values": values} if values else None


def _bounded(row: dict[str, Any], other: Row) -> dict[str, Any]:
    """A row with the narrower bounds of two."""
    for keys, narrower in ((_LOWER_BOUNDS, max), (_UPPER_BOUNDS, min)):
        for key in keys:
            limits = [each[key] for each in (row, other) if key in each]
            if limits:
                row[key] = narrower(limits)
    return row


def _serve(older: Row, newer: Row) -> dict[str, Any]:
    flags = _flags(older["flags"], newer["flags"])
    names = {flag["name"] for flag in flags}
    needed = [row for row in older["flags_by_architecture"] if row["flag"] in names]
    return {**older, "flags": flags, "flags_by_architecture": needed}


def _flags(older: list[Row], newer: list[Row]) -> list[dict[str, Any]]:
    theirs = {row["name"]: row for row in newer}
    found = []
    for row in older:
        other = theirs.get(row["name"])
        spellings = [each for each in row["flags"] if other and each in other["flags"]]
        if other is None or not spellings:
            continue
        kept = {**row, "flags": spellings}
        if "values" in row and "values" in other:
            kept["values"] = [value for value in row["values"] if value in other["values"]]
        found.append(kept)
    return found


def _endpoints(older: Row, newer: Row) -> dict[str, Any]:
    return {**older, "server": [pair for pair in older["server"] if pair in newer["server"]]}


def _moe(older: Row, newer: Row) -> dict[str, Any]:
    """The kernels that both have, on the GPUs that both have them for."""
    rows = []
    for row in older["rows"]:
        for other in newer["rows"]:
            keys = ("backend", "quant_algo")
            shared = [sm for sm in row["sm"] if sm in other["sm"]]
            if shared and all(row[key] == other[key] for key in keys):
                rows.append({**row, "sm": shared})
    able = newer["load_balancer_backends"]
    backends = [name for name in older["load_balancer_backends"] if name in able]
    return {**older, "rows": rows, "load_balancer_backends": backends}


def _shared(older: Mapping[str, Any], newer: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in older.items() if key in newer}


def _architectures(older: Table, newer: Table) -> dict[str, Any]:
    """Supported is what both support, refused what both refuse; of all else nothing is known."""
    refused = _shared(older["unsupported_architectures"], newer["unsupported_architectures"])
    served = _shared(_served(older), _served(newer))
    return {"supported_architectures": served, "unsupported_architectures": refused}


def _served(table: Table) -> dict[str, str]:
    matrix = table.get("support_matrix") or {}
    source = str(matrix.get("source", ""))
    notes = ("columns", "listed_architectures_include", "not_listed")
    rows = [name for name, row in matrix.items() if isinstance(row, list) and name not in notes]
    listed = dict.fromkeys([*matrix.get("listed_architectures_include", ()), *rows], source)
    return {**listed, **table.get("supported_architectures", {})}
