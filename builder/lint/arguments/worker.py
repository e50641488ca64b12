"""Reads the flags of programs that embed the engine into engine options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...diagnostics import Location
from ...documents import Yaml
from ..engine import worker_flags
from ..model import Section, Server
from ..read.yaml_text import SHELL, TEMPLATE, value_of


@dataclass
class FlagOptions:
    """Options that the flags of a Dynamo worker set. `first` are options that the option file may
    override, `last` are options that override the file. `unknown` is set if parallel sizes may be
    filled in later."""

    first: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Location] = field(default_factory=dict)
    is_open: bool = False
    unknown: bool = False

    def over(self, file: Mapping[str, Any]) -> dict[str, Any]:
        """The effective options when the flags are combined with an option file."""
        together: dict[str, Any] = {}
        for options in (self.first, file, self.last):
            merge_options(together, options, Location(0, 0), {})
        return together

    def section(self, worker: Server) -> Section:
        document = Yaml(self.over({}), self.places)
        options, role = document.data, worker.role
        within = f"the flags of {worker.program}"
        return Section(options, document, within=within, role=role, is_open=self.is_open)


def merge_options(
    options: dict[str, Any],
    given: Mapping[str, Any],
    place: Location,
    places: dict[str, Location],
    path: str = "",
) -> None:
    """Merges options into others, including nested groups."""
    for key, value in given.items():
        where = f"{path}{key}"
        places[where] = place
        if isinstance(value, Mapping):
            inside = options.get(key)
            options[key] = dict(inside) if isinstance(inside, Mapping) else {}
            merge_options(options[key], value, place, places, f"{where}.")
        else:
            options[key] = value


def own_options(worker: Server) -> FlagOptions:
    """The options that the flags of a Dynamo worker set, each located at its flag."""
    table, own = worker_flags(worker.program), FlagOptions(places={"": worker.words[0][1]})
    for index, (word, place) in enumerate(worker.words):
        name, equals, text = word.partition("=")
        switch = name.replace("--no-", "--", 1) in table.switches
        path = table.options.get(name.replace("--no-", "--", 1) if switch else name, "")
        by_path = table.prefix is not None and name.startswith(table.prefix)
        path = path or (name.removeprefix(table.prefix or "") if by_path else "")
        if not (path or name in table.json):
            continue
        if not equals and not switch:
            text, at = next(iter(worker.words[index + 1 :]), ("", place))
            place = at if name in table.json else place
        is_last = name in table.json or by_path
        if SHELL.search(text) or TEMPLATE.search(text):
            own.is_open = True
            own.unknown |= name in table.json or (is_last and path.endswith("_parallel_size"))
        elif path:
            value = not name.startswith("--no-") if switch and not equals else value_of(text)
            merge_options(
                own.last if is_last else own.first, _nested(path, value), place, own.places
            )
        elif isinstance(given := value_of(text.strip("\"'")), Mapping):
            merge_options(own.last, given, place, own.places)
    return own


def _nested(path: str, value: Any) -> Mapping[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    nested: Mapping[str, Any] = value
    return nested
