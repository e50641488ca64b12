"""The options of exact engine releases, and whether a set of options is valid for one of them.

A release is a table in `builder/data/releases/`: option paths with types, bounds and allowed
values, server flags, metric names, MoE backends. A release without a table is refused, never
replaced by a near one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from .errors import BadInput, Problem, nearest

RELEASES = Path(__file__).parent / "data" / "releases"

Field = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of the server command: its spellings, its type and the values it allows.

    `positional` marks the model argument. `type` is one of str, int, float, flag, enum, path, json,
    path_or_str.
    """

    name: str
    spellings: tuple[str, ...]
    type: str
    values: tuple[str, ...] = ()
    default: Any = None
    positional: bool = False
    multiple: bool = False
    yaml_path: str | None = None


@dataclass(frozen=True, slots=True)
class MoeBackend:
    """A MoE backend that has kernels for a quantization on a GPU generation, and who says so."""

    name: str
    evidence: Literal["documented", "assumed"]
    source: str


def known() -> list[str]:
    """Releases that have a table, oldest first, development tables last."""
    return sorted((path.stem for path in RELEASES.glob("*.json")), key=_order)


def newest_stable() -> str:
    return [name for name in known() if name[0].isdigit()][-1]


def load(name: str) -> Release:
    """The table of a release. Raises `BadInput` with the known ones if there is none."""
    path = RELEASES / f"{name}.json"
    if name not in known():
        what = f"release {name} of tensorrt_llm has no option table"
        raise BadInput(Problem("engine.release", what, f"known: {', '.join(known())}"))
    return Release(json.loads(path.read_text(encoding="utf-8")))


def _order(name: str) -> tuple[bool, list[int], str]:
    return (not name[0].isdigit(), [int(part) for part in re.findall(r"\d+", name)], name)


