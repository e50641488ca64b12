"""The description of a service, `service.json`, checked before a job of it exists.

A hand or another program may have written it: it must fit the types that the
supervisor reads it with.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

from builder.diagnostics import Diagnostic, one_line
from builder.errors import BadInput
from supervisor.spec import END_MARGIN_S, CanaryRequest, Health, Limits, StepSpec
from supervisor.state import FORMAT

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of a folder, a job and a step
MOST_SECONDS = 10 * 366 * 86400  # of any time: Slurm's own "unlimited" is a year
MOST_NUMBER = 65535  # of a port, and far above any number of nodes and ranks


def check(document: Mapping[str, Any], path: Path) -> None:
    """Raises `BadInput` naming the first thing that no supervisor could read."""
    if fault := next(_faults(document), None):
        what = f"is not the description of a service: {fault}"
        raise BadInput(Diagnostic(str(path), what, "render again"))


def _faults(document: Mapping[str, Any]) -> Iterator[str]:
    if document.get("format") != FORMAT:
        yield f"format is {_shown(document.get('format'))}, not {FORMAT}"
    for key in ("name", "server", "model"):
        if not isinstance(document.get(key), str):
            yield f"{key} is {_shown(document.get(key))}, and not a text"
    if not NAME.fullmatch(document["name"]):
        yield f"name {_shown(document['name'])} is not that of a folder"
    folder = document.get("state_folder")
    if folder is not None and not (isinstance(folder, str) and folder.isprintable()):
        yield f"state_folder is {_shown(folder)}, and not a folder"
    parts = {key: document.get(key) or {} for key in ("time", "limits", "health")}
    if other := [key for key, part in parts.items() if not isinstance(part, dict)]:
        yield f"{other[0]} is {_shown(document[other[0]])}, and no object"
    yield from _misfits(Limits, {**parts["time"], **parts["limits"]}, "time")
    health = dict(parts["health"])
    if generation := health.pop("generation", None):
        yield from _misfits(CanaryRequest, generation, "health.generation")
    yield from _misfits(Health, health, "health")
    yield from _step_faults(document.get("steps"))
    yield from _faults_between(document)


def _step_faults(steps: Any) -> Iterator[str]:
    if not isinstance(steps, list) or not steps:
        yield f"steps are {_shown(steps)}, and no list of them"
    for number, step in enumerate(steps):
        where = f"steps[{number}]"
        yield from _misfits(StepSpec, step, where)
        if not NAME.fullmatch(step["name"]):
            yield f"{where}.name {_shown(step['name'])} is not that of a file"
        if zero := [key for key in ("nodes", "ntasks", "ntasks_per_node") if step.get(key) == 0]:
            yield f"{where}.{zero[0]} is 0"
        if not step["argv"]:
            yield f"{where}.argv is empty"
        if outside := [name for name in step.get("files", {}) if not NAME.fullmatch(name)]:
            yield f"{where}.files names {_shown(outside[0])}, which is no file of the job's folder"


def _faults_between(document: Mapping[str, Any]) -> Iterator[str]:
    names = [step["name"] for step in document["steps"]]
    if len(set(names)) < len(names):
        yield f"steps share a name: {', '.join(names)}"
    if document.get("front") not in names:
        yield f"front is {_shown(document.get('front'))}, and no step of {', '.join(names)}"
    stop_s = max(step.get("stop_timeout_s", StepSpec.stop_timeout_s) for step in document["steps"])
    times = document["time"]
    ending_s = times["drain_s"] + stop_s + END_MARGIN_S
    if times["limit_s"] <= ending_s:
        yield f"time.limit_s is {times['limit_s']:g}, and ending alone takes {ending_s:g} s"


def _misfits(kind: type, row: Any, where: str) -> Iterator[str]:
    """What of an object does not fit the fields of a dataclass."""
    if not isinstance(row, dict):
        yield f"{where} is {_shown(row)}, and no object"
    fields = _types(kind)
    if unknown := [key for key in row if key not in fields]:
        yield f"{where} has {_shown(unknown[0])}, which nothing reads"
    for key, type_ in fields.items():
        if key not in row and not hasattr(kind, key) and key not in _made(kind):
            yield f"{where}.{key} is missing"
        elif key in row and not _fits(row[key], type_):
            yield f"{where}.{key} is {_shown(row[key])}"


@cache
def _types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _made(kind: Any) -> set[str]:
    """Fields whose default is made anew each time."""
    fields = kind.__dataclass_fields__.values()
    return {field.name for field in fields if callable(field.default_factory)}


def _fits(value: Any, type_: Any) -> bool:
    origin, inner = typing.get_origin(type_), typing.get_args(type_)
    if origin is UnionType:
        return any(_fits(value, one) for one in inner)
    if origin is list:
        return isinstance(value, list) and all(_fits(one, inner[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(one, inner[1]) for one in value.values())
    if type_ is Any:
        return True
    if type_ is float:
        return type(value) in (int, float) and 0 <= value <= MOST_SECONDS
    if type_ is int:
        return type(value) is int and 0 <= value <= MOST_NUMBER
    if type_ is NoneType:
        return value is None
    return isinstance(value, type_) and "\0" not in (value if type_ is str else "")


def _shown(value: Any) -> str:
    return one_line(repr(value))[:60]
