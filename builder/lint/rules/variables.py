"""Checks the names and values of environment variables for engines and their libraries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from ...diagnostics import Diagnostic, closest, is_misspelling, located
from ...facts import release as releases
from ...facts.release import Release
from ...general_rules import Rule
from ...rules.options import TRUE
from ...rules.remedies import age
from ..engine import formats, surroundings
from ..read.variables import Variables

MISSPELT_VARIABLE = Rule(
    "misspelt-variable",
    "A variable of the engine or its libraries is misspelt, and is not read.",
    "warning",
)
UNKNOWN_VARIABLE = Rule(
    "unknown-variable", "The release reads no environment variable of this name.", "warning"
)
VARIABLE_VALUE = Rule(
    "variable-value", "A variable of the engine has a value that it does not know.", "warning"
)

_LIKE_ENGINE = re.compile(r"(?:T[A-Z]*L[A-Z]*|TRT_LLM|TENSORRT_?LLM)_")
_ENGINE = re.compile(r"^(?:TLLM|TRT_?LLM|TENSORRT_?LLM)_")
_TRANSPORTS = "UCX_TLS"


def variable_diagnostics(variables: Variables) -> Iterator[Diagnostic]:
    """Reports misspelt variables of the default engine and of libraries, and wrong values."""
    switches, choices = surroundings()["switches"]["names"], surroundings()["choices"]["names"]
    for row in variables.mentions:
        reader, meant = _meant(row.name)
        if meant and row.name not in variables.private:
            what, fix = f"{reader} reads no variable {row.name}", f"did you mean {meant}?"
            yield located(row.location, row.name, what, fix, MISSPELT_VARIABLE)
        what = ""
        if row.name in switches and row.value.lower() in TRUE - {"1"}:
            what, fix = f"{row.value} is not 1: the engine reads {row.name} as off", "give 1"
        elif row.name in choices and (slip := _unknown_word(row.value, choices[row.name])):
            what = f"{slip[0]} is not a value that {row.name} takes"
            fix = f"did you mean {slip[1]}?"
        elif row.name == _TRANSPORTS and variables.moves_cache and _leaves_gpus_out(row.value):
            what = f"{row.value} leaves UCX no way to GPU memory, where the KV cache is that moves"
            fix = "add cuda_copy, cuda_ipc and what the network has, or leave UCX_TLS out"
        if what:
            yield located(row.value_location, row.name, what, fix, VARIABLE_VALUE)


@lru_cache(maxsize=10_000)
def _meant(name: str) -> tuple[str, str | None]:
    """Who would read a variable, and the variable that its name misspells."""
    if _LIKE_ENGINE.match(name):
        names = surroundings()["variables"]
        if name in names:
            return "", None
        near = _of_prefix(name, names) or closest(name, names) or _but_one(name, names)
        return "the engine", near
    for library, record in surroundings()["libraries"].items():
        names = (*record["names"], *record["others"]["names"])
        if name.startswith(f"{library}_") and name not in names:
            near = closest(name, names)
            return library, near if near and is_misspelling(name, near) else None
    return "", None


def _leaves_gpus_out(value: str) -> bool:
    """Whether a list of UCX's transports has none to GPU memory."""
    ways = surroundings()["transports"]["of_gpus"]
    listed = {part.partition(":")[0] for part in value.split(",")}
    return bool(value) and not value.startswith("^") and listed.isdisjoint(ways)


def _unknown_word(value: str, words: Sequence[str]) -> tuple[str, str] | None:
    """The first misspelt word in a list, and the word that it resembles."""
    lower = [row.lower() for row in words]
    for word in (part.partition(":")[0] for part in value.lstrip("^").split(",")):
        if word.lower() in lower:
            continue
        begun = (row for row in words if len(row) > 3 and word.lower().startswith(row.lower()))
        if near := closest(word, words) or next(begun, None):
            return word, near
    return None


def _of_prefix(name: str, names: Iterable[str]) -> str | None:
    """The only variable that differs in the engine's prefix or in the order of words."""
    rest = sorted(_ENGINE.sub("", name).split("_"))
    is_own = _ENGINE.match(name) is not None
    rows = [row for row in names if is_own and sorted(_ENGINE.sub("", row).split("_")) == rest]
    return rows[0] if len(rows) == 1 else None


def _but_one(name: str, names: Iterable[str]) -> str | None:
    """The only variable with one character more or less at its end."""
    rows = [row for row in names if row == name[:-1] or row[:-1] == name]
    return rows[0] if len(rows) == 1 else None


def unread_variable_diagnostics(variables: Variables, release: Release) -> Iterator[Diagnostic]:
    """Reports variables that are misspelt or that only other releases read. An unknown variable
    that resembles none may belong to the file itself, as does one that the file reads."""
    prefix = formats(release.engine.name).variable_prefix
    for row in variables.mentions:
        if not (prefix and row.is_set and row.name.startswith(prefix)):
            continue
        if row.name in release.environment or row.name in variables.read:
            continue
        if remedy := _remedy(row.name, release):
            what = f"{release.engine.title} {release.name} reads no such variable"
            yield located(row.location, row.name, what, remedy, UNKNOWN_VARIABLE)


@lru_cache(maxsize=1000)
def _remedy(name: str, release: Release) -> str:
    others = [row for row in releases.of_engine(release.engine) if name in row.environment]
    remedies = [age(release, others)] if others else []
    if former := formats(release.engine.name).former_variables.get(name):
        remedies.append(former)
    near = None if remedies else closest(name, release.environment)
    return "; ".join(remedies) or (f"did you mean {near}?" if near else "")
