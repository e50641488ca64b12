"""The manifest of options that newer releases ship, laid over the table of another release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from ...diagnostics import Diagnostic
from ...errors import BadFacts, BadInput
from ...files import parse_json, read_text
from ..release import record_types
from .installed import ROOT, Row, annotated

MAX_BYTES = 20_000_000
MAX_DEPTH = 12

# The keys of a row that are read here.
_TEXTS = ("annotation", "capture_policy", "converter")
_KINDS = {"int", "float", "bool", "str"}


def read(path: Path) -> list[Row]:
    try:
        document = parse_json(read_text(path, max_bytes=MAX_BYTES))
    except ValueError as error:
        what = f"cannot be read: {error}"
        raise BadInput(Diagnostic(str(path), what, "give the manifest of a release")) from None
    rows = document.get(ROOT) if isinstance(document, dict) else None
    if not isinstance(rows, list) or not rows:
        what, remedy = f"holds no list of {ROOT} rows", "give llm_args_golden_manifest.json"
        raise BadFacts(Diagnostic(str(path), what, remedy))
    if wrong := [index for index, row in enumerate(rows) if not _is_row(row)]:
        what = f"{ROOT}.{wrong[0]} is not a row of a manifest"
        raise BadFacts(Diagnostic(str(path), what, "give llm_args_golden_manifest.json"))
    return rows


def _is_row(row: Any) -> bool:
    """Whether a row has the path of an option, and text and lists where they belong."""
    if not isinstance(row, dict) or not isinstance(path := row.get("path"), str):
        return False
    keys = path.split(".")
    values = row.get("allowed_values")
    return (
        all(keys)
        and len(keys) <= MAX_DEPTH
        and all(isinstance(row.get(key), str | None) for key in _TEXTS)
        and isinstance(values, list | None)
        and all(isinstance(value, str | int | float) for value in values or ())
    )


def _field(row: Row) -> Row | None:
    """The option that a manifest row describes; `None` where it describes only what is recorded.

    Rows hold either the annotation of the field, or a policy such as `int|none`.
    """
    values = [str(value) for value in row.get("allowed_values") or ()]
    policy = row.get("capture_policy")
    if policy is None:
        annotation = row.get("annotation") or ""
        field = annotated(annotation)
        if field is None and values and row.get("converter") != "allowlist":
            nullable = {"nullable": True} if annotation.startswith("Optional") else {}
            return {"type": "enum", "values": values, **nullable}
        if field and field["type"] == "enum" and values:
            # The kinds of a union share a row: its annotation is that of the first kind.
            field["values"] = values
        return None if row.get("converter") == "allowlist" else field
    if "allowlist" in policy:
        return None
    fields = [_of_policy(part, values) for part in policy.split("|") if part != "none"]
    nullable = {"nullable": True} if "none" in policy.split("|") else {}
    kinds = [field for at, field in enumerate(fields) if field not in fields[:at]]
    if not kinds:
        return None
    return {**(kinds[0] if len(kinds) == 1 else {"type": "either", "of": kinds}), **nullable}


def _of_policy(policy: str, values: list[str]) -> Row:
    head, _, inner = policy.partition("[")
    if head in ("list", "set", "tuple"):
        return {"type": "list", "items": _of_policy(inner.removesuffix("]"), values)}
    if head in ("literal", "enum"):
        return {"type": "enum", "values": values} if values else {"type": "any"}
    return {"type": head if head in _KINDS else "any"}


class Update:
    """A carried table, brought up to date by the rows of a manifest."""

    def __init__(self, table: Row, doubt: str) -> None:
        self._table = table
        self._doubt = {"uncertain": "existence", "confidence": doubt}

    def apply(self, rows: Sequence[Row]) -> None:
        named = {row["path"] for row in rows}
        for row in rows:
            *parents, name = row["path"].split(".")
            self._set(parents, name, row)
        for path, field, record in list(self._fields(ROOT, "", ())):
            name = path.rpartition(".")[2]
            if path not in named and _recorded(field):
                record["fields"][name] = {**field, **self._doubt}
        for record in self._table["types"].values():
            record["open_keys"] = ["*"]

    def _fields(
        self, kind: str, prefix: str, above: tuple[str, ...]
    ) -> Iterator[tuple[str, Row, Row]]:
        record = self._table["types"][kind]
        for name, field in record["fields"].items():
            yield prefix + name, field, record
            for inner in self._kinds(field):
                if inner not in above:
                    yield from self._fields(inner, f"{prefix}{name}.", (*above, inner))

    def _kinds(self, field: Row) -> list[str]:
        return list(record_types(field, self._table["unions"]))

    def _set(self, parents: Sequence[str], name: str, row: Row) -> None:
        kinds, field = [ROOT], {"type": "record", "of": ROOT}
        for depth, parent in enumerate(parents):
            field = self._block(kinds, parent, ".".join(parents[: depth + 1]))
            kinds = self._kinds(field)
        if field["type"] == "union":
            union = self._table["unions"][field["of"]]
            if name == union["discriminator"]:
                self._choose(union, [str(value) for value in row.get("allowed_values") or ()])
                return
        found = _field(row)
        records = [self._table["types"][kind] for kind in kinds]
        having = [record for record in records if name in record["fields"]]
        some = {"uncertain": "kind", "confidence": "of some kinds only"}
        for record in having:
            known = record["fields"][name]
            doubted = known.get("uncertain") in ("existence", "kind")
            if doubted or found:
                known = _without_doubt(known) | (some if len(having) > 1 and doubted else {})
            if row.get("converter") == "allowlist":
                known = _extended(known, row.get("allowed_values") or ())
            elif len(having) == 1 or doubted:
                known = _updated(known, found)
            elif found and "values" in found and "values" in known:
                # The kinds of a union share a row: which of them allows which value is not in it.
                known = _updated(known, {**found, "type": known["type"]})
            record["fields"][name] = known
        if not having:
            doubt = {} if len(records) == 1 else some
            for record in records:
                record["fields"][name] = {**(found or {"type": "any"}), **doubt}

    def _block(self, kinds: Sequence[str], name: str, path: str) -> Row:
        """The field of a block of options, which may be new."""
        for kind in kinds:
            field = self._table["types"][kind]["fields"].get(name)
            if field is not None and self._kinds(field):
                return dict(field)
        self._table["types"].setdefault(path, {"fields": {}})
        field = {"type": "record", "of": path, "nullable": True}
        for kind in kinds:
            self._table["types"][kind]["fields"][name] = field
        return field

    def _choose(self, union: Row, values: Sequence[str]) -> None:
        """Kinds that are gone leave the union; of a new one, the options of all are allowed."""
        if not values:
            return
        every: Row = {}
        for kind in union["types"].values():
            every |= self._table["types"][kind]["fields"]
        for value in values:
            if value not in union["types"]:
                kind = f"{union['discriminator']}={value}"
                self._table["types"][kind] = {"fields": deepcopy(every)}
                union["types"][value] = kind
        union["types"] = {value: union["types"][value] for value in values}


def _recorded(field: Row) -> bool:
    """Whether a manifest names an option of this type."""
    if field["type"] == "either":
        return all(map(_recorded, field["of"]))
    if field["type"] == "list":
        return _recorded(field["items"])
    return field["type"] in ("int", "float", "bool") or (
        field["type"] == "enum" and not field.get("open")
    )


def _without_doubt(known: Row) -> Row:
    """A known option that a manifest names: it exists, with the values that it lists."""
    return {key: value for key, value in known.items() if key not in ("uncertain", "confidence")}


def _extended(known: Row, values: Sequence[Any]) -> Row:
    """A known option with the values that are recorded of it; it may take others as well."""
    if known["type"] != "enum":
        return known
    fold = str.lower if known.get("case_insensitive") else str
    there = {fold(str(value)) for value in known["values"]}
    more = [value for value in values if fold(str(value)) not in there]
    return {**known, "values": [*known["values"], *more]}


def _updated(known: Row, found: Row | None) -> Row:
    """A known option with what the manifest says of it; bounds and default stay."""
    if found is None:
        return known
    known = {key: value for key, value in known.items() if key != "open" or "values" not in found}
    if known["type"] != found["type"]:
        kept = ("default", "status", "uncertain", "confidence")
        return {**found, **{key: known[key] for key in kept if key in known}}
    changed: Row = {
        key: found[key] for key in ("values", "items", "ge", "gt", "le", "lt") if key in found
    }
    nullable = {"nullable": True} if found.get("nullable") or known.get("nullable") else {}
    return {**known, **changed, **nullable}