@dataclass(frozen=True)
class Release:
    """One engine release."""

    table: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.table["release"])

    @property
    def triton_containers(self) -> tuple[str, ...]:
        """Tags of the Triton containers that carry this release."""
        return tuple(self.table["containers"]["triton"])

    @cached_property
    def serve_flags(self) -> tuple[Flag, ...]:
        """The flags of `trtllm-serve serve`."""
        return tuple(
            Flag(
                name=row["name"],
                spellings=tuple(row["flags"]),
                type=row["type"],
                values=tuple(row.get("values", ())),
                default=row.get("default"),
                positional=row.get("positional", False),
                multiple=row.get("multiple", False),
                yaml_path=row.get("yaml_path"),
            )
            for row in self.table["serve"]["flags"]
        )

    @property
    def config_flag(self) -> str:
        """The spelling of the option-file flag that every release understands."""
        (flag,) = (row for row in self.serve_flags if row.name == "extra_llm_api_options")
        return flag.spellings[-1]

    def flags_for(self, architecture: str) -> list[Mapping[str, str]]:
        """Server flags that a model needs: `flag`, `value`, `reason`, `evidence` and `source`."""
        rows = self.table["serve"]["flags_by_architecture"]
        return [row for row in rows if row["architecture"] == architecture]

    def spelling(self, name: str) -> str:
        """The spelling of a server flag, newest first."""
        (flag,) = (row for row in self.serve_flags if row.name == name)
        return flag.spellings[0]

    def spell(self, word: str) -> str:
        """The option path by which this release knows a choice whose name changed over time."""
        return str(self.table["words"].get(word, word))

    def moe_backends(self, quant_algo: str | None, sm: int) -> list[MoeBackend]:
        """MoE backends for a quantization on a GPU of compute capability `sm`, best first."""
        return [
            MoeBackend(row["backend"], row["evidence"], row["source"])
            for row in self.table["moe"]["rows"]
            if row["quant_algo"] == quant_algo and sm in row["sm"]
        ]

    def default(self, path: str) -> Any:
        """What the engine uses where an option is not given; `None` if it decides by itself."""
        fields = self.table["types"][self.table["root"]]["fields"]
        *parents, last = path.split(".")
        for key in parents:
            fields = self.table["types"][fields[key]["of"]]["fields"]
        value = fields[last].get("default")
        if value is None and "effective_default" in fields[last]:
            value = json.loads(fields[last]["effective_default"])
        return value

    def normalise(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options that `check_options` accepts, with every value in its option's own type."""
        return self._normalise(self.table["types"][self.table["root"]]["fields"], options)

    def _normalise(self, fields: Mapping[str, Field], value: Mapping[str, Any]) -> dict[str, Any]:
        result = {}
        for key, item in value.items():
            field = fields.get(key, {"type": "any"})
            if field["type"] == "record" and isinstance(item, Mapping):
                result[key] = self._normalise(self.table["types"][field["of"]]["fields"], item)
            elif field["type"] == "union" and isinstance(item, Mapping):
                union = self.table["unions"][field["of"]]
                kind = union["types"].get(item.get(union["discriminator"]))
                inner = self.table["types"][kind]["fields"] if kind else {}
                result[key] = self._normalise(inner, item)
            else:
                convert = _CONVERT.get(field["type"])
                result[key] = convert(item) if convert and item is not None else item
        return result

    def unsupported(self, architecture: str) -> str | None:
        """Why this release does not serve an architecture; `None` if nothing speaks against it."""
        reason = self.table["unsupported_architectures"].get(architecture)
        return str(reason) if reason else None

    def check_options(self, options: Mapping[str, Any]) -> list[Problem]:
        """Every option that this release would reject: `where` is its dotted path.

        Types are judged as the engine's own validation does, which accepts `"3"` for 3 and 1 for
        true, and unknown keys at no depth.
        """
        root = self.table["types"][self.table["root"]]["fields"]
        return list(self._check_record(root, options, "", self.name, check_required=False))

    def _check_record(
        self,
        fields: Mapping[str, Field],
        value: Mapping[str, Any],
        path: str,
        owner: str,
        check_required: bool = True,
    ) -> Iterator[Problem]:
        by_name = dict(fields) | {
            alias: field for field in fields.values() for alias in field.get("alias", ())
        }
        for key, item in value.items():
            inner = f"{path}.{key}" if path else str(key)
            if key not in by_name:
                what = f"unknown option in {owner}"
                yield Problem(inner, what, nearest(str(key), by_name), rule="unknown-key")
            else:
                yield from self._check(by_name[key], item, inner)
        if check_required:
            for name, field in fields.items():
                if field.get("required") and not {name, *field.get("alias", ())} & set(value):
                    what = f"{name} is required here"
                    yield Problem(path, what, f"add {path}.{name}", rule="missing-key")

    def _check(self, field: Field, value: Any, path: str) -> Iterator[Problem]:
        if value is None:
            if not field.get("nullable"):
                yield _wrong_type(path, "null", field)
            return
        kind = field["type"]
        if kind == "record":
            if not isinstance(value, Mapping):
                yield _wrong_type(path, value, field)
            else:
                record = self.table["types"][field["of"]]["fields"]
                yield from self._check_record(record, value, path, path)
        elif kind == "union":
            yield from self._check_union(self.table["unions"][field["of"]], value, path)
        elif kind == "either":
            problems = [list(self._check(option, value, path)) for option in field["of"]]
            if all(problems):
                yield min(problems, key=len)[0]
            else:
                yield from _bounds(field, value, path)
        elif kind == "list":
            yield from self._check_list(field, value, path)
        elif kind == "mapping":
            if not isinstance(value, Mapping):
                yield _wrong_type(path, value, field)
                return
            for key, item in value.items():
                yield from self._check(field["items"], item, f"{path}.{key}")
        else:
            yield from _check_scalar(field, value, path)

    def _check_list(self, field: Field, value: Any, path: str) -> Iterator[Problem]:
        if not isinstance(value, Sequence) or isinstance(value, str):
            yield _wrong_type(path, value, field)
            return
        if len(value) < field.get("min_length", 0):
            yield Problem(path, "is empty", "list at least one value", rule="value-range")
        for index, item in enumerate(value):
            yield from self._check(field["items"], item, f"{path}.{index}")

    def _check_union(self, union: Mapping[str, Any], value: Any, path: str) -> Iterator[Problem]:
        if not isinstance(value, Mapping):
            yield _wrong_type(path, value, {"type": "record"})
            return
        discriminator, types = union["discriminator"], union["types"]
        name = value.get(discriminator, union.get("default"))
        if name is None:
            what, remedy = f"{discriminator} is required here", f"one of {', '.join(types)}"
            yield Problem(path, what, remedy, rule="missing-key")
            return
        if union.get("case_insensitive"):
            name = {known.lower(): known for known in types}.get(str(name).lower(), name)
        if name not in types:
            where, what = f"{path}.{discriminator}", f"{name} is unknown in release {self.name}"
            yield Problem(where, what, nearest(str(name), types), rule="unknown-value")
            return
        record = self.table["types"][types[name]]
        if record.get("only_in_python"):
            what = f"{name} can be given from Python only"
            yield Problem(f"{path}.{discriminator}", what, "choose another", rule="unknown-value")
        fields = {discriminator: {"type": "str"}, **record["fields"]}
        yield from self._check_record(fields, value, path, f"{path} ({name})")


_EXPECTED = {
    "record": "a mapping",
    "mapping": "a mapping",
    "list": "a list",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "object": "a Python object, which no file can hold",
}


def _wrong_type(path: str, value: Any, field: Field) -> Problem:
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    expected = _EXPECTED.get(field["type"], "another value")
    return Problem(path, f"is {shown[:60]}", f"expected {expected}", rule="value-type")


def _check_scalar(field: Field, value: Any, path: str) -> Iterator[Problem]:
    kind = field["type"]
    if kind == "enum":
        values = field["values"]
        given = value.upper() if field.get("case_insensitive") and isinstance(value, str) else value
        allowed = [str(v).upper() for v in values] if field.get("case_insensitive") else values
        if given not in allowed and not field.get("open"):
            remedy = nearest(str(value), map(str, values))
            yield Problem(path, f"{value} is not allowed", remedy, rule="unknown-value")
    elif kind != "any" and not _ACCEPTS[kind](value):
        yield _wrong_type(path, value, field)
    else:
        yield from _bounds(field, value, path)


def _bounds(field: Field, value: Any, path: str) -> Iterator[Problem]:
    for bound, holds, text in _BOUNDS:
        limit = field.get(bound)
        if limit is not None and _is_number(value) and not holds(float(value), limit):
            what = f"{value} is out of range"
            yield Problem(path, what, f"give a value {text} {limit}", rule="value-range")
    if isinstance(value, str) and len(value) < field.get("min_length", 0):
        yield Problem(path, "is empty", "give a value", rule="value-range")


_BOUNDS: tuple[tuple[str, Callable[[float, float], bool], str], ...] = (
    ("ge", lambda value, limit: value >= limit, "of at least"),
    ("gt", lambda value, limit: value > limit, "above"),
    ("le", lambda value, limit: value <= limit, "of at most"),
    ("lt", lambda value, limit: value < limit, "below"),
)


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, int | float)


def _is_int(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"\s*[+-]?\d+\s*", value) is not None
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _is_bool(value: Any) -> bool:
    words = {"true", "false", "yes", "no", "on", "off", "y", "n", "t", "f", "0", "1"}
    return value in (0, 1) or (isinstance(value, str) and value.lower() in words)


_ACCEPTS: dict[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "float": _is_number,
    "bool": _is_bool,
    "str": lambda value: isinstance(value, str),
    "object": lambda value: False,
}

_TRUE = {"true", "yes", "on", "y", "t", "1"}

_CONVERT: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: int(value),
    "float": lambda value: float(value) if isinstance(value, str) else value,
    "bool": lambda value: str(value).lower() in _TRUE,
}
