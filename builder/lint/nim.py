"""NIM containers: the variables that set engine options, and the GPUs that they are given.

A NIM chooses its engine by itself. What its variables mean is judged as the options of this one,
which the others share: sizes, lengths and shares of memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..diagnostics import Diagnostic, Location, closest, located
from ..documents import Yaml
from ..facts.release import Release
from . import containers, rules, script_workers
from .content import Content
from .embedded_formats import names, nim_options
from .script import Statement
from .section import Section, below
from .server_commands import environment
from .surroundings import gpu_diagnostic, world_size
from .variables import value_of
from .workers import Place

_NAME = re.compile(r"NIM_[A-Z0-9_]+")
_SET = re.compile(r"(NIM_[A-Z0-9_]+)=(.*)", re.S)


@dataclass
class _Container:
    """The variables of one NIM, each with its text, place and path, and its GPUs. `names` are the
    places of names that stand apart from their values."""

    path: str
    gpus: Place | None = None
    variables: dict[str, tuple[str, Location, str]] = field(default_factory=dict)
    names: dict[str, Location] = field(default_factory=dict)


def may_hold(documents: Iterable[Yaml]) -> bool:
    return any("NIM_" in repr(document.data) for document in documents)


def in_documents(documents: Iterable[Yaml], content: Content, release: Release) -> None:
    """Add the NIMs of manifests and Compose files."""
    for document in documents:
        for row in _in_document(document):
            _judge(row, content, release)


def in_script(rows: Iterable[Statement], content: Content, release: Release) -> None:
    """Add the NIMs that a script starts, and variables that it exports for one."""
    for row in rows:
        words = [(word.text, word.location) for word in row.words]
        found = _Container("", script_workers.docker_gpus(words))
        for word in row.words:
            if (given := _SET.fullmatch(word.text)) and word.certain:
                found.variables[given[1]] = given[2], word.location, given[1]
        if found.variables:
            _judge(found, content, release)


def _in_document(document: Yaml) -> Iterator[_Container]:
    for data, path, around, _ in containers.objects(document):
        found = _Container(path, None if "multiNode" in data else around.total)
        for name, text, within in environment(data):
            if _NAME.fullmatch(name):
                where = below(path, within)
                found.variables[name] = text, document.locate(where), where
                if where.endswith(".value"):
                    found.names[name] = document.locate(f"{where.removesuffix('.value')}.name")
        if found.variables:
            yield found


def _judge(found: _Container, content: Content, release: Release) -> None:
    options: dict[str, Any] = {}
    places: dict[str, Location] = {}
    content.is_read = True
    for name, (text, place, where) in found.variables.items():
        option = nim_options().get(name)
        if option is None:
            content.diagnostics += _misspelt(name, found.names.get(name, place), where)
        elif "$" not in text:
            value = value_of(text)
            group, _, key = option.rpartition(".")
            inside = options.setdefault(group, {}) if group else options
            inside[key] = bool(value) if value in (0, 1) and _is_switch(option, release) else value
            places[option] = place
    if found.gpus and (world := world_size(options)) and {*options} & {"tensor_parallel_size"}:
        gpus = found.gpus
        content.diagnostics += filter(
            None, [gpu_diagnostic(world, gpus.count, gpus.location, gpus.path)]
        )
    if options:
        document = Yaml(options, places)
        content.sections.append(Section(options, document, within="NIM variables", is_open=True))


def _misspelt(name: str, place: Location, where: str) -> Iterator[Diagnostic]:
    if near := closest(name, {*nim_options(), *names("nim_others")} - {name}):
        if name in names("nim_others"):
            return
        what = f"NIM reads no variable {name}"
        yield located(
            place, where, what, f"did you mean {near}?", rules.MISSPELT_VARIABLE, "warning"
        )


def _is_switch(option: str, release: Release) -> bool:
    """Whether an option is true or false."""
    group, _, key = option.rpartition(".")
    fields = release.top_level
    if group:
        fields = release.table["types"][fields[group]["of"]]["fields"]
    return bool(fields.get(key, {}).get("type") == "bool")
