"""Checks the description of a service, `service.json`, before a job is submitted.

A person or another program may have written it: it must fit the types of the supervisor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from builder import schema
from builder.diagnostics import Diagnostic, one_line
from builder.errors import BadInput
from supervisor.spec import END_MARGIN_S, PLACEHOLDER, CanaryRequest, Health, Limits, StepSpec
from supervisor.state import FORMAT

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # of a folder, a job and a step
MOST_SECONDS = 10 * 366 * 86400  # of any time: Slurm's own "unlimited" is a year
MOST_NUMBER = 65535  # of a port, and far above any number of nodes and ranks


def check(document: Mapping[str, Any], path: Path) -> None:
    """Raises `BadInput` naming the first thing that no supervisor could read."""
    if fault := next(_faults(document), None):
        what = f"is not the description of a service: {fault}"
        raise BadInput(Diagnostic(str(path), what, "render again"))


def _faults(document: Mapping[str, Any]) -> Iterator[str]:
    if document.get("format") != FORMAT or isinstance(document["format"], bool):
        yield f"format is {_shown(document.get('format'))}, not {FORMAT}"
    for key in ("name", "server", "model"):
        if not isinstance(document.get(key), str):
            yield f"{key} is {_shown(document.get(key))}, and not a text"
    if not NAME.fullmatch(document["name"]):
        yield f"name {_shown(document['name'])} is not that of a folder"
    folder = document.get("state_folder")
    if folder is not None and not (isinstance(folder, str) and folder.isprintable()):
        yield f"state_folder is {_shown(folder)}, and not a folder"
    if not isinstance(document.get("bundle_digest_file", ""), str):
        yield f"bundle_digest_file is {_shown(document['bundle_digest_file'])}, and no file"
    parts = {key: document.get(key) or {} for key in ("time", "limits", "health", "smoke")}
    if other := [key for key, part in parts.items() if not isinstance(part, dict)]:
        yield f"{other[0]} is {_shown(document[other[0]])}, and no object"
    if twice := parts["time"].keys() & parts["limits"].keys():
        yield f"time and limits both have {min(twice)}"
    yield from _misfits(Limits, {**parts["time"], **parts["limits"]}, "time")
    health = dict(parts["health"])
    if generation := health.pop("generation", None):
        yield from _misfits(CanaryRequest, generation, "health.generation")
    yield from _misfits(Health, health, "health")
    for where, row in (("health", health), ("health.generation", generation or {})):
        if zero := [key for key in ("period_s", "timeout_s", "failures") if row.get(key) == 0]:
            yield f"{where}.{zero[0]} is 0"
    if smoke := parts["smoke"]:
        if not smoke.get("argv") or schema.build(list[str], smoke["argv"])[1]:
            yield f"smoke.argv is {_shown(smoke.get('argv'))}, and no command"
        if schema.build(float, smoke.get("timeout_s"))[1]:
            yield f"smoke.timeout_s is {_shown(smoke.get('timeout_s'))}"
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
        ready, ports = step.get("ready"), _ports(step)
        if ready and not ("path" in ready and ready.get("port") in ports):
            yield f"{where}.ready is {_shown(ready)}, and no path at a port of {_names(ports)}"
        if outside := [name for name in step.get("files", {}) if not NAME.fullmatch(name)]:
            yield f"{where}.files names {_shown(outside[0])}, which is not in the job's folder"


def _ports(step: Mapping[str, Any]) -> Mapping[str, int]:
    return step.get("ports") or {}


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _faults_between(document: Mapping[str, Any]) -> Iterator[str]:
    steps = {step["name"]: step for step in document["steps"]}
    if len(steps) < len(document["steps"]):
        yield f"steps share a name: {', '.join(step['name'] for step in document['steps'])}"
    front = document.get("front")
    if front not in steps:
        yield f"front is {_shown(front)}, and no step of {', '.join(steps)}"
    if "http" not in _ports(steps[front]):
        yield f"front is {front}, whose ports are {_names(_ports(steps[front]))}, and not http"
    before = {name: set(step.get("start_after", ())) for name, step in steps.items()}
    for name, others in before.items():
        if unknown := others - steps.keys():
            yield f"step {name} starts after {min(unknown)}, and no step is called so"
    while ready := [name for name, others in before.items() if not others & before.keys()]:
        before = {name: others for name, others in before.items() if name not in ready}
    if before:
        yield f"steps start after each other: {', '.join(before)}"
    suite = (document.get("smoke") or {}).get("argv", [])
    for name, texts in [(front, suite), *((name, _texts(step)) for name, step in steps.items())]:
        for found in PLACEHOLDER.finditer("\0".join(texts)):
            if not _is_filled(found[1], name, steps):
                yield f"step {name} has {found[0]}, and no step has that"
    stop_s = max(step.get("stop_timeout_s", StepSpec.stop_timeout_s) for step in document["steps"])
    times = document["time"]
    ending_s = times["drain_s"] + stop_s + END_MARGIN_S
    if times["limit_s"] <= ending_s:
        yield f"time.limit_s is {times['limit_s']:g}, and ending alone takes {ending_s:g} s"


def _texts(step: Mapping[str, Any]) -> list[str]:
    """Texts in which the supervisor fills in addresses and ports."""
    return [*step["argv"], *step.get("launcher", ()), *step.get("environment", {}).values()]


def _is_filled(what: str, own: str, steps: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether `host:STEP`, `port:PORT` or `port:STEP:PORT` exists; other texts refer to nothing."""
    kind, *rest = what.split(":")
    if kind not in ("host", "port") or not rest:
        return True
    step = steps.get(rest[0] if len(rest) > (kind == "port") else own)
    return step is not None and (kind == "host" or rest[-1] in _ports(step))


def _misfits(kind: type, row: Any, where: str) -> Iterator[str]:
    """Faults of an object that must fit a dataclass; its numbers and texts are those of files."""
    _, wrong = schema.build(kind, row, where)
    yield from (f"{one.path} {one.message}" for one in wrong)
    for key, value in row.items():
        if key != "body" and _is_odd(value, MOST_SECONDS if key.endswith("_s") else MOST_NUMBER):
            yield f"{where}.{key} is {_shown(value)}"


def _is_odd(value: Any, most: int) -> bool:
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return any(_is_odd(one, most) for one in items)
    if isinstance(value, str):
        return "\0" in value
    return isinstance(value, int | float) and not 0 <= value <= most


def _shown(value: Any) -> str:
    return one_line(repr(value))[:60]
