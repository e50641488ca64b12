"""Checks the commands of Triton's own programs: names, values and combinations of flags."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from ...diagnostics import Diagnostic, closest, located, nearest
from ...documents import DATA
from ...facts import data_file, plain_data
from ...general_rules import DEPRECATED, DUPLICATE_KEY, Rule
from ..engine import TRITON_SERVER, formats
from ..model import Server, Word
from ..read.commands import in_script
from ..read.containers import in_containers
from ..read.file import Text
from . import (
    FLAG_ABBREVIATED,
    FLAG_VALUE,
    FLAG_WITHOUT_VALUE,
    STRAY_WORD,
    UNKNOWN_FLAG,
)
from .names import NAMING
from .ports import PORT_TAKEN
from .triton_ports import Listening, port_diagnostics

TRITON_FLAG_UNUSED = Rule(
    "triton-flag-unused", "A flag of Triton has no effect next to the others.", "warning"
)
TRITON_REPOSITORY = Rule("triton-repository", "Triton is started without a model repository.")

SWITCH = "switch"
_PROGRAMS = DATA / "triton" / "programs.yaml"
# Flags that add ports, take them away, or share them.
_PORTLESS = re.compile(r"allow-(?:http|grpc|metrics|sagemaker|vertex-ai)|.*-address|reuse-.*")
_IMAGE = re.compile(r"tritonserver:(?:\$\{\w+:?-)?(\d\d\.\d\d)\b")


@cache
def programs() -> Mapping[str, Any]:
    """The flags of each program, the forms of their values and the known releases."""
    document: dict[str, Any] = data_file.load(_PROGRAMS, plain_data.TRITON_PROGRAMS_FILE)
    return document


@cache
def flags(program: str) -> Mapping[str, str]:
    """The kind of value of each flag, by its name without dashes."""
    found: dict[str, str] = {}
    for kind, names in programs()["programs"][program]["flags"].items():
        found |= dict.fromkeys(names, kind)
    return found


def commands(source: Text) -> list[Server]:
    """The commands of Triton's programs in a script or in the containers of documents."""
    if not source.documents:
        return in_script(source.script, TRITON_SERVER)
    found: list[Server] = []
    for document in source.documents:
        found += in_containers(document, TRITON_SERVER) if document.data else ()
    return found


def command_diagnostics(source: Text) -> tuple[int, list[Diagnostic]]:
    """The number of Triton's commands in a file, and their errors. Tags of its images tell which
    releases run them."""
    releases = sorted(set(_IMAGE.findall(source.text)))
    count, found, listening = 0, list[Diagnostic](), list[Listening]()
    for server in commands(source):
        read: list[_Command] = []
        for name, words in _runs(server):
            read.append(_Command(name, releases))
            found += read[-1].read(words)
        count += len(read)
        own = read[0].ports() if len(read) == 1 else {}
        if own:
            listening.append(Listening(server, own, {f"--{name}" for name in read[0].given}))
    return count, [*found, *port_diagnostics(source, listening, programs()["paths"])]


def _runs(server: Server) -> Iterator[tuple[str, Sequence[Word]]]:
    """Yields each program of a command with its words; `mpirun` separates several by colons. A
    word that only has the name of a program, as that of a container, is left out."""
    known = formats(TRITON_SERVER)
    name, words = server.name.rpartition("/")[2], list[Word]()
    is_named = bool(server.before) and NAMING.fullmatch(server.before[-1].text) is not None
    runs: list[tuple[str, list[Word]]] = [("" if is_named else name, words)]
    for word in server.words:
        base = word.text.rpartition("/")[2]
        if base in (known.program, *known.modules):
            runs[-1] = (base, [])
        elif word.text == ":" and word.certain:
            runs.append(("", []))
        else:
            runs[-1][1].append(word)
    for index, (program, rest) in enumerate(runs):
        texts = [word.text for word in rest]
        is_other = not program or any(_IMAGE.search(text) for text in texts)
        begins = index == 0 and not server.before and texts[:1] and texts[0].startswith("--")
        if not is_other and (begins or _has_own(program, texts)):
            yield program, rest


def _has_own(program: str, texts: Sequence[str]) -> bool:
    """Whether a word is a flag of the program, perhaps a misspelt one."""
    names = [text[2:].partition("=")[0] for text in texts if text.startswith("--")]
    return any(name in flags(program) or closest(name, flags(program)) for name in names)


