"""Parses the words of a TensorRT-LLM command into flags, as click does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...diagnostics import Diagnostic, Location, closest, located
from ...facts.release import Flag, Release
from ...general_rules import UNKNOWN_VALUE
from ...rules import flags as server_flags
from ...rules.options import FALSE, TRUE
from ..model import Word
from ..rules import FLAG_VALUE


@dataclass(frozen=True, slots=True)
class GivenFlag:
    """A flag on a command line, with its value if it takes one."""

    flag: Flag
    word: Word
    value: Word | None

    @property
    def spelling(self) -> str:
        return self.word.text.partition("=")[0]


@dataclass
class ParsedCommand:
    """A server command, parsed for one release. `arguments` are the words that are not flags.
    `start` is the location of the program, if known."""

    subcommand: str
    given: list[GivenFlag] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    arguments: list[Word] = field(default_factory=list)
    start: Location | None = None

    @property
    def option_file(self) -> Word | None:
        return self._last("extra_llm_api_options")

    def value(self, name: str) -> str:
        """The value of a flag as text; the last value if the flag is repeated."""
        word = self._last(name)
        return word.text if word else ""

    @property
    def values(self) -> dict[str, tuple[str, Location]]:
        """The values of flags, each with its location, by the names of their options."""
        return {
            row.flag.name: (row.value.text, row.value.location) for row in self.given if row.value
        }

    def _last(self, name: str) -> Word | None:
        values = [row.value for row in self.given if row.flag.name == name]
        return values[-1] if values else None


def parse_command(words: Sequence[Word], release: Release) -> ParsedCommand:
    """Parses the flags of a server command and collects the errors of each flag."""
    rest = list(words)
    command = ParsedCommand(server_flags.SERVE)
    if rest and rest[0].text in (server_flags.SERVE, *release.subcommands):
        command.subcommand = rest.pop(0).text
    known = server_flags.spellings(release, command.subcommand)
    while rest:
        word = rest.pop(0)
        if word.text == "--help":  # valid for every command
            return ParsedCommand(command.subcommand)
        name, equals, rest_of_it = word.text.partition("=")
        if not re.match(r"--?[A-Za-z]", name) or "$" in name:
            command.arguments.append(word)
            continue
        value = Word(rest_of_it, word.location, word.certain) if equals else None
        takes_one = name in known and known[name].type != "flag" and not equals
        if takes_one and rest and not rest[0].text.startswith("--"):
            value = rest.pop(0)
        meant, space, its_value = name.partition(" ")
        if space and meant in known:  # the command refuses it, but the meaning is clear
            both = Word(its_value.strip(), word.location, word.certain)
            command.given.append(GivenFlag(known[meant], word, both))
        if name in known:
            command.given.append(GivenFlag(known[name], word, value))
        text = value.text if value else None
        if value is None or value.certain:
            found = server_flags.flag_faults(name, text, release, command.subcommand)
            command.diagnostics += (at_location(row, (value or word).location) for row in found)
        elif name not in known:
            found = server_flags.flag_faults(name, None, release, command.subcommand)
            command.diagnostics += (at_location(row, word.location) for row in found)
    command.diagnostics += _misspelt_task(command, release)
    command.diagnostics += _switched(words, known)
    return command


def _switched(words: Sequence[Word], known: Mapping[str, Flag]) -> Iterator[Diagnostic]:
    """Reports values after flags that take none; the command refuses them."""
    for index, word in enumerate(words):
        name, equals, text = word.text.partition("=")
        following = words[index + 1] if index + 1 < len(words) else None
        value = word if equals else following
        text = text if equals else following.text if following else ""
        is_switch = name in known and known[name].type == "flag"
        if is_switch and value and value.certain and text.lower() in TRUE | FALSE:
            what = f"takes no value, and {text} is refused"
            fix = "leave it out" if text.lower() in TRUE else f"leave {name} out"
            yield located(value.location, name, what, fix, FLAG_VALUE)


def _misspelt_task(command: ParsedCommand, release: Release) -> Iterator[Diagnostic]:
    """Reports a misspelt subcommand before the model."""
    first, *rest = [*command.arguments[:2], None]
    tasks = (server_flags.SERVE, *release.subcommands)
    if first and rest[0] and first.certain and (near := closest(first.text, tasks)):
        what = f"{first.text} is read as the model, and {rest[0].text} follows it"
        yield located(first.location, first.text, what, f"did you mean {near}?", UNKNOWN_VALUE)


def at_location(diagnostic: Diagnostic, place: Location) -> Diagnostic:
    return replace(diagnostic, where="", path=diagnostic.where, location=place)
