"""TensorRT-LLM's options and server flags, from an installed engine or from a release's manifest.

The installed engine describes itself in a separate process. The manifest of options that newer
releases ship is laid over the table of another release.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from ...diagnostics import Diagnostic
from ...errors import BadFacts, BadInput
from ...files import parse_json, read_text
from ..release import Release, record_types

TIMEOUT_S = 600
Row = dict[str, Any]

MAX_LENGTH = 1000  # of an annotation; those of an engine have a tenth of it

_ANNOTATIONS = {"int": "int", "float": "float", "bool": "bool", "str": "str", "Any": "any"}
_BOUND = re.compile(r"\b(ge|gt|le|lt)=(-?(?:\d+\.?\d*|\.\d+))")

ROOT = "TorchLlmArgs"

PROBE = Path(__file__).parent / "probe.py"


def ask(python: str) -> Row:
    """What an installed engine says about itself, from a separate process."""
    code = PROBE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        try:
            done = subprocess.run(
                [python, "-c", code, str(answer)],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            what = f"cannot be asked: {error}"
            raise BadFacts(Diagnostic(python, what, "name a Python with the engine")) from None
        if done.returncode or not answer.is_file():
            said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            what, remedy = f"has no engine to read: {said}", "name a Python that has tensorrt_llm"
            raise BadFacts(Diagnostic(python, what, remedy))
        return dict(json.loads(answer.read_text(encoding="utf-8")))


_FLAG_TYPES = {
    "integer": "int",
    "integer range": "int",
    "float": "float",
    "float range": "float",
    "choice": "enum",
    "filename": "path",
    "path": "path",
    "file": "path",
    "directory": "path",
    "flag": "flag",
    "boolean": "flag",
}


def flags(rows: Sequence[Row], like: Release) -> list[Row]:
    """Flags in our words; which option a flag sets is known only where it has another name."""
    places = {flag.name: flag.yaml_path for flag in like.serve_flags if flag.yaml_path}
    found = []
    for row in rows:
        kind = "enum" if row["values"] else _FLAG_TYPES.get(row["type"], "str")
        flag: Row = {"name": row["name"], "flags": row["spellings"], "type": kind}
        if row["positional"]:
            flag |= {"flags": [row["name"].upper()], "positional": True}
        if row["values"]:
            flag["values"] = row["values"]
        if row["multiple"]:
            flag["multiple"] = True
        if row["name"] in places:
            flag["yaml_path"] = places[row["name"]]
        found.append({**flag, "default": row["default"]})
    return found


_JSON_TYPES = {"integer": "int", "number": "float", "boolean": "bool", "string": "str"}
_BOUNDS = {
    "minimum": "ge",
    "exclusiveMinimum": "gt",
    "maximum": "le",
    "exclusiveMaximum": "lt",
    "minItems": "min_length",
    "minLength": "min_length",
}


class Schema:
    """The option classes' JSON schema, turned into the types and unions of a table.

    `aliases`: class -> field -> its other names, which a schema does not hold.
    """

    def __init__(self, schema: Row, aliases: Mapping[str, Any], like: Release) -> None:
        self._kinds = {ROOT: schema, **schema.get("$defs", {})}
        self._aliases = aliases
        self._like = like
        self._unions: dict[str, Row] = {}

    def tables(self) -> tuple[dict[str, Row], dict[str, Row]]:
        types: dict[str, Row] = {}
        waiting = [ROOT]
        while waiting:
            kind = waiting.pop()
            if kind not in types:
                types[kind] = self._record(kind)
                for field in types[kind]["fields"].values():
                    waiting.extend(record_types(field, self._unions, in_items=True))
        # Records that an option names by themselves, not as one kind of a union.
        no_kinds: dict[str, Row] = {name: {"types": {}} for name in self._unions}
        alone: set[str] = set()
        for record in types.values():
            for field in record["fields"].values():
                alone.update(record_types(field, no_kinds, in_items=True))
        for union in self._unions.values():
            for kind in set(union["types"].values()) - alone:
                types[kind]["fields"].pop(union["discriminator"], None)
        return types, self._unions

    def _record(self, kind: str) -> Row:
        schema = self._kinds[kind]
        required = schema.get("required", ())
        record: Row = {"fields": {}}
        known = self._like.table["types"].get(kind, {"fields": {}})
        for name, row in schema.get("properties", {}).items():
            field = self._option(row, f"{kind}.{name}")
            if name in required:
                field["required"] = True
            if alias := self._aliases.get(kind, {}).get(name):
                field["alias"] = alias
            record["fields"][name] = self._narrowed(field, known["fields"].get(name))
        if schema.get("additionalProperties", True) is not False:
            record["open_keys"] = ["*"]
        return record | {key: known[key] for key in ("backend", "only_in_python") if key in known}

    def _option(self, row: Row, place: str) -> Row:
        field = self._field(row, place)
        if "default" in row:
            field["default"] = row["default"]
        status = "deprecated" if row.get("deprecated") else row.get("status")
        return field | ({"status": status} if status else {})

    def _narrowed(self, field: Row, known: Row | None) -> Row:
        """What the engine checks in code, not in its types, as the other release does it."""
        if known is None:
            return field
        if field["type"] == "mapping" and known["type"] == "mapping" and "keys" in known:
            field["keys"] = known["keys"]
        if field.get("items") == {"type": "any"} and "items" in known:
            field["items"] = known["items"]
        if field["type"] == "enum" and known.get("case_insensitive"):
            field["case_insensitive"] = True
        for key in ("effective_default", "replaced_by", "effect"):
            if key in known and (key == "effective_default" or "status" in field):
                field[key] = known[key]
        texts = field["of"] if field["type"] == "either" else [field]
        if known["type"] == "enum" and any(row["type"] == "str" for row in texts):
            kept: Row = {key: field[key] for key in ("nullable", "status") if key in field}
            doubt = {"uncertain": "value", "confidence": f"carried from {self._like.name}"}
            return {**known, **kept, **({} if known.get("open") else doubt)}
        return field

    def _field(self, row: Row, place: str) -> Row:
        options = [dict(option) for option in row.get("anyOf") or row.get("oneOf") or ()]
        if len(row.get("allOf", ())) == 1:
            options = [dict(row["allOf"][0])]
        nullable = {"type": "null"} in options
        options = [option for option in options if option != {"type": "null"}]
        extra: Row = {"nullable": True} if nullable else {}
        if len(options) == 1:
            # What has no schema may describe itself by the words for a Python type.
            words = {key: row[key] for key in ("type",) if key in row and options[0] == {}}
            return {**self._field(options[0] | words, place), **extra}
        if options:
            return {**self._several(row, options, place), **extra}
        return {**self._plain(row, place), **extra}

    def _several(self, row: Row, options: list[Row], place: str) -> Row:
        kinds = [option["$ref"].rpartition("/")[2] for option in options if "$ref" in option]
        records = [kind for kind in kinds if "properties" in self._kinds[kind]]
        if len(records) == len(options):
            return self._union(row, records, place)
        fields = [self._field(option, place) for option in options]
        kept = [field for at, field in enumerate(fields) if field not in fields[:at]]
        return kept[0] if len(kept) == 1 else {"type": "either", "of": kept}

    def _union(self, row: Row, kinds: list[str], place: str) -> Row:
        """A union by the discriminator of its schema, by constants of its kinds, or as before."""
        chooser = row.get("discriminator", {}).get("propertyName")
        constants = [self._constants(kind) for kind in kinds]
        shared = [key for key in constants[0] if all(key in found for found in constants)]
        if chooser is None and shared:
            chooser = shared[0]
        known = self._like.paths.get(_path_of(self._like, place), ())
        before: Row = next((self._like.table["unions"][f["of"]] for f in known if "of" in f), {})
        if chooser is None:
            chooser = before.get("discriminator")
            types = {n: kind for n, kind in before.get("types", {}).items() if kind in kinds}
        else:
            types = {found[chooser]: kind for found, kind in zip(constants, kinds, strict=True)}
        if not types:
            of = [{"type": "record", "of": kind} for kind in kinds]
            return {"type": "either", "of": of}
        name = next((f["of"] for f in known if f["type"] == "union"), place)
        keep: Row = {key: before[key] for key in ("case_insensitive", "default") if key in before}
        self._unions[name] = {"discriminator": chooser, "types": types, **keep}
        return {"type": "union", "of": name}

    def _constants(self, kind: str) -> dict[str, str]:
        rows = self._kinds[kind]["properties"].items()
        return {name: row["const"] for name, row in rows if isinstance(row.get("const"), str)}

    def _plain(self, row: Row, place: str) -> Row:
        if "$ref" in row:
            kind = row["$ref"].rpartition("/")[2]
            if "properties" in self._kinds[kind] or "enum" not in self._kinds[kind]:
                return {"type": "record", "of": kind}
            row = self._kinds[kind]
        bounds = {ours: row[theirs] for theirs, ours in _BOUNDS.items() if theirs in row}
        if "enum" in row or "const" in row:
            return {"type": "enum", "values": row.get("enum") or [row["const"]]}
        kind = row.get("type")
        if kind in _JSON_TYPES:
            return {"type": _JSON_TYPES[kind], **bounds}
        if kind == "array":
            return {"type": "list", "items": self._field(row.get("items", {}), place), **bounds}
        if kind == "object":
            inner = row.get("additionalProperties")
            items = self._field(inner, place) if isinstance(inner, dict) else {"type": "any"}
            return {"type": "mapping", "items": items}
        if kind is None:
            return {"type": "object" if row.get("python_object") else "any"}
        return annotated(str(kind)) or {"type": "object"}


def _path_of(release: Release, place: str) -> str:
    """The option path of `Class.field`; the classes of an engine are used in one place each."""
    kind, _, name = place.partition(".")
    if kind == release.table["root"]:
        return name
    for path, rows in release.paths.items():
        if any(row.get("of") == kind for row in rows):
            return f"{path}.{name}"
    return ""


def annotated(text: str) -> Row | None:
    """The option that a Python annotation describes; `None` for what no file can hold.

    >>> annotated("Optional[Annotated[int, Gt(gt=0)]]")
    {'type': 'int', 'gt': 0, 'nullable': True}
    """
    if len(text) > MAX_LENGTH:
        return None
    text = text.strip().replace("typing.", "")
    if found := re.fullmatch(r"<(?:class|enum) '([\w.]+)'>", text):
        text = found[1]
    if text in _ANNOTATIONS:
        return {"type": _ANNOTATIONS[text]}
    head, _, inner = text.partition("[")
    parts = _split(inner.removesuffix("]"))
    if not parts:
        return None
    if head == "Literal":
        return {"type": "enum", "values": [part.strip("'\"") for part in parts]}
    if head == "Annotated":
        row = annotated(parts[0])
        return row and {**row, **{name: _number(limit) for name, limit in _BOUND.findall(inner)}}
    if head in ("Optional", "Union"):
        given = [part for part in parts if part not in ("None", "NoneType")]
        rows = [row for part in given if (row := annotated(part))]
        nullable = {"nullable": True} if head == "Optional" or len(given) < len(parts) else {}
        if not rows or len(rows) < len(given):
            return None
        return {**(rows[0] if len(rows) == 1 else {"type": "either", "of": rows}), **nullable}
    if head.lower() in ("list", "set", "tuple"):
        items = annotated(parts[0])
        return items and {"type": "list", "items": items}
    return None


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _split(text: str) -> list[str]:
    """The arguments of an annotation, at the commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


MAX_BYTES = 20_000_000
MAX_DEPTH = 12

# The keys of a row that are read here.
_TEXTS = ("annotation", "capture_policy", "converter")
_KINDS = {"int", "float", "bool", "str"}


def read_manifest(path: Path) -> list[Row]:
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


class ManifestUpdate:
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
