"""Option tables made of others: the changes to one of them, or what two of them both accept.

A new release can be written as changes, each with its source, so that a reader can check it. For a
release without a table, the older of its two neighbours is taken without everything that the newer
one does not have: newer releases mostly still read names that changed since, while a new name may
not be there yet. Nothing else sees that a table was not written in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Literal

from ...schema import Text
from .record import alternatives, by_name, record_types
from .table import (
    FLAG_ROW,
    OPTION_ROW,
    PROVENANCE,
    REQUESTS_LACK,
    Fault,
    ReleaseName,
)

# Options by path. A kind of a union is named in angle brackets: `speculative_config<MTP>`. Without
# it a path goes into all kinds. `absent` are options and kinds that the release does not have,
# `options` whole rows, new or instead of the other table's, `kinds` new kinds of a union.
CHANGE_ROW: Any = {
    "source": Text,
    "confidence": Literal["read", "inferred"],
    "note?": Text,
    "absent?": [Text],
    "options?": {"*": OPTION_ROW},
    "kinds?": {"*": {"*": OPTION_ROW}},
}

# Flags of a command by name.
FLAG_CHANGE_ROW: Any = {
    "source": Text,
    "confidence": Literal["read", "inferred"],
    "note?": Text,
    "absent?": [Text],
    "flags?": [FLAG_ROW],
}

# A release as the changes to the table of `based_on`. `sources` are the sources of changes by a
# short word. `unread_options` says that the release may have options which its table lacks.
CHANGES: Any = {
    "release": ReleaseName,
    "based_on": ReleaseName,
    "provenance": PROVENANCE,
    "sources": {"*": Text},
    "carried?": [Text],
    "unread_options?": bool,
    "changes": [CHANGE_ROW],
    "serve?": [FLAG_CHANGE_ROW],
    "subcommands?": {"*": [FLAG_CHANGE_ROW]},
    "endpoints?": [[Text]],
    "requests_lack?": REQUESTS_LACK,
    "rules?": {"added?": [Text], "removed?": [Text]},
    "moe?": {"*": Any},
    "containers?": {"*": [Text]},
    "environment?": {"*": Text},
    "supported_architectures?": {"*": Text},
    "mtp_kv_layers?": {"value": Literal["per_draft_token", "one"], "source": Text},
    "cuda_graphs_engine_default?": int,
}

# Parts of a table that a file of changes replaces by name.
_REPLACED = ("moe", "containers", "environment", "supported_architectures")


def faults(document: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[Fault]:
    """Changes of what the other table does not have, and sources that are not given."""
    update = _Update(base)
    rows = [(f"changes.{index}", row) for index, row in enumerate(document["changes"])]
    commands = {"serve": document.get("serve", ()), **document.get("subcommands", {})}
    for name, changes in commands.items():
        place = name if name == "serve" else f"subcommands.{name}"
        rows += [(f"{place}.{index}", row) for index, row in enumerate(changes)]
    for place, row in rows:
        for word in row["source"].split(", "):
            if word not in document["sources"]:
                yield f"{place}.source", f"{word} is not among the sources"
    for index, row in enumerate(document["changes"]):
        for part, path in update.change(row):
            yield f"changes.{index}.{part}.{path}", "is not in the table that it changes"
    for name, changes in commands.items():
        flags = _flags(base, name)
        place = name if name == "serve" else f"subcommands.{name}"
        if name != "serve" and name not in base["subcommands"]:
            yield place, "is not a command of the table that it changes"
        for index, row in enumerate(changes):
            for flag in row.get("absent", ()):
                if flag not in flags:
                    yield f"{place}.{index}.absent", f"{flag} is not a flag of the other table"
    gone = set(document.get("rules", {}).get("removed", ())) - set(base["rules"])
    for rule in sorted(gone):
        yield "rules.removed", f"{rule} is not a rule of the other table"


def expand(document: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The whole table: the other one with the changes. What did not change is shared with it."""
    update = _Update(base)
    for row in document["changes"]:
        list(update.change(row))
    update.drop_unreached()
    if document.get("unread_options"):
        update.open_all()
    rules = document.get("rules", {})
    kept = [rule for rule in base["rules"] if rule not in rules.get("removed", ())]
    commands = {name: dict(flags) for name, flags in _commands(base, document)}
    serve = commands.pop("serve")
    table = {
        **{key: value for key, value in base.items() if key != "nearest"},
        "release": document["release"],
        "provenance": _provenance(document),
        "types": update.types,
        "unions": update.unions,
        "serve": {**base["serve"], "flags": list(serve.values())},
        "subcommands": {name: list(flags.values()) for name, flags in commands.items()},
        "rules": [*kept, *rules.get("added", ())],
    }
    for part in _REPLACED:
        if part in document:
            table[part] = {**base.get(part, {}), **document[part]}
    for part in ("mtp_kv_layers", "cuda_graphs_engine_default"):
        table[part] = document.get(part, base[part])
    if "requests_lack" in document:
        table["requests_lack"] = document["requests_lack"]
    endpoints = document.get("endpoints", ())
    if endpoints:
        added = [*base["endpoints"]["server"], *endpoints]
        table["endpoints"] = {**base["endpoints"], "server": added}
    carried = dict.fromkeys(document.get("carried", ()), base["release"])
    return table | ({"carried_from": carried} if carried else {})


