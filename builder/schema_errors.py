"""The parts of deployment files and site profiles, and what is wrong in them in their words."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from . import credentials
from .diagnostics import Diagnostic, nearest


class Strict(BaseModel):
    """A part of a deployment file: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def schema_diagnostics(
    error: ValidationError, model: type[BaseModel], prefix: str
) -> list[Diagnostic]:
    """One diagnostic per pydantic error, in the words of the deployment file."""
    return [_schema_diagnostic(dict(row), model, prefix) for row in error.errors()]


# What pydantic puts into a path for the kinds that a value may have.
_NO_KEYS = ("constrained-", "dict[")


def _schema_diagnostic(error: dict[str, Any], model: type[BaseModel], prefix: str) -> Diagnostic:
    location = [key for key in map(str, error["loc"]) if not key.startswith(_NO_KEYS)]
    path = ".".join(filter(None, (prefix, *location)))
    value, context = error["input"], error.get("ctx", {})
    shown = credentials.shown(value, path)
    match error["type"]:
        case "extra_forbidden":
            known = _fields_at(model, error["loc"][:-1])
            return Diagnostic(path, "unknown key", nearest(str(error["loc"][-1]), known))
        case "missing":
            return Diagnostic(path, "is missing", "add it")
        case "greater_than_equal" | "greater_than":
            bound = f">= {context['ge']}" if "ge" in context else f"> {context['gt']}"
            return Diagnostic(path, f"{shown} is out of range", f"must be {bound}")
        case "less_than_equal":
            return Diagnostic(path, f"{shown} is out of range", f"must be <= {context['le']}")
        case "string_pattern_mismatch":
            return Diagnostic(
                path, f"{shown} is not allowed", f"it must match {context['pattern']}"
            )
        case "string_type":
            scalar = isinstance(value, int | float)
            remedy = f'write "{shown}" in quotes' if scalar else "write one name"
            return Diagnostic(path, f"is {shown}, not text", remedy)
        case "dict_type" | "model_type":
            return Diagnostic(path, f"is {shown}, not a mapping", f"write {_example(path)}")
        case "too_short":
            return Diagnostic(path, "is empty", f"write {_example(path)}")
        case "value_error":
            what, _, remedy = str(context["error"]).partition("; ")
            return Diagnostic(path, what, remedy)
        case "literal_error":
            return Diagnostic(path, f"{shown} is not allowed", f"allowed: {context['expected']}")
        case _:
            message = str(error["msg"])
            return Diagnostic(path, f"is {shown}", message[0].lower() + message[1:])


_EXAMPLES = {
    "targets": "targets: [trtllm_serve, triton]",
    "hardware": "hardware: {gpu: gb200, num_gpus: 4}",
    "engine": "engine: {release: 1.2.1}",
    "workload": "workload: {isl: 800, osl: 1600, concurrency: 64}",
}


def _example(path: str) -> str:
    return _EXAMPLES.get(path, f"{path.rpartition('.')[2]}: {{KEY: VALUE}}")


def _fields_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    for key in location:
        inner = model.model_fields[key].annotation if key in model.model_fields else None
        for candidate in (inner, *getattr(inner, "__args__", ())):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
    return list(model.model_fields)
