"""A release table that is written as the changes to another one, each change with its source.

A new release is then a file that a reader can check. It is expanded when it is read, and nothing
else sees that a table was not written in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from ...schema import Text
from .record import record_types
from .table import (
    FLAG_ROW,
    OPTION_ROW,
    PROVENANCE,
    Fault,
    ReleaseName,
)

# Options by path. A kind of a union is named in angle brackets: `speculative_config<MTP>`. Without
# it a path goes into all kinds. `absent` are options and kinds that the release does not have,
# `options` whole rows, new or in the place of the other table's, `kinds` new kinds of a union.
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

# A release as the changes to the table of `based_on`. `sources` are those that changes name by a
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
    """Every command with its flags by name."""
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
    for inner in row["of"] if row["type"] == "either" else ():
        yield from _unions_of(inner)
    if "items" in row:
        yield from _unions_of(row["items"])


class _Update:
    """The options of a table, of which only what changes is copied."""

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
        """Groups and unions in which no option stands any more."""
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
        """The groups of options that may stand at a path."""
        kinds = [self._root]
        for step in filter(None, path.split(".")):
            name, _, only = step.removesuffix(">").partition("<")
            rows = [row for kind in kinds if (row := self._fields(kind).get(name))]
            kinds = [found for row in rows for found in self._groups(row, only)]
        return list(dict.fromkeys(kinds))

    def _groups(self, row: Mapping[str, Any], only: str) -> Iterator[str]:
        if row["type"] == "record":
            yield row["of"]
        elif row["type"] == "union":
            types = self.unions[row["of"]]["types"]
            yield from [types[only]] if only in types else () if only else types.values()
        for inner in row["of"] if row["type"] == "either" else ():
            yield from self._groups(inner, only)
