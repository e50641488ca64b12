"""Mistakes made from an option table of any engine: names, types, choices, options of another
release. Each is one option among right ones, with what a finding must say of it."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from builder.facts import release
from builder.facts.release import Field, Release

_WRONG = {
    "int": "many",
    "float": "half",
    "bool": "maybe",
    "list": {"a": 1},
    "record": "text",
    "union": "text",
    "mapping": "text",
}
_RIGHT = {"int": 1, "float": 0.5, "bool": True, "str": "text", "mapping": {}, "any": 1}
_LEAST = 5  # letters of a name of which one may be wrong and still say what was meant


@dataclass(frozen=True)
class TableMutant:
    """An option by its dotted path with its value; `name` is what the remedy must hold."""

    kind: str
    path: str
    value: Any
    name: str = ""


def mutants(table: Release, count: int, seed: int) -> list[TableMutant]:
    """So many mistakes, a quarter of each kind as far as the table has so many."""
    choice = random.Random(seed)
    kinds = [
        list(_misspelt(table, choice)),
        list(_wrong_types(table)),
        list(_wrong_choices(table, choice)),
        list(_of_other_releases(table)),
    ]
    for rows in kinds:
        choice.shuffle(rows)
    found: list[TableMutant] = []
    while len(found) < count and any(kinds):
        found += [rows.pop() for rows in kinds if rows]
    return found[:count]


def _options(table: Release) -> Iterator[tuple[str, Field]]:
    """Options that a file may hold, with the one row that describes each."""
    for path, rows in table.paths.items():
        is_one = "*" not in path and len(rows) == 1 and _stands_in_groups(table, path)
        if is_one and not rows[0].get("internal"):
            yield path, rows[0]


def _stands_in_groups(table: Release, path: str) -> bool:
    """Whether all that is above an option is a group, and none of several kinds."""
    steps = path.split(".")[:-1]
    above = [table.paths[".".join(steps[: n + 1])] for n in range(len(steps))]
    return all(len(rows) == 1 and rows[0]["type"] == "record" for rows in above)


def right_value(table: Release, field: Field) -> Any:
    """A value that the option takes; `None` if none can be made up."""
    if field["type"] == "enum":
        return field["values"][0]
    if field["type"] == "list":
        inner = right_value(table, field["items"])
        return None if inner is None else [inner]
    value = _RIGHT.get(field["type"])
    if isinstance(value, int | float) and not isinstance(value, bool):
        return max(value, field.get("ge", value), field.get("gt", value - 1) + 1)
    return value


def _misspelt(table: Release, choice: random.Random) -> Iterator[TableMutant]:
    for path, field in _options(table):
        *above, name = path.split(".")
        value = right_value(table, field)
        wrong = misspelling(name, choice)
        siblings = {other.rpartition(".")[2] for other in table.paths}
        if len(name) >= _LEAST and value is not None and wrong not in siblings:
            yield TableMutant("misspelt", ".".join((*above, wrong)), value, name)


def misspelling(name: str, choice: random.Random) -> str:
    """A name with one letter left out, added, changed or swapped with the next."""
    at = choice.randrange(1, len(name) - 1)
    letter = choice.choice(string.ascii_lowercase)
    return choice.choice(
        [
            name[:at] + name[at + 1 :],
            name[:at] + letter + name[at:],
            name[:at] + letter + name[at + 1 :],
            name[:at] + name[at + 1] + name[at] + name[at + 2 :],
        ]
    )


def _wrong_types(table: Release) -> Iterator[TableMutant]:
    for path, field in _options(table):
        if field["type"] in _WRONG and "uncertain" not in field:
            yield TableMutant("type", path, _WRONG[field["type"]])


def _wrong_choices(table: Release, choice: random.Random) -> Iterator[TableMutant]:
    for path, field in _options(table):
        if field["type"] != "enum" or field.get("open"):
            continue
        for value in field["values"]:
            text = str(value)
            wrong = misspelling(text, choice) if len(text) >= _LEAST else text
            if _differs(wrong, text, field):
                yield TableMutant("choice", path, wrong, text)


def _differs(text: str, right: str, field: Field) -> bool:
    """Whether a misspelt choice is none; one with other numbers names another thing."""
    numbers = [re.findall(r"\d+", word) for word in (text, right)]
    others = {str(value).lower() for value in field["values"]}
    return text.lower() not in others and numbers[0] == numbers[1]


def _of_other_releases(table: Release) -> Iterator[TableMutant]:
    """Options that only another release has, at places that this one has."""
    for other in release.of_engine(table.engine):
        for path, field in _options(other):
            above = path.rpartition(".")[0]
            held = not above or (above in table.paths and _stands_in_groups(table, f"{above}.x"))
            value = right_value(other, field)
            known = path in table.paths or path in table.server_options
            if held and not known and value is not None:
                yield TableMutant("release", path, value)
