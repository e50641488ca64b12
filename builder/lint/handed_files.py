"""The files that scripts around a server make, and those that they hand to other commands."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from .script import Script, Statement
from .shell_values import Values
from .workers import FILE_FLAGS

# What a server is told to read is no use of it, and neither is a mount.
_READ_BY_SERVER = re.compile(rf"(?:{'|'.join(FILE_FLAGS)})[=\s\"',-]+\S+")
_MOUNTED = re.compile(r"(?:-v|--volume|--mount|--container-mounts)[=\s]+\S+")
_BETWEEN_NAMES = re.compile(r"[^\w.-]+")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_ONLY_SHOW = ("cat", "chmod", "echo", "ls", "mkdir", "printf", "rm", "touch")


@dataclass(frozen=True, slots=True)
class HandedFiles:
    """Files by the last part of their names. `made` may be there although no text of them is known,
    `used` are read by something, and `folders` are those into which scripts write them."""

    made: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    folders: dict[str, str] = field(default_factory=dict)

    def place(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        self.folders[name] = folder


def of_scripts(
    scripts: Iterable[Script], around: str = "", places: Iterable[str] = ()
) -> HandedFiles:
    """The files of scripts, those that the file `around` them names in other places, and the paths
    at which it puts its own texts."""
    found = HandedFiles(set(_names(_READ_BY_SERVER.sub(" ", around))))
    for path in places:
        found.place(path)
    for script in scripts:
        values = Values(script.statements, script.environment)
        for document in script.here:
            found.place(values.expanded(document.name))
            _hand(found, values.expanded(document.text))
        for row in script.statements:
            for path in _of_redirects(row, values, ">"):
                found.place(path)
            written, read = (
                [name for path in _of_redirects(row, values, sign) for name in _names(path)]
                for sign in "><"
            )
            found.made.update(written, read)
            found.used.update(read)
            words = [word.text for word in values.words(row.words)]
            line = "" if all(map(_ASSIGNED.match, words)) else " ".join(words)
            if line.startswith("tee "):
                found.made.update(_names(line))
            elif line and (written or row.end == "|" or words[0] not in _ONLY_SHOW):
                _hand(found, line)
    return found


def _of_redirects(row: Statement, values: Values, sign: str) -> list[str]:
    """The files that a command reads (`<`) or writes (`>`) by its redirections."""
    return [values.expanded(word.text) for operator, word in row.redirects if sign in operator]


def _hand(found: HandedFiles, text: str) -> None:
    """All that a text names goes to whatever runs or reads the text."""
    rest = _READ_BY_SERVER.sub(" ", text)
    found.made.update(_names(rest))
    found.used.update(_names(_MOUNTED.sub(" ", rest)))


def _names(text: str) -> list[str]:
    return [name for name in _BETWEEN_NAMES.split(text) if "." in name]
