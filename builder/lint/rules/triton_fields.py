"""Checks the fields of a Triton model configuration by the rows of `config_checks.yaml`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from ...diagnostics import Diagnostic, Location, located, nearest
from ...documents import DATA
from ...facts import data_file, plain_data
from ...general_rules import (
    MISSING_KEY,
    UNKNOWN_VALUE,
    VALUE_RANGE,
    VALUE_TYPE,
    Rule,
    rules_in,
)
from ..read.triton_config import Message, Scalar

EXCLUSIVE_KEYS = Rule("exclusive-keys", "Only one of these keys may be used.")
TRITON_BATCHING = Rule("triton-batching", "The batching of a model contradicts itself.")
TRITON_CONFIG_OVERRIDE = Rule(
    "triton-config-override", "A setting of the model is where Triton does not look for it."
)
TRITON_ENSEMBLE_MISMATCH = Rule(
    "triton-ensemble-mismatch", "An ensemble and a model that it composes differ in a tensor."
)
TRITON_INPUT_REQUIRED = Rule("triton-input-required", "The backend needs this input.", "warning")
TRITON_INSTANCES = Rule("triton-instances", "Triton cannot make the instances of a model.")
TRITON_INSTANCE_GROUP = Rule(
    "triton-instance-group",
    "The LLM API runs one instance of its model, which places itself on the GPUs.",
)
TRITON_MODEL_FILE = Rule("triton-model-file", "A model's configuration contradicts its own files.")
TRITON_SHAPE = Rule("triton-shape", "The shape of a tensor is impossible.")
TRITON_VERSIONS = Rule("triton-versions", "Triton finds no version of the model that it may load.")
RULES: Final[Mapping[str, Rule]] = {
    rule.id: rule
    for rule in rules_in((*globals().values(), MISSING_KEY, UNKNOWN_VALUE, VALUE_RANGE, VALUE_TYPE))
}

TRITON = DATA / "triton"
_NAME = re.compile(r"\{([$\w.*]+)\}")


@cache
def backends() -> Mapping[str, Any]:
    """What the server and each backend read of a model configuration."""
    document: dict[str, Any] = data_file.load(
        TRITON / "backends.yaml", plain_data.TRITON_BACKENDS_FILE
    )
    return document


@cache
def _checks() -> Mapping[str, Any]:
    table = data_file.load(TRITON / "config_checks.yaml", plain_data.TRITON_CHECKS_FILE)
    checks: dict[str, Any] = table["checks"]
    return checks


def backend_of(config: Message) -> str:
    """The backend of a model: as written, or that of its platform. An ensemble has `ensemble`."""
    platform = config.text("platform")
    return config.text("backend") or backends()["platforms"].get(platform, platform)


def field_diagnostics(
    config: Message, group: str, files: Mapping[str, list[str]] = MappingProxyType({})
) -> Iterator[Diagnostic]:
    """Checks a configuration by the rows of a group: `every`, `ensemble`, or of one backend.
    `files` are what the files of the model say, by the names that rows have for it."""
    for row in _checks().get(group, ()):
        for at in row["at"]:
            *inner, name = at.split(".")
            for holder, path in _holders(config, inner):
                field = _Field(config, holder, name, f"{path}{name}", files)
                yield from _of_field(field, row)


def _holders(
    message: Message, names: Sequence[str], path: str = ""
) -> Iterator[tuple[Message, str]]:
    """The messages at a path, each with its own path and a dot."""
    if not names:
        yield message, path
        return
    is_many = names[1:2] == ["*"]
    for index, inner in enumerate(message.messages(names[0])):
        where = f"{path}{names[0]}.{index}." if is_many else f"{path}{names[0]}."
        yield from _holders(inner, names[1 + is_many :], where)


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of the message that holds it, and what rows say of it and of the fields around it."""

    config: Message
    holder: Message
    name: str
    path: str
    files: Mapping[str, list[str]]

    def texts(self, path: str) -> list[str]:
        """The values of the fields at a path; one that begins with a dot is that of a neighbour."""
        if path == "backend":
            return [backend_of(self.config)]
        if path in self.files:
            return self.files[path]
        *inner, name = path.removeprefix(".").split(".")
        start = self.holder if path.startswith(".") else self.config
        rows = [row for message, _ in _holders(start, inner) for row in message.named(name)]
        return [row.text if isinstance(row, Scalar) else "{}" for row in rows]

    def bound(self, bound: int | str | None) -> float | None:
        """A bound as a number; that of a field may be unknown."""
        return _number(" ".join(self.texts(bound))) if isinstance(bound, str) else bound


def _number(text: str) -> float | None:
    try:
        return int(text, 0)
    except ValueError:
        return float(text.rstrip("fF")) if re.fullmatch(r"[-+]?[\d.]+[fF]?", text) else None


def _of_field(field: _Field, row: Mapping[str, Any]) -> Iterator[Diagnostic]:
    for where, pattern in row.get("when", {}).items():
        if not re.fullmatch(pattern, " ".join(field.texts(where))):
            return
    known = {"name": field.name, **{key: str(row[key]) for key in ("least", "most") if key in row}}
    for key in ("least", "most"):
        if (bound := field.bound(row.get(key))) is not None:
            known[key] = f"{bound:g}"
    for place, value in _wrong(field, row):
        known["value"] = value
        if "among" in row:
            known["among"] = nearest(value, field.texts(row["among"]))
        what, fix = (
            _NAME.sub(lambda found: known.get(found[1]) or " ".join(field.texts(found[1])), text)
            for text in (row["what"], row["fix"])
        )
        yield located(place, field.path, what, fix, RULES[row["rule"]], row.get("severity"))


def _wrong(field: _Field, row: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
    """The place and text of each value that breaks a row."""
    holder, scalars = field.holder, field.holder.scalars(field.name)
    is_there = any(each.name == field.name for each in holder.fields)
    if row.get("required"):
        if not holder.named(field.name):
            yield holder.place(field.name), ""
    elif row.keys().isdisjoint(("least", "most", "value", "unique", "among")):
        if is_there:
            yield holder.place(field.name), holder.text(field.name)
    elif not scalars and "unset" in row:
        scalars = [Scalar("number", row["unset"], holder.location)]
    seen = set[str]()
    for value in scalars:
        if not value.is_open and _breaks(field, row, value, seen):
            yield value.location, value.text
        seen.add(value.text)


def _breaks(field: _Field, row: Mapping[str, Any], value: Scalar, seen: set[str]) -> bool:
    number = _number(value.text) if value.kind == "number" else None
    least, most = (field.bound(row.get(key)) for key in ("least", "most"))
    among = field.texts(row["among"]) if "among" in row else ()
    return (
        (number is not None and least is not None and number < least)
        or (number is not None and most is not None and number > most)
        or ("value" in row and not re.fullmatch(row["value"], value.text))
        or ("unique" in row and value.text in seen)
        or (bool(among) and value.text not in among)
    )