def _provenance(document: Mapping[str, Any]) -> dict[str, Any]:
    """Where the table comes from, with the sources that its changes name."""
    own = document["provenance"]
    named = [text for text in document["sources"].values() if text not in own["sources"]]
    return {**own, "sources": [*own["sources"], *named]}


def _flags(base: Mapping[str, Any], command: str) -> dict[str, Any]:
    rows = base["serve"]["flags"] if command == "serve" else base["subcommands"].get(command, ())
    return {row["name"]: row for row in rows}


def _commands(
    base: Mapping[str, Any], document: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    changes = {"serve": document.get("serve", ()), **document.get("subcommands", {})}
    for command in ("serve", *base["subcommands"]):
        flags = _flags(base, command)
        for row in changes.get(command, ()):
            flags = {
                name: flag for name, flag in flags.items() if name not in row.get("absent", ())
            }
            flags |= {flag["name"]: flag for flag in row.get("flags", ())}
        yield command, flags


def _unions_of(row: Mapping[str, Any]) -> Iterator[str]:
    if row["type"] == "union":
        yield row["of"]
    for inner in alternatives(row):
        yield from _unions_of(inner)
    if "items" in row:
        yield from _unions_of(row["items"])


class _Update:
    """The options of a table; only what changes is copied."""

    def __init__(self, base: Mapping[str, Any]) -> None:
        self.types: dict[str, Any] = dict(base["types"])
        self.unions: dict[str, Any] = dict(base["unions"])
        self._root: str = base["root"]

    def change(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Make one change; yields the part and the path of what has no place."""
        for path in row.get("absent", ()):
            if not self._remove(path):
                yield "absent", path
        for path, fields in row.get("kinds", {}).items():
            if not self._add_kind(path, fields):
                yield "kinds", path
        for path, field in row.get("options", {}).items():
            if not self._set(path, field):
                yield "options", path

    def open_all(self) -> None:
        """Every group may hold options that the table lacks."""
        for name, record in self.types.items():
            self.types[name] = {**record, "open_keys": ["*"]}

    def drop_unreached(self) -> None:
        """Drops groups and unions that no option uses any more."""
        reached, waiting = {self._root}, [self._root]
        unions: set[str] = set()
        while waiting:
            for row in self._fields(waiting.pop()).values():
                unions |= set(_unions_of(row))
                new = set(record_types(row, self.unions, in_items=True)) - reached
                reached |= new
                waiting += new
        self.types = {name: row for name, row in self.types.items() if name in reached}
        self.unions = {name: row for name, row in self.unions.items() if name in unions}

    def _remove(self, path: str) -> bool:
        holder, _, name = path.rpartition(".")
        if name.endswith(">"):
            union, kind = self._union(path)
            if union is None or kind not in self.unions[union]["types"]:
                return False
            left = {key: of for key, of in self.unions[union]["types"].items() if key != kind}
            self.unions[union] = {**self.unions[union], "types": left}
            return True
        having = [kind for kind in self._kinds(holder) if name in self.types[kind]["fields"]]
        for kind in having:
            fields = {key: row for key, row in self._fields(kind).items() if key != name}
            self.types[kind] = {**self.types[kind], "fields": fields}
        return bool(having)

    def _set(self, path: str, field: Mapping[str, Any]) -> bool:
        holder, _, name = path.rpartition(".")
        kinds = self._kinds(holder)
        # An option that some kinds of a union have changes in these; a new one comes to all.
        having = [kind for kind in kinds if name in self._fields(kind)] or kinds
        for kind in having:
            self.types[kind] = {**self.types[kind], "fields": {**self._fields(kind), name: field}}
        return bool(having)

    def _add_kind(self, path: str, fields: Mapping[str, Any]) -> bool:
        union, kind = self._union(path)
        if union is None:
            return False
        name = f"{union}_{kind}"
        self.types[name] = {"fields": dict(fields)}
        types = {**self.unions[union]["types"], kind: name}
        self.unions[union] = {**self.unions[union], "types": types}
        return True

    def _fields(self, kind: str) -> dict[str, Any]:
        fields: dict[str, Any] = self.types[kind]["fields"]
        return fields

    def _union(self, path: str) -> tuple[str | None, str]:
        """The union of `option<kind>`, and the kind."""
        option, _, kind = path.removesuffix(">").rpartition("<")
        holder, _, name = option.rpartition(".")
        for above in self._kinds(holder):
            field = self._fields(above).get(name)
            if field and field["type"] == "union":
                return field["of"], kind
        return None, kind

    def _kinds(self, path: str) -> list[str]:
        """The groups of options that a path may lead to."""
        kinds = [self._root]
        for step in filter(None, path.split(".")):
            name, _, only = step.removesuffix(">").partition("<")
            rows = [row for kind in kinds if (row := self._fields(kind).get(name))]
            kinds = list(chain.from_iterable(self._groups(row, only) for row in rows))
        return list(dict.fromkeys(kinds))

    def _groups(self, row: Mapping[str, Any], only: str) -> Iterator[str]:
        if row["type"] == "record":
            yield row["of"]
        elif row["type"] == "union":
            types = self.unions[row["of"]]["types"]
            yield from (kind for name, kind in types.items() if only in ("", name))
        for inner in alternatives(row):
            yield from self._groups(inner, only)


Table = Mapping[str, Any]
Row = Mapping[str, Any]

# Parts that describe only the older release, or that cannot be combined.
_NONE: Mapping[str, Any] = {"containers": {}, "support_matrix": None}
_LOWER_BOUNDS, _UPPER_BOUNDS = ("ge", "gt", "min_length"), ("le", "lt")
_DEFAULTS = ("default", "default_factory", "effective_default")


def between(name: str, older: Table, newer: Table) -> dict[str, Any]:
    """The table of a release called `name` between two others."""
    options = _Options(older, newer)
    root = options.record(older["root"], newer["root"])
    others = newer["endpoints"]["server"]
    endpoints = [pair for pair in older["endpoints"]["server"] if pair in others]
    return {
        **{key: value for key, value in older.items() if key not in ("nearest", *_NONE)},
        "release": name,
        "provenance": _both_provenances(older, newer),
        "root": root,
        "types": options.types,
        "unions": options.unions,
        "serve": _serve(older["serve"], newer["serve"]),
        "subcommands": {
            command: _shared_flags(flags, newer["subcommands"][command])
            for command, flags in older["subcommands"].items()
            if command in newer["subcommands"]
        },
        "endpoints": {**older["endpoints"], "server": endpoints},
        "moe": _moe(older["moe"], newer["moe"]),
        "containers": {server: [] for server in older["containers"]},
        "environment": _shared(older["environment"], newer["environment"]),
        **_architectures(older, newer),
    }


def _both_provenances(older: Table, newer: Table) -> dict[str, Any]:
    names = f"{older['release']} and {newer['release']}"
    sources = [*older["provenance"]["sources"], *newer["provenance"]["sources"]]
    return {"sources": sources, "confidence": f"no own table: what {names} both accept"}


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
        spelled = by_name(theirs["fields"])
        for key, row in mine["fields"].items():
            names = [word for word in (key, *row.get("alias", ())) if word in spelled]
            if not names or (found := self._option(row, spelled[names[0]])) is None:
                continue
            kept = {part: value for part, value in found.items() if part != "alias"}
            record["fields"][names[0]] = kept | ({"alias": names[1:]} if names[1:] else {})
        return name

    def _option(self, row: Row, other: Row) -> dict[str, Any] | None:
        """What both accept; `None` if they have no value in common."""
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
            if one == "record":
                return self._whole(row, self._older)
            return self._whole(other, self._newer)
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


def _enum(row: Row, other: Row) -> dict[str, Any] | None:
    if row.get("open") or other.get("open"):
        return {**(other if row.get("open") else row)}
    loose = row.get("case_insensitive") and other.get("case_insensitive")
    theirs = [str(value).lower() if loose else value for value in other["values"]]
    values = [v for v in row["values"] if (str(v).lower() if loose else v) in theirs]
    return {**row, "values": values} if values else None


def _bounded(row: dict[str, Any], other: Row) -> dict[str, Any]:
    for keys, narrower in ((_LOWER_BOUNDS, max), (_UPPER_BOUNDS, min)):
        for key in keys:
            limits = [each[key] for each in (row, other) if key in each]
            if limits:
                row[key] = narrower(limits)
    return row


def _serve(older: Row, newer: Row) -> dict[str, Any]:
    flags = _shared_flags(older["flags"], newer["flags"])
    names = {flag["name"] for flag in flags}
    needed = [row for row in older["flags_by_architecture"] if row["flag"] in names]
    return {**older, "flags": flags, "flags_by_architecture": needed}


def _shared_flags(older: list[Row], newer: list[Row]) -> list[dict[str, Any]]:
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