class _Command:
    """Reads the words of one command; `given` are its flags with their values."""

    def __init__(self, program: str, releases: Sequence[str]) -> None:
        self.table: Mapping[str, Any] = programs()["programs"][program]
        self.flags, self.program, self.releases = flags(program), program, releases
        self.given: dict[str, tuple[Word, Word | None]] = {}
        self.is_open = False

    def read(self, words: Sequence[Word]) -> Iterator[Diagnostic]:
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word.text.startswith("-") and word.text.strip("-"):
                yield from self._flag(word, rest)
            elif not word.certain or "$" in word.text or not word.text.strip():
                self.is_open = True
            elif re.match(r"[\w/]", word.text):
                what = "belongs to no flag, and the program refuses it"
                fix = f"write the flag that {word.text} is for"
                yield located(word.location, word.text, what, fix, STRAY_WORD)
        yield from self._together(words)

    def _flag(self, word: Word, rest: list[Word]) -> Iterator[Diagnostic]:
        spelling, equals, text = word.text.partition("=")
        name = self.table.get("short", {}).get(spelling, spelling[2:])
        if "$" in spelling:
            self.is_open = True
            return
        if spelling.startswith("--") and name not in self.flags:
            begun = [each for each in self.flags if each.startswith(name)]
            if len(begun) == 1:
                name, what = begun[0], f"is short for --{begun[0]}"
                fix = f"write --{name}"
                yield located(word.location, spelling, what, fix, FLAG_ABBREVIATED)
        if name not in self.flags or not (spelling.startswith("--") or name != spelling[2:]):
            names = [f"--{known}" for known in self.flags]
            what, fix = f"is no flag of {self.program}", nearest(f"--{spelling.lstrip('-')}", names)
            yield located(word.location, spelling, what, fix, UNKNOWN_FLAG)
            if not equals and rest and not rest[0].text.startswith("-"):
                rest.pop(0)
            return
        value = Word(text, word.location, word.certain) if equals else None
        if self.flags[name] != SWITCH and not equals and rest:
            value = rest.pop(0) if not rest[0].text.startswith("--") else None
        yield from self._value(name, spelling, word, value)
        yield from self._of_release(name, spelling, word)
        if name in self.given and name not in self.table.get("repeated", (name,)):
            what = "is given twice; only the last value counts"
            yield located(
                word.location, spelling, what, "keep one", DUPLICATE_KEY, severity="warning"
            )
        self.given[name] = (word, value)

    def _value(
        self, name: str, spelling: str, word: Word, value: Word | None
    ) -> Iterator[Diagnostic]:
        kind = self.flags[name]
        if kind == SWITCH:
            if value:
                what, fix = f"takes no value, but has {value.text}", f"write {spelling} alone"
                yield located(word.location, spelling, what, fix, FLAG_VALUE)
            return
        row = programs()["kinds"][kind]
        if value is None:
            fix = f"write {spelling}=VALUE"
            yield located(word.location, spelling, "needs a value", fix, FLAG_WITHOUT_VALUE)
        elif not value.certain or re.search(r"[$`{<\[]", value.text):
            return
        elif not re.fullmatch(row["pattern"], value.text):
            what = f"{value.text or 'an empty text'} is not allowed"
            yield located(value.location, spelling, what, row["fix"], FLAG_VALUE)

    def _of_release(self, name: str, spelling: str, word: Word) -> Iterator[Diagnostic]:
        """Reports a flag that came later than every release that the file names."""
        since = self.table.get("since", {}).get(name)
        if since and self.releases and self.releases[-1] < since:
            version = programs()["releases"][since]["version"]
            what = f"unknown in {self.releases[-1]}; added in {since} (Triton {version})"
            fix = "remove it, or use a newer image"
            yield located(word.location, spelling, what, fix, UNKNOWN_FLAG)
        if instead := self.table.get("deprecated", {}).get(name):
            what, fix = "is deprecated", f"use --{instead}"
            yield located(word.location, spelling, what, fix, DEPRECATED)

    def _together(self, words: Sequence[Word]) -> Iterator[Diagnostic]:
        """Checks how the flags of a command combine; nothing is known if it has more elsewhere."""
        for names in self.table.get("exclusive", ()):
            pair = [name for name in names if name in self.given]
            if len(pair) > 1:
                what, fix = f"cannot be combined with --{pair[0]}", "keep one"
                yield located(
                    self.given[pair[1]][0].location, f"--{pair[1]}", what, fix, FLAG_VALUE
                )
        if self.is_open or "help" in self.given:
            return
        yield from self._ports()
        for name, row in self.table.get("only_with", {}).items():
            other, value = self.given.get(row["flag"], (None, None))
            is_unknown = other and (value is None or not value.certain or "$" in value.text)
            if name not in self.given or is_unknown:
                continue
            if value is None or value.text.lower() != row["value"]:
                wanted = f"--{row['flag']}={row['value']}"
                what, fix = f"counts only with {wanted}", f"add {wanted}"
                place = self.given[name][0].location
                yield located(place, f"--{name}", what, fix, TRITON_FLAG_UNUSED)
        needed = self.table.get("needed", ())
        unknown = Counter(word.text[:3] for word in words)["--m"]
        if needed and not unknown and not any(name in self.given for name in needed):
            what, fix = f"{self.program} needs --{needed[0]}", f"add --{needed[0]}=FOLDER"
            yield located(words[0].location, "", what, fix, TRITON_REPOSITORY)

    def ports(self) -> dict[str, str]:
        """The ports that the server listens at, each with its flag; empty if any is unknown."""
        if self.is_open or any(map(_PORTLESS.fullmatch, self.given)):
            return {}
        found: dict[str, str] = {}
        for name, default in self.table.get("ports", {}).items():
            value = self.given[name][1] if name in self.given else None
            if name in self.given and not (value and value.certain and value.text.isdigit()):
                return {}
            found[value.text if value else default] = f"--{name}"
        return found

    def _ports(self) -> Iterator[Diagnostic]:
        """Reports two protocols on one port. Those of a protocol that is off do not count."""
        taken: dict[str, str] = {}
        for name, default in self.table.get("ports", {}).items():
            value = self.given[name][1] if name in self.given else None
            is_on = self.given.get(f"allow-{name.partition('-')[0]}", (None, None))[1]
            if name in self.given and not (value and value.certain):
                continue
            if is_on and (not is_on.certain or is_on.text.lower() in ("false", "off", "0")):
                continue
            port = value.text if value else default
            other = taken.setdefault(port, name)
            if other != name and not {name, other}.isdisjoint(self.given):
                flag, second = (name, other) if name in self.given else (other, name)
                what, fix = f"{port} is the port of --{second} too", "give another port"
                place = self.given[flag][0].location
                yield located(place, f"--{flag}", what, fix, PORT_TAKEN)
