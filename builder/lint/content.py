"""What a file was taken for, and the engine options in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ..diagnostics import Diagnostic
from ..documents import DATA, Yaml
from ..facts import data_file
from ..facts.release import Release, ServerRole
from ..facts.release.table import FORMAT_TABLE
from .section import Section

_ROLES: tuple[tuple[ServerRole, tuple[str, ...]], ...] = (
    ("prefill", ("prefill", "ctx", "context")),
    ("decode", ("decode", "gen")),
    ("agg", ("agg",)),
)
SIDE = re.compile(
    r"(?<![a-z])(?:(?P<prefill>prefill|(?<!long[-_. ])context|ctx)"
    r"|(?P<decode>decode|generation|gen))"
    r"(?:er|ing)?s?(?![a-z])"
)

_BOTH = re.compile(  # as in ctx4_gen1
    r"(?:ctx|context|prefill)[-_]?\d+[a-z]*\d*[-_](?:gen|generation|decode)[-_]?\d+"
)


@dataclass
class Content:
    """What a file was taken for, and what in it is to be checked.

    `diagnostics` are those of the file's own format, which `is_read` even if it has no options.
    `document` is the one whose paths they name, `unread` what has more options elsewhere.
    """

    kind: str
    sections: list[Section] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    document: Yaml = field(default_factory=Yaml)
    is_read: bool = False
    unread: list[str] = field(default_factory=list)


# A kind by name: whether a mapping is of it, and how to read it.
Kind = tuple[str, Callable[[Mapping[str, Any], Release], bool], Callable[[Yaml], Content]]


@cache
def format_table(name: str) -> Release:
    """The keys of a file format, in the words of a release table."""
    path = DATA / "formats" / f"{name}.yaml"
    return Release(data_file.load(path, FORMAT_TABLE), path)


def fields_of(table: Release, name: str) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = table.table["types"][name]["fields"]
    return fields


def role_of(name: str) -> ServerRole | None:
    return next((role for role, words in _ROLES if any(word in name for word in words)), None)


def side_of(name: str) -> ServerRole | None:
    """The side of disaggregated serving that the name of a file tells in a word of its own, the
    only one; counts of both sides tell none."""
    rest = _BOTH.sub("", name.lower())
    sides: set[ServerRole] = {
        "prefill" if found["prefill"] else "decode" for found in SIDE.finditer(rest)
    }
    return sides.pop() if len(sides) == 1 else None


def of_named_side(section: Section, name: str) -> Section:
    """A worker's options with the side that the name of its file tells."""
    if section.role or "cache_transceiver_config" not in section.options:
        return section
    return replace(section, role=side_of(name.rpartition("/")[2]))


def split(
    data: Mapping[str, Any], own: Mapping[str, Any] | Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys of the format itself, and the others."""
    inside = {key: value for key, value in data.items() if key in own}
    return inside, {key: value for key, value in data.items() if key not in own}
