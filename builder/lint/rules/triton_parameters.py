"""Checks the parameters that a Triton model passes to its backend, and templates left open."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...diagnostics import Diagnostic, Location, closest, either, located, nearest
from ...general_rules import DUPLICATE_KEY, MISSING_KEY, UNKNOWN_KEY, UNKNOWN_VALUE, Rule, Severity
from ..read.triton_config import Message, Scalar
from .model_config import read
from .triton_fields import RULES, backend_of, backends

TRITON_TEMPLATE = Rule("triton-template", "A placeholder of a template is not filled in.")


def template_diagnostics(config: Message, path: Path) -> Iterator[Diagnostic]:
    """Reports the first placeholder outside of quotes, which Triton cannot read. It is an error
    where models next to it are filled in; a folder of templates is only a warning."""
    first = next(iter(config.open_values), None)
    if first is None:
        return
    severity: Severity = "warning" if _is_template(config, _repository(path)) else "error"
    what = f"{first.text} is not filled in: Triton cannot read it"
    fix = "fill in the template (fill_template.py -i), and check the result"
    yield located(first.location, "", what, fix, TRITON_TEMPLATE, severity)


# A parameter that every copy of TensorRT-LLM's models fills in.
_FILLED = re.compile(
    r"\"(?:gpt_model_type|gpt_model_path|tokenizer_dir)\"\s*value\s*:?\s*\{\s*string_value\s*:"
    r"\s*\"(?!\$\{)[^\"]"
)


def _repository(path: Path) -> list[str]:
    """The configurations of all models in the repository of one."""
    return [read(other) for other in path.parent.parent.glob("*/config.pbtxt")]


def _is_unused(models: Iterable[str]) -> bool:
    """Whether no model of a repository has what each model of TensorRT-LLM needs."""
    return not any(_FILLED.search(text) for text in models)


def _is_template(config: Message, models: Sequence[str]) -> bool:
    """Whether a configuration is in a folder of templates that are not filled in."""
    values = {value.text for value in config.open_values}
    is_one_of_many = len(models) > 1 and all("${" in text for text in models)
    return _is_unused(models) and (len(values) > 1 or is_one_of_many)


def parameter_diagnostics(config: Message, path: Path) -> Iterator[Diagnostic]:
    rows: dict[str, Message] = {}
    for row in config.messages("parameters"):
        if first := rows.get(row.text("key")):
            what = f"is given twice, first in line {first.location.line}: the last one counts"
            where, place = f"parameters.{row.text('key')}", row.place("key")
            yield located(place, where, what, "keep one", DUPLICATE_KEY, "warning")
        rows[row.text("key")] = row
    backend = backend_of(config)
    own = backends()["parameters"].get(backend, {})
    marked = backends()["parameters"]["tensorrtllm"]
    if backend == "python" and not rows.keys().isdisjoint(marked["marks"]):
        own = {**marked, "is_closed": False}  # its Python model reads the same parameters
    for name, row in rows.items():
        yield from _value_diagnostics(name, row, own)
    for group, needed in own.get("tensors", {}).items() if backend == "tensorrtllm" else ():
        tensors = config.messages(group)
        given = {tensor.text("name") for tensor in tensors}
        missing = [name for name in needed if tensors and name not in given]
        for name in missing:
            what, fix = f"has no {name}, which the backend needs", f"add the {group} {name}"
            yield located(config.place(group), group, what, fix, MISSING_KEY, "warning")
    filled = {name for name, row in rows.items() if not (value := _value(row)) or not value.is_open}
    severity: Severity = "error"
    if len(filled) < len(rows) and _is_unused(_repository(path)):
        severity = "warning"
    for names in own.get("needed", ()):
        if filled.isdisjoint(names):
            here = next((rows[name] for name in names if name in rows), None)
            what, fix = "has no value, which the backend needs", f"set {either(names)}"
            place = _place(here) if here else config.place("parameters")
            rule = TRITON_TEMPLATE if here else MISSING_KEY
            yield located(place, f"parameters.{names[0]}", what, fix, rule, severity)
    for name in own.get("filled", ()):
        if name in rows and name not in filled:
            what, fix = "is not filled in", "fill in the template, and check the result"
            place = _place(rows[name])
            yield located(place, f"parameters.{name}", what, fix, TRITON_TEMPLATE, severity)


def _value(row: Message) -> Scalar | None:
    inner = row.first("value")
    return inner.scalar("string_value") if inner else None


def _place(row: Message) -> Location:
    value = _value(row)
    return value.location if value else row.location


def _value_diagnostics(name: str, row: Message, own: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Checks one parameter. An empty value or a placeholder is as good as none."""
    types, value, path = own.get("types", {}), _value(row), f"parameters.{name}"
    if name not in types:
        near = closest(name, types) if types else None
        if not near and not own.get("is_closed"):
            return
        severity: Severity = "error" if near and name not in own.get("former", ()) else "warning"
        what, fix = "is no parameter of the backend, which ignores it", nearest(name, types)
        yield located(row.place("key"), path, what, fix, UNKNOWN_KEY, severity)
        return
    if value is None or not value.text or value.is_open:
        return
    if not isinstance(types[name], str):
        if value.text not in types[name]:
            what, fix = f"{value.text} is not allowed", nearest(value.text, types[name])
            yield located(value.location, path, what, fix, UNKNOWN_VALUE)
        return
    form = backends()["forms"][types[name]]
    if not re.fullmatch(form["value"], value.text):
        what, rule = f"is {value.text[:60]}", RULES[form["rule"]]
        yield located(value.location, path, what, form["fix"], rule)
