"""The flags of a release by every spelling, and which of them a name means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from ...facts.release import Field, Flag, Release
from .formats import formats

Kind = Literal["switch", "one", "maybe", "many", "json", "loose"]


@dataclass(frozen=True, slots=True)
class Argument:
    """A flag as the parser takes it: a switch, or with one value, maybe one, several, JSON, or what
    may be JSON; `option` is its row in the release's table, or what its type says of it."""

    name: str
    spelling: str
    kind: Kind
    option: Field


@dataclass(frozen=True, slots=True)
class Meant:
    """The flag that a name stands for: its whole `spelling`, whether it is turned off, and whether
    only the beginning of it is given."""

    argument: Argument
    spelling: str
    is_off: bool = False
    is_begun: bool = False


@lru_cache(maxsize=16)
def known(release: Release) -> Mapping[str, Argument]:
    """Every flag of the server by every spelling, those that turn one off included."""
    found = {}
    for flag in release.serve_flags:
        own = {"type": flag.type} if flag.type in ("int", "float") else {}
        field = release.top_level.get(flag.name) or release.server_options.get(flag.name) or own
        argument = Argument(flag.name, _long(flag), _kind(flag, field), field)
        for spelling in () if flag.positional else flag.spellings:
            found[spelling] = argument
    return found


def _long(flag: Flag) -> str:
    return next((each for each in flag.spellings if each.startswith("--")), flag.spellings[0])


def _kind(flag: Flag, field: Field) -> Kind:
    if flag.type == "flag":
        return "switch"
    if flag.name in formats().json_flags:
        return "json"
    if flag.multiple or any(row["type"] == "list" for row in _alternatives(field)):
        return "many"
    if {"bool", "str"} <= {row["type"] for row in _alternatives(field)}:
        return "maybe"
    if flag.type != "json":
        return "one"
    return "json" if field.get("type") in ("record", "mapping", "union") else "loose"


def _alternatives(field: Field) -> list[Field]:
    return list(field["of"]) if field.get("type") == "either" else []


def spelled(text: str) -> str:
    """A flag with dashes up to its first dot, as the parser compares it."""
    if not text.startswith("--"):
        return text
    name, dot, rest = text[2:].partition(".")
    return f"--{name.replace('_', '-')}{dot}{rest}"


def find(name: str, release: Release) -> Meant | None:
    """The flag that is meant: the one of this name, or the only one that begins so."""
    flags = known(release)
    begun = [name] if name in flags else []
    if not begun and name.startswith("--") and len(name) > 3:
        begun = [other for other in flags if other.startswith(name)]
    if len(begun) != 1:
        return None
    spelling, argument = begun[0], flags[begun[0]]
    return Meant(argument, spelling, _turns_off(spelling, argument), spelling != name)


def _turns_off(spelling: str, argument: Argument) -> bool:
    return spelling == f"--no-{argument.spelling.removeprefix('--')}"
