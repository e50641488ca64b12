"""The server command in a script: its flags against the release and the option file beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import constraints
from ..constraints import Situation
from ..constraints.flags import option_path
from ..documents import WHOLE, Fault, read_text, scan_yaml
from ..errors import BadInput, Problem, nearest
from ..release import Flag, Release
from .script import COMMAND, Word


@dataclass(frozen=True, slots=True)
class Given:
    """A flag on a command line, with its value if it takes one."""

    flag: Flag
    word: Word
    value: Word | None


@dataclass
class Command:
    """A server command as a release reads it."""

    subcommand: str
    given: list[Given] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    @property
    def option_file(self) -> Word | None:
        return self._last("extra_llm_api_options")

    def value(self, name: str) -> str:
        """The text that a flag was given, the last one if more than once."""
        word = self._last(name)
        return word.text if word else ""

    def _last(self, name: str) -> Word | None:
        values = [row.value for row in self.given if row.flag.name == name]
        return values[-1] if values else None


def parse(words: Sequence[Word], release: Release) -> Command:
    """The flags of a server command, and the faults of each by itself."""
    flags = {"serve": release.serve_flags, **release.subcommands}
    rest = list(words)
    command = Command(rest.pop(0).text if rest and rest[0].text in flags else "serve")
    spelled = {name: flag for flag in flags[command.subcommand] for name in flag.spellings}
    while rest:
        word = rest.pop(0)
        name, equals, value = word.text.partition("=")
        if not re.match(r"--?[A-Za-z]", name) or "$" in name:
            continue
        if name not in spelled:
            what = f"unknown flag of {COMMAND} {command.subcommand} in release {release.name}"
            remedy = nearest(name, [known for known in spelled if known.startswith("-")])
            command.faults.append(Fault(word.place, name, what, remedy, "unknown-flag"))
        elif spelled[name].type == "flag":
            command.given.append(Given(spelled[name], word, None))
        elif equals:
            inner = Word(value, word.place, word.certain)
            command.given.append(Given(spelled[name], word, inner))
        elif rest and not rest[0].text.startswith("--"):
            command.given.append(Given(spelled[name], word, rest.pop(0)))
        else:
            fault = Fault(word.place, name, "has no value", f"write {name} VALUE", "flag-value")
            command.faults.append(fault)
    command.faults += (fault for row in command.given for fault in _wrong_value(row, release))
    return command


def _wrong_value(row: Given, release: Release) -> Iterator[Fault]:
    value, flag = row.value, row.flag
    if value is None or not value.certain:
        return
    path = row.word.text.partition("=")[0]
    if flag.type == "enum" and flag.values and value.text not in flag.values:
        what = f"{value.text} is not allowed in release {release.name}"
        remedy = nearest(value.text, flag.values)
        yield Fault(value.place, path, what, remedy, "flag-value")
    elif flag.type in _NUMBERS and not re.fullmatch(_NUMBERS[flag.type], value.text):
        expected = "a whole number" if flag.type == "int" else "a number"
        yield Fault(value.place, path, f"is {value.text}", f"expected {expected}", "flag-value")


_NUMBERS: Mapping[str, str] = {
    "int": r"[+-]?\d+",
    "float": r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?",
}


def read_option_file(name: str, folder: Path) -> Mapping[str, Any]:
    """The options of a file beside a script, or nothing where that cannot be known."""
    beside = re.sub(r"^(\$\{?\w+\}?|\$\(.*\))/", "", name)
    if "$" in beside:
        return {}
    try:
        data = scan_yaml(read_text(folder / beside))[0].data
    except BadInput:
        return {}
    return data if isinstance(data, Mapping) else {}


def beside_flags(
    command: Command, options: Mapping[str, Any], situation: Situation
) -> Iterator[Fault]:
    """What flags and option file do to each other, and rules that only both together break."""
    wrong = {fault.path for fault in command.faults}
    given = {row.word.text.partition("=")[0]: row for row in command.given}
    flags = {
        name: row.value.text if row.value else True
        for name, row in given.items()
        if name not in wrong and (row.value is None or row.value.certain)
    }
    for problem in constraints.flag_traps(flags, options, situation.release):
        yield _at(given, problem)
    alone = {problem.where for problem in constraints.broken(options, situation)}
    together = constraints.with_flags(flags, options, situation.release)
    setters = {option_path(given[name].flag, situation.release): name for name in flags}
    for problem in constraints.broken(together, situation):
        if problem.where not in alone and problem.where in setters:
            yield _at(given, replace(problem, where=setters[problem.where]))


def _at(given: Mapping[str, Given], problem: Problem) -> Fault:
    place = given[problem.where].word.place if problem.where in given else WHOLE
    return Fault(place, problem.where, problem.what, problem.remedy, problem.rule, problem.severity)
