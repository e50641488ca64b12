"""Checks Triton's `config.pbtxt`: Triton must be able to read it and the model must accept it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ...diagnostics import Diagnostic, Location, located, nearest
from ...facts import data_file, plain_data
from ...general_rules import (
    DUPLICATE_KEY,
    MISSING_KEY,
    UNKNOWN_KEY,
    UNKNOWN_VALUE,
    VALUE_TYPE,
    Rule,
    Severity,
)
from ..read.triton_config import Message, Scalar, parse
from .model_config import completes, meaning_diagnostics, sizes
from .triton_fields import EXCLUSIVE_KEYS, TRITON, TRITON_MODEL_FILE, backend_of, field_diagnostics
from .triton_parameters import parameter_diagnostics, template_diagnostics

DUPLICATE_NAME = Rule("duplicate-name", "Two tensors of one model have the same name.")
TRITON_DATA_TYPE = Rule(
    "triton-data-type", "A tensor has another data type than the backend expects."
)
TRITON_MODEL_NAME = Rule("triton-model-name", "The name of a model must be that of its folder.")

_SAMPLING = "sampling_param_"


@cache
def schema() -> Mapping[str, Any]:
    """Names and types of the fields of every message, and the values of every enum."""
    document: dict[str, Any] = data_file.load(
        TRITON / "model_config.yaml", plain_data.MODEL_CONFIG_FILE
    )
    return document


@cache
def llmapi() -> Mapping[str, Any]:
    """The requirements of the engine's own Triton model."""
    document: dict[str, Any] = data_file.load(
        TRITON / "llmapi_model.yaml", plain_data.LLM_API_MODEL_FILE
    )
    return document


def config_diagnostics(text: str, path: Path) -> Iterator[Diagnostic]:
    """Reports every error of a model configuration; `path` gives the folder that it is in."""
    config, broken = parse(text)
    yield from _message_diagnostics(config, "ModelConfig", "")
    if broken:
        yield from broken
        return
    yield from _tensors_diagnostics(config, path)
    yield from _folder_diagnostics(config, path)
    if path.parent.name.isdigit():
        what = "Triton reads config.pbtxt in the folder of the model, not in that of a version"
        place, fix = config.location, "move it up by one folder"
        yield located(place, "", what, fix, TRITON_MODEL_FILE, "warning")
        return
    yield from template_diagnostics(config, path)
    yield from meaning_diagnostics(config, path)
    yield from parameter_diagnostics(config, path)
    if backend_of(config) == "ensemble" or config.named("ensemble_scheduling"):
        from .model_repository import ensemble_diagnostics  # most models are none

        yield from ensemble_diagnostics(config, path)
    if is_llmapi(config):
        yield from _llmapi_diagnostics(config)


def is_llmapi(config: Message) -> bool:
    """Whether a configuration is for the Triton model that serves the engine's LLM API. Other
    Python models also have a text input, but none of its sampling parameters."""
    names = {item.text("name") for item in config.messages("input")}
    is_own = any(name.startswith(_SAMPLING) for name in names & llmapi()["inputs"].keys())
    return config.text("backend") == "python" and llmapi()["required_input"] in names and is_own


def _message_diagnostics(message: Message, kind: str, path: str) -> Iterator[Diagnostic]:
    """Reports unknown fields, wrong types and duplicate fields, at any depth."""
    fields: Mapping[str, str] = schema()["messages"][kind]
    first: dict[str, Location] = {}
    counts: Counter[str] = Counter()
    for row in message.fields:
        inner = f"{path}.{row.name}" if path else row.name
        if row.name not in fields:
            what = f"unknown field in {path or 'a model configuration'}"
            yield located(row.location, inner, what, nearest(row.name, fields), UNKNOWN_KEY)
            continue
        repeated, _, name = fields[row.name].rpartition(" ")
        if not repeated and row.name in first:
            what = f"is given twice, first in line {first[row.name].line}"
            yield located(row.location, inner, what, "keep one", DUPLICATE_KEY)
        first.setdefault(row.name, row.location)
        if not repeated and len(row.values) != 1:
            yield located(row.location, inner, "is a list", "give one value", VALUE_TYPE)
            continue
        if not row.colon and not row.values and name not in schema()["messages"]:
            yield located(row.location, inner, "has no colon", f"write {row.name}: []")
        for value in row.values:
            index = f".{counts[row.name]}" if repeated else ""
            counts[row.name] += 1
            yield from _value_diagnostics(value, name, f"{inner}{index}")
    for group in schema()["exclusive"].get(kind, ()):
        yield from _exclusive_diagnostics([name for name in group if name in first], first, path)


def _exclusive_diagnostics(
    fields: list[str], places: Mapping[str, Location], path: str
) -> Iterator[Diagnostic]:
    if len(fields) > 1:
        where = f"{path}.{fields[1]}" if path else fields[1]
        what = f"cannot be combined with {fields[0]}"
        yield located(places[fields[1]], where, what, "keep one", EXCLUSIVE_KEYS)


