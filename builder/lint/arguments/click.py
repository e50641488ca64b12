"""Parses the words of a command into flags, as click does, and the flags of programs that embed the
engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...diagnostics import Diagnostic, Location, closest, located
from ...documents import Variable, Yaml
from ...facts.release import Flag, Release
from ...general_rules import DUPLICATE_KEY, UNKNOWN_VALUE
from ...rules import flags as server_flags
from ...rules.options import FALSE, TRUE
from ..engine import worker_flags
from ..model import CommandFlag, OptionsBlock, Server, Word
from ..read.yaml_text import SHELL, TEMPLATE, value_of
from ..rules import FLAG_VALUE


def parse_command(words: Sequence[Word], release: Release) -> OptionsBlock:
    """Parses the flags of a server command and collects the errors of each flag."""
    rest = list(words)
    command = OptionsBlock(as_flags=True, subcommand=server_flags.SERVE)
    if rest and rest[0].text in (server_flags.SERVE, *release.subcommands):
        command.subcommand = rest.pop(0).text
    known = server_flags.spellings(release, command.subcommand)
    while rest:
        word = rest.pop(0)
        if word.text == "--help":  # valid for every command
            return OptionsBlock(as_flags=True, subcommand=command.subcommand)
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
            command.flags.append(CommandFlag(known[meant], word, both))
        if name in known:
            command.flags.append(CommandFlag(known[name], word, value))
        text = value.text if value else None
        if value is None or value.certain:
            found = server_flags.flag_faults(name, text, release, command.subcommand)
            command.diagnostics += (at_location(row, (value or word).location) for row in found)
        elif name not in known:
            found = server_flags.flag_faults(name, None, release, command.subcommand)
            command.diagnostics += (at_location(row, word.location) for row in found)
    for row in command.flags:
        given = row.value or row.word
        told: Any = row.value.text if row.value else True
        if row.value and not row.value.certain:
            told = Variable(row.value.text)
        if row.flag.name in command.options and not row.flag.multiple:
            what = "is set twice; only the last value counts"
            command.wrong(
                row.spelling, row.word.location, what, "keep one", DUPLICATE_KEY, warns=True
            )
        command.set(row.flag.name, told, row.spelling, given.location)
    command.option_file = command.flag_value(release.engine.option_file_flag)
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


def _misspelt_task(command: OptionsBlock, release: Release) -> Iterator[Diagnostic]:
    """Reports a misspelt subcommand before the model."""
    first, *rest = [*command.arguments[:2], None]
    tasks = (server_flags.SERVE, *release.subcommands)
    if first and rest[0] and first.certain and (near := closest(first.text, tasks)):
        what = f"{first.text} is read as the model, and {rest[0].text} follows it"
        yield located(first.location, first.text, what, f"did you mean {near}?", UNKNOWN_VALUE)


def at_location(diagnostic: Diagnostic, place: Location) -> Diagnostic:
    return replace(diagnostic, where="", path=diagnostic.where, location=place)


@dataclass
class FlagOptions:
    """Options that the flags of a Dynamo worker set. `first` are options that the option file may
    override, `last` are options that override the file. `unknown` is set if parallel sizes may be
    filled in later."""

    first: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Location] = field(default_factory=dict)
    is_open: bool = False
    unknown: bool = False

    def over(self, file: Mapping[str, Any]) -> dict[str, Any]:
        """The effective options when the flags are combined with an option file."""
        together: dict[str, Any] = {}
        for options in (self.first, file, self.last):
            merge_options(together, options, Location(0, 0), {})
        return together

    def section(self, worker: Server) -> OptionsBlock:
        document = Yaml(self.over({}), self.places)
        options, role = document.data, worker.role
        within = f"the flags of {worker.program}"
        return OptionsBlock(options, document, within=within, role=role, is_open=self.is_open)


def merge_options(
    options: dict[str, Any],
    given: Mapping[str, Any],
    place: Location,
    places: dict[str, Location],
    path: str = "",
) -> None:
    """Merges options into others, including nested groups."""
    for key, value in given.items():
        where = f"{path}{key}"
        places[where] = place
        if isinstance(value, Mapping):
            inside = options.get(key)
            options[key] = dict(inside) if isinstance(inside, Mapping) else {}
            merge_options(options[key], value, place, places, f"{where}.")
        else:
            options[key] = value


def own_options(worker: Server) -> FlagOptions:
    """The options that the flags of a Dynamo worker set, each located at its flag."""
    table, own = worker_flags(worker.program), FlagOptions(places={"": worker.place})
    words = worker.texts
    for index, (word, place) in enumerate(words):
        name, equals, text = word.partition("=")
        switch = name.replace("--no-", "--", 1) in table.switches
        path = table.options.get(name.replace("--no-", "--", 1) if switch else name, "")
        by_path = table.prefix is not None and name.startswith(table.prefix)
        path = path or (name.removeprefix(table.prefix or "") if by_path else "")
        if not (path or name in table.json):
            continue
        if not equals and not switch:
            text, at = next(iter(words[index + 1 :]), ("", place))
            place = at if name in table.json else place
        is_last = name in table.json or by_path
        if SHELL.search(text) or TEMPLATE.search(text):
            own.is_open = True
            own.unknown |= name in table.json or (is_last and path.endswith("_parallel_size"))
        elif path:
            value = not name.startswith("--no-") if switch and not equals else value_of(text)
            merge_options(
                own.last if is_last else own.first, _nested(path, value), place, own.places
            )
        elif isinstance(given := value_of(text.strip("\"'")), Mapping):
            merge_options(own.last, given, place, own.places)
    return own


def _nested(path: str, value: Any) -> Mapping[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    nested: Mapping[str, Any] = value
    return nested
