"""Checks Triton's `config.pbtxt`: Triton must be able to read it and the model must accept it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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
    VALUE_RANGE,
    VALUE_TYPE,
    Rule,
    Severity,
)
from ..read.triton_config import Field, Message, Scalar, parse
from .model_config import (
    DUPLICATE_NAME,
    EXCLUSIVE_KEYS,
    TRITON,
    TRITON_MODEL_FILE,
    backend_of,
    completes,
    meaning_diagnostics,
    sizes,
)

TRITON_CONFIG_OVERRIDE = Rule(
    "triton-config-override", "A setting of the model is where Triton does not look for it."
)
TRITON_DATA_TYPE = Rule(
    "triton-data-type", "A tensor has another data type than the backend expects."
)
TRITON_INPUT_REQUIRED = Rule("triton-input-required", "The backend needs this input.", "warning")
TRITON_INSTANCE_GROUP = Rule(
    "triton-instance-group",
    "The LLM API runs one instance of its model, which places itself on the GPUs.",
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
    yield from meaning_diagnostics(config, path)
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
        yield from _bound_diagnostics(row, kind, inner)
    for group in schema()["exclusive"].get(kind, ()):
        yield from _exclusive_diagnostics([name for name in group if name in first], first, path)


def _exclusive_diagnostics(
    fields: list[str], places: Mapping[str, Location], path: str
) -> Iterator[Diagnostic]:
    if len(fields) > 1:
        where = f"{path}.{fields[1]}" if path else fields[1]
        what = f"cannot be combined with {fields[0]}"
        yield located(places[fields[1]], where, what, "keep one", EXCLUSIVE_KEYS)


def _bound_diagnostics(row: Field, kind: str, path: str) -> Iterator[Diagnostic]:
    least = schema()["at_least"].get(kind, {}).get(row.name)
    for value in row.values:
        below = isinstance(value, Scalar) and _whole(-(2**63), (least or 0) - 1)(value)
        if least is not None and below and isinstance(value, Scalar):
            what, remedy = f"{value.text} is out of range", f"must be >= {least}"
            yield located(value.location, path, what, remedy, VALUE_RANGE)


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
        if _whole(-(2**31), 2**31 - 1)(value):
            return  # the number of an enum value; protobuf accepts any
        if value.text not in words or value.kind != "name":
            quoted = value.kind == "string" and value.text in words
            remedy = "write it without quotes" if quoted else nearest(value.text, words)
            yield located(
                value.location, path, f"{value.text} is not allowed", remedy, UNKNOWN_VALUE
            )
    elif not _ACCEPTS[kind](value):
        yield located(value.location, path, f"is {value.text[:60]}", _EXPECTED[kind], VALUE_TYPE)


def _whole(low: int, high: int) -> Callable[[Scalar], bool]:
    def accepts(value: Scalar) -> bool:
        try:
            return value.kind == "number" and low <= int(value.text, 0) <= high
        except ValueError:
            return False

    return accepts


_ACCEPTS: Mapping[str, Callable[[Scalar], bool]] = {
    "string": lambda value: value.kind == "string",
    "bool": lambda value: (
        value.kind != "string"
        and value.text in ("true", "false", "True", "False", "t", "f", "1", "0")
    ),
    "float": lambda value: (
        value.kind == "number" or value.text.lstrip("-").lower() in ("inf", "infinity", "nan")
    ),
    "int32": _whole(-(2**31), 2**31 - 1),
    "int64": _whole(-(2**63), 2**63 - 1),
    "uint32": _whole(0, 2**32 - 1),
    "uint64": _whole(0, 2**64 - 1),
}
_EXPECTED = {
    "string": "give a string in quotes",
    "bool": "give true or false",
    "float": "give a number",
    "int32": "give a whole number",
    "int64": "give a whole number",
    "uint32": "give a whole number of at least 0",
    "uint64": "give a whole number of at least 0",
}


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
    for name in llmapi()["not_in_config_pbtxt"]:
        for row in config.fields:
            if row.name == name:
                what = "is set here and by model.py from model.yaml"
                remedy = "remove it, and set triton_config in model.yaml"
                yield located(row.location, name, what, remedy, TRITON_CONFIG_OVERRIDE)
    yield from _instance_diagnostics(config)
    for group, name in (("input", "required_input"), ("output", "required_output")):
        wanted = llmapi()[name]
        if not any(tensor.text("name") == wanted for tensor in config.messages(group)):
            what, remedy = f"has no {wanted}", f"add the {group} {wanted}"
            yield located(config.location, group, what, remedy, MISSING_KEY)
        data_types: Mapping[str, str] = llmapi()[f"{group}s"]
        for index, tensor in enumerate(config.messages(group)):
            yield from _tensor_diagnostics(tensor, data_types, f"{group}.{index}", group == "input")


def _instance_diagnostics(config: Message) -> Iterator[Diagnostic]:
    """Checks the instance groups: the engine places itself, so one instance without a GPU."""
    kind, rule = llmapi()["instance_kind"], TRITON_INSTANCE_GROUP
    groups = config.messages("instance_group")
    if not groups:
        what = "is missing, so Triton makes one instance per GPU"
        remedy = f"add instance_group [{{ count: 1 kind: {kind} }}]"
        yield located(config.location, "instance_group", what, remedy, rule)
    parameters = {row.text("key") for row in config.messages("parameters")}
    for index, group in enumerate(groups):
        path, found = f"instance_group.{index}", group.text("kind")
        if found != kind:
            what = f"is {found}" if found else "is missing"
            yield located(group.location, f"{path}.kind", what, f"give {kind}", rule)
        count = group.text("count")
        if count.isdigit() and int(count) > 1 and "gpu_device_ids" not in parameters:
            what = f"makes {count} engines that all use the same GPUs"
            remedy = "give 1, or the parameter gpu_device_ids"
            yield located(group.location, f"{path}.count", what, remedy, rule)


def _tensor_diagnostics(
    tensor: Message, data_types: Mapping[str, str], path: str, is_input: bool
) -> Iterator[Diagnostic]:
    """Reports a wrong data type of a known tensor, and an input that should be optional."""
    name, found = tensor.text("name"), tensor.text("data_type")
    if name in data_types and found in schema()["enums"]["DataType"] and found != data_types[name]:
        what, remedy = f"is {found}", f"model.py reads {name} as {data_types[name]}"
        yield located(tensor.location, f"{path}.data_type", what, remedy, TRITON_DATA_TYPE)
    if is_input and name != llmapi()["required_input"] and tensor.text("optional") != "true":
        what = f"{name or 'this input'} must come with every request"
        yield located(
            tensor.location,
            path,
            what,
            "add optional: true",
            TRITON_INPUT_REQUIRED,
        )
