"""Finds the environment variables that a file sets, mentions and reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ...diagnostics import Location
from ..engine import surroundings
from .yaml_text import places

_NAME = re.compile(r"(?<![\w$./-])(?<!\$\{)[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?![\w/-])")
# What may follow the name: `=`, `: ` or `value:`, with quotes.
_VALUE = re.compile(
    r"[\"']?(?:=|[ \t]*:[ \t]+|,?\s*[\"']?value[\"']?[ \t]*:[ \t]*)"
    r"[\"']?(?P<value>\^?\w+(?::\w+)?(?:,\w+(?::\w+)?)*)[\"']?(?=[\s,;}\])]|$)"
)
_SETS = re.compile(r"[\"']?[ \t]*[:=]")
_NAMED = re.compile(r"(?:name: [\"']?|ENV )\Z")  # of a container or an image
# Variables that a script sets for itself, reads, or passes to programs.
_SET = re.compile(r"""^[ \t]*([A-Z]\w*)=(?:"[^"\n]*"|'[^'\n]*'|[^\s"';&|])*[ \t]*(?:;|#|$)""", re.M)
_READ = re.compile(r"\$\{?([A-Z]\w*)")
_PASSING = re.compile(r"(?:\bexport|\s-x|\s-e|--env|--export)[\s=].*")
_ALL_PASSED = re.compile(r"set -\w*a|allexport")


@dataclass(frozen=True, slots=True)
class VariableMention:
    """A variable in a line that is no comment. `value` is its plain value, if the file sets one, at
    `value_location`; `is_set` is also true for a value that the shell expands."""

    name: str
    location: Location
    value: str
    value_location: Location
    is_set: bool


@dataclass(frozen=True, slots=True)
class Variables:
    """The variables of a file. It expands those in `read` itself; those in `private` it sets and
    reads but passes to no program. `moves_cache` means that its servers transfer KV caches."""

    mentions: tuple[VariableMention, ...]
    read: frozenset[str]
    private: frozenset[str]
    moves_cache: bool


@lru_cache(maxsize=8)  # each release is checked with the same file
def read_variables(text: str) -> Variables:
    """Reads the variables of a file from its text."""
    mentions, place = [], places(text)
    for found in _NAME.finditer(text):
        start, end = found.span()
        before = text[text.rfind("\n", 0, start) + 1 : start]
        value = _VALUE.match(text, end)
        if before.lstrip().startswith("#") or (before.endswith("{") and not value):
            continue
        is_set = value is not None or bool(_SETS.match(text, end) or _NAMED.search(before))
        plain, at = (value["value"], value.start("value")) if value else ("", start)
        mentions.append(VariableMention(found[0], place(start), plain, place(at), is_set))
    read = frozenset(_READ.findall(text))
    transfers = surroundings()["transports"]["transfer"]
    moves_cache = any(word in text.lower() for word in transfers)
    return Variables(tuple(mentions), read, _private(text, read), moves_cache)


def _private(text: str, read: frozenset[str]) -> frozenset[str]:
    if _ALL_PASSED.search(text):
        return frozenset()
    passed = re.findall(r"[A-Z]\w*", " ".join(_PASSING.findall(text)))
    return (read & set(_SET.findall(text))) - set(passed)
