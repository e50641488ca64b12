"""The server command in a script: its flags against the release and the option file beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..diagnostics import NOWHERE, Diagnostic, Location, located
from ..documents import read_text, scan_yaml
from ..errors import BadInput
from ..facts.release import Flag, Release
from ..rules import constraints
from ..rules.constraints import Situation
from .script import Word


@dataclass(frozen=True, slots=True)
class Given:
    """A flag on a command line, with its value if it takes one."""

    flag: Flag
    word: Word
    value: Word | None

    @property
    def spelling(self) -> str:
        return self.word.text.partition("=")[0]


@dataclass
class Command:
    """A server command as a release reads it."""

    subcommand: str
    given: list[Given] = field(default_factory=list)
    faults: list[Diagnostic] = field(default_factory=list)

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
    rest = list(words)
    command = Command(constraints.SERVE)
    if rest and rest[0].text in (constraints.SERVE, *release.subcommands):
        command.subcommand = rest.pop(0).text
    known = constraints.spellings(release, command.subcommand)
    while rest:
        word = rest.pop(0)
        name, equals, rest_of_it = word.text.partition("=")
        if not re.match(r"--?[A-Za-z]", name) or "$" in name:
            continue
        value = Word(rest_of_it, word.location, word.certain) if equals else None
        takes_one = name in known and known[name].type != "flag" and not equals
        if takes_one and rest and not rest[0].text.startswith("--"):
            value = rest.pop(0)
        if name in known:
            command.given.append(Given(known[name], word, value))
        text = value.text if value else None
        if value is None or value.certain:
            found = constraints.flag_faults(name, text, release, command.subcommand)
            command.faults += (_fault(problem, (value or word).location) for problem in found)
    return command


def _fault(problem: Diagnostic, place: Location) -> Diagnostic:
    return located(
        place, problem.where, problem.message, problem.fix, problem.rule, problem.severity
    )


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
) -> Iterator[Diagnostic]:
    """What flags and option file do to each other, and rules that only both together break."""
    wrong = {fault.path for fault in command.faults}
    given = {row.spelling: row for row in command.given}
    flags = {
        name: row.value.text if row.value else True
        for name, row in given.items()
        if name not in wrong and (row.value is None or row.value.certain)
    }
    for problem in constraints.flag_traps(flags, options, situation.release):
        yield _at(given, problem)
    alone = {problem.where for problem in constraints.broken(options, situation)}
    together = constraints.with_flags(flags, options, situation.release)
    setters = {constraints.option_path(given[name].flag, situation.release): name for name in flags}
    for problem in constraints.broken(together, situation):
        if problem.where not in alone and problem.where in setters:
            yield _at(given, replace(problem, where=setters[problem.where]))


def _at(given: Mapping[str, Given], problem: Diagnostic) -> Diagnostic:
    known = problem.where in given
    return _fault(problem, given[problem.where].word.location if known else NOWHERE)
