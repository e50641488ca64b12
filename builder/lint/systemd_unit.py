"""Units of systemd, as the shell would read what they run: every word stays where it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

SUFFIX = ".service"
_SECTION = re.compile(r"^\[Service\][ \t]*$", re.MULTILINE)
_SETTING = re.compile(r"(?P<name>[A-Za-z]+)(?P<sign>[ \t]*=[ \t]*)(?P<value>.*)", re.DOTALL)
_PREFIX = re.compile(r"[-@:+!|]*")  # of a command: how systemd starts it
_SPECIFIER = re.compile(r"%[a-zA-Z]")  # as %i, which the name of the unit puts in


def is_unit(name: str, text: str) -> bool:
    return Path(name).suffix == SUFFIX and _SECTION.search(text) is not None


def as_shell(text: str) -> str:
    """The text with commands, variables and comments alone, all else left blank."""
    return "".join(_as_shell(lines) for lines in _logical(text))


def _logical(text: str) -> Iterator[str]:
    """Lines with those that continue them."""
    rows: list[str] = []
    for line in text.splitlines(keepends=True):
        rows.append(line)
        if not line.rstrip("\n").endswith("\\"):
            yield "".join(rows)
            rows = []
    yield "".join(rows)


def _as_shell(lines: str) -> str:
    if lines.startswith("#"):
        return lines
    found = _SETTING.match(lines)
    if found is None or found["name"] not in ("ExecStart", "Environment"):
        return re.sub(r"[^\n]", " ", lines)
    prefix = _PREFIX.match(found["value"]) if found["name"] == "ExecStart" else None
    start = found.start("value") + (prefix.end() if prefix else 0)
    return " " * start + _SPECIFIER.sub("$_", lines[start:])