def _value_diagnostics(value: Scalar | Message, kind: str, path: str) -> Iterator[Diagnostic]:
    if kind in schema()["messages"]:
        if isinstance(value, Message):
            yield from _message_diagnostics(value, kind, path)
        else:
            what = f"is {value.text}"
            yield located(value.location, path, what, "write { ... } with its fields", VALUE_TYPE)
    elif isinstance(value, Scalar) and value.kind == "open":
        return
    elif isinstance(value, Message):
        yield located(value.location, path, "is a message", f"give a {kind}", VALUE_TYPE)
    elif kind in schema()["enums"]:
        words = schema()["enums"][kind]
        if _whole(value, *_BOUNDS["int32"]):
            return  # the number of an enum value; protobuf accepts any
        if value.text not in words or value.kind != "name":
            quoted = value.kind == "string" and value.text in words
            remedy = "write it without quotes" if quoted else nearest(value.text, words)
            yield located(
                value.location, path, f"{value.text} is not allowed", remedy, UNKNOWN_VALUE
            )
    elif expected := _expected(value, kind):
        yield located(value.location, path, f"is {value.text[:60]}", expected, VALUE_TYPE)


def _whole(value: Scalar, low: int, high: int) -> bool:
    return value.number is not None and low <= value.number <= high


_BOUNDS = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}
_WORDS = {
    "bool": ("true", "false", "True", "False", "t", "f", "1", "0"),
    "float": ("inf", "infinity", "nan"),
}


def _expected(value: Scalar, kind: str) -> str:
    """What to write in the place of a value of another type; empty if its type is right."""
    if kind == "string":
        return "" if value.kind == "string" else "give a string in quotes"
    if kind == "bool":
        is_right = value.kind != "string" and value.text in _WORDS[kind]
        return "" if is_right else "give true or false"
    if kind == "float":
        is_right = value.kind == "number" or value.text.lstrip("-").lower() in _WORDS[kind]
        return "" if is_right else "give a number"
    least, most = _BOUNDS[kind]
    at_least = "" if least else " of at least 0"
    return "" if _whole(value, least, most) else f"give a whole number{at_least}"


def _tensors_diagnostics(config: Message, file: Path) -> Iterator[Diagnostic]:
    """Reports inputs and outputs without a name, type or shape, and duplicate names."""
    severity: Severity = "warning" if completes(config, file) else "error"
    for group in ("input", "output"):
        seen: dict[str, Message] = {}
        for index, tensor in enumerate(config.messages(group)):
            path = f"{group}.{index}"
            fields = {row.name for row in tensor.fields}
            misspelt = not fields <= set(schema()["messages"]["ModelInput"])
            for name in ("name", "data_type", "dims"):
                if name not in fields and not misspelt:
                    what = f"has no {name}"
                    fix = f"add {name}"
                    yield located(tensor.location, path, what, fix, MISSING_KEY, severity)
            name = tensor.text("name")
            if name and name in seen:
                first = seen[name]
                what = f"{name} is the name of another {group}, in line {first.location.line}"
                where, place, rule = f"{path}.name", tensor.place("name"), DUPLICATE_NAME
                # Triton counts the inputs that a request must bring, and ignores such an output.
                is_same = first.text("data_type") == tensor.text("data_type")
                warns = (
                    group == "output" and is_same and sizes(first, "dims") == sizes(tensor, "dims")
                )
                told: Severity = "warning" if warns else "error"
                yield located(place, where, what, "rename one", rule, told)
            seen.setdefault(name, tensor)


def _folder_diagnostics(config: Message, path: Path) -> Iterator[Diagnostic]:
    """Reports a model name that differs from its folder's name in a model repository."""
    name, folder = config.text("name"), path.absolute().parent
    if name and name != folder.name and _has_versions(folder):
        place = next(row.location for row in config.fields if row.name == "name")
        what = f"{name} is not the name of the folder, {folder.name}"
        remedy = "leave name out, or rename the folder"
        yield located(place, "name", what, remedy, TRITON_MODEL_NAME)


def _has_versions(folder: Path) -> bool:
    try:
        return any(version.name.isdigit() and version.is_dir() for version in folder.iterdir())
    except OSError:
        return False


def _llmapi_diagnostics(config: Message) -> Iterator[Diagnostic]:
    yield from field_diagnostics(config, "llmapi")
    for group, name in (("input", "required_input"), ("output", "required_output")):
        wanted, types = llmapi()[name], llmapi()[f"{group}s"]
        tensors = config.messages(group)
        if not any(tensor.text("name") == wanted for tensor in tensors):
            what, remedy = f"has no {wanted}", f"add the {group} {wanted}"
            yield located(config.location, group, what, remedy, MISSING_KEY)
        for index, tensor in enumerate(tensors):
            known, found = types.get(tensor.text("name")), tensor.text("data_type")
            if known and found in schema()["enums"]["DataType"] and found != known:
                remedy = f"model.py reads {tensor.text('name')} as {known}"
                place, path = tensor.place("data_type"), f"{group}.{index}.data_type"
                yield located(place, path, f"is {found}", remedy, TRITON_DATA_TYPE)
