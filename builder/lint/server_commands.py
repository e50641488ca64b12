"""Checks server commands in scripts and containers against the release and the option file."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..diagnostics import NOWHERE, Diagnostic, Location, closest, located
from ..documents import Variable, Yaml, scan_yaml, value_at
from ..errors import BadInput
from ..facts.release import Flag, Release
from ..files import is_there, read_text
from ..general_rules import UNKNOWN_VALUE
from ..rules import constraints
from ..rules import flags as server_flags
from ..rules.context import RuleContext
from ..rules.options import FALSE, TRUE
from . import rules, script
from .inner_places import inside
from .mere_mentions import runs_code
from .pods import listed
from .script import Script, Word
from .section import Section, below
from .variables import as_shell

_SIZE = "tensor_parallel_size"


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
class Command:
    """A server command as a release reads it. `arguments` are words that are no flags, `start` is
    the place of the program, where that is known."""

    subcommand: str
    given: list[GivenFlag] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    arguments: list[Word] = field(default_factory=list)
    start: Location | None = None

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
    """The flags of a server command, and the errors of each by itself."""
    rest = list(words)
    command = Command(server_flags.SERVE)
    if rest and rest[0].text in (server_flags.SERVE, *release.subcommands):
        command.subcommand = rest.pop(0).text
    known = server_flags.spellings(release, command.subcommand)
    while rest:
        word = rest.pop(0)
        if word.text == "--help":  # every command has it
            return Command(command.subcommand)
        name, equals, rest_of_it = word.text.partition("=")
        if not re.match(r"--?[A-Za-z]", name) or "$" in name:
            command.arguments.append(word)
            continue
        value = Word(rest_of_it, word.location, word.certain) if equals else None
        takes_one = name in known and known[name].type != "flag" and not equals
        if takes_one and rest and not rest[0].text.startswith("--"):
            value = rest.pop(0)
        meant, space, its_value = name.partition(" ")
        if space and meant in known:  # refused, and known all the same
            both = Word(its_value.strip(), word.location, word.certain)
            command.given.append(GivenFlag(known[meant], word, both))
        if name in known:
            command.given.append(GivenFlag(known[name], word, value))
        text = value.text if value else None
        if value is None or value.certain:
            found = server_flags.flag_faults(name, text, release, command.subcommand)
            command.diagnostics += (_at_location(row, (value or word).location) for row in found)
        elif name not in known:
            found = server_flags.flag_faults(name, None, release, command.subcommand)
            command.diagnostics += (_at_location(row, word.location) for row in found)
    command.diagnostics += _misspelt_task(command, release)
    command.diagnostics += _switched(words, known)
    return command


def _switched(words: Sequence[Word], known: Mapping[str, Flag]) -> Iterator[Diagnostic]:
    """Values of flags that take none: the command line is refused for them."""
    for index, word in enumerate(words):
        name, equals, text = word.text.partition("=")
        following = words[index + 1] if index + 1 < len(words) else None
        value = word if equals else following
        text = text if equals else following.text if following else ""
        is_switch = name in known and known[name].type == "flag"
        if is_switch and value and value.certain and text.lower() in TRUE | FALSE:
            what = f"takes no value, and {text} is refused"
            fix = "leave it out" if text.lower() in TRUE else f"leave {name} out"
            yield located(value.location, name, what, fix, rules.FLAG_VALUE)


def _misspelt_task(command: Command, release: Release) -> Iterator[Diagnostic]:
    """A word before the model that is a subcommand, misspelt."""
    first, *rest = [*command.arguments[:2], None]
    tasks = (server_flags.SERVE, *release.subcommands)
    if first and rest[0] and first.certain and (near := closest(first.text, tasks)):
        what = f"{first.text} is taken for the model, and {rest[0].text} stands behind it"
        yield located(first.location, first.text, what, f"did you mean {near}?", UNKNOWN_VALUE)


def _at_location(diagnostic: Diagnostic, place: Location) -> Diagnostic:
    return replace(diagnostic, where="", path=diagnostic.where, location=place)


def read_option_file(name: str, folder: Path) -> Mapping[str, Any]:
    """The options of a file beside a script, or nothing where that cannot be known.

    Where the file is not where the script says, as it is mounted there, it lies beside the script.
    """
    beside = re.sub(r"^(\$\{?\w+\}?|\$\(.*\))/", "", name)
    if not beside or "$" in beside:
        return {}
    named, mounted = folder / beside, folder / Path(beside).name
    try:
        data = scan_yaml(read_text(named if is_there(named) else mounted))[0].data
    except BadInput:
        return {}
    return data if isinstance(data, Mapping) else {}


def beside_flags(
    command: Command,
    options: Mapping[str, Any],
    rule_context: RuleContext,
    section: Section | None = None,
) -> Iterator[Diagnostic]:
    """What flags and option file do to each other, and rules that only both together break: at the
    flag, or at the option of the file where its `section` is known."""
    wrong = {row.path for row in command.diagnostics}
    given = {row.spelling: row for row in command.given}
    flags = {
        name: row.value.text if row.value else True
        for name, row in given.items()
        if name not in wrong and (row.value is None or row.value.certain)
        if not row.word.optional
    }
    known = {key: value for key, value in options.items() if not isinstance(value, Variable)}
    for diagnostic in server_flags.flag_traps(flags, known, rule_context.release):
        yield _at(given, diagnostic)
    together = server_flags.with_flags(flags, options, rule_context.release)
    if _is_whole(command, options):
        together = {_SIZE: 1, **together}  # which the engine takes without
    broken = list(constraints.violations(together, rule_context))
    if not broken:
        return
    # What is wrong with the model is said with its options, where they are known.
    of_file = {row.where for row in constraints.violations(options, rule_context)}
    alone = of_file if section else of_file - {"model"}
    setters = {
        server_flags.option_path(given[name].flag, rule_context.release): name for name in flags
    }
    for diagnostic in broken:
        if diagnostic.where in alone:
            continue
        if diagnostic.where == "model" and command.arguments:
            yield _at_location(diagnostic, command.arguments[0].location)
        elif diagnostic.where in setters:
            yield _at(given, replace(diagnostic, where=setters[diagnostic.where]))
        elif section and value_at(section.options, diagnostic.where) is not None:
            yield section.locate(diagnostic)
        elif diagnostic.where in ("model", _SIZE) and command.arguments:
            yield _at_location(diagnostic, command.arguments[0].location)


def _is_whole(command: Command, options: Mapping[str, Any]) -> bool:
    """Whether a command and its file say how many GPUs share the model, by silence too."""
    words = (*command.arguments, *(row.word for row in command.given))
    known = bool(options) or command.option_file is None
    flags = {row.flag.name for row in command.given}
    return known and all(row.certain for row in words) and not flags & {"tp_size", _SIZE}


def _at(given: Mapping[str, GivenFlag], diagnostic: Diagnostic) -> Diagnostic:
    known = diagnostic.where in given
    return _at_location(diagnostic, given[diagnostic.where].word.location if known else NOWHERE)


# Keys of a container, a service or a launcher that hold its command, in the order of their words.
COMMANDS = (
    "entrypoint",
    "command",
    "args",
    "cmd",
    "start_command",
    "launch_command",
    "run",
    "script",
    "commands",
)


def command_keys(container: Mapping[str, Any]) -> list[str]:
    """The keys of a container that hold its command, in the order of their words."""
    return [key for key in COMMANDS if key in container]


def _is_long(text: str) -> bool:
    """Whether a command has more than the words of one program."""
    return len(script.statements(text)) > 1 or "\n" in text.strip()


def _is_read(text: str) -> bool:
    """Whether a text of several commands may start a server or write its options."""
    return script.mentions_server(text) or "<<" in text


@dataclass(frozen=True, slots=True)
class ContainerCommand:
    """What one container runs: a script, and its `path` in the manifest.

    Places in the script count from the beginning of its `text` in the `document`, or are the
    manifest's own where that is `None`.
    """

    path: str
    script: Script
    text: str = ""
    document: Yaml | None = None

    def move(
        self, diagnostic: Diagnostic, told: Collection[tuple[Location, str]] = ()
    ) -> Diagnostic:
        """An error of the script at its place in the manifest; those `told` there are at theirs."""
        place = diagnostic.location
        if (place, diagnostic.path) in told:
            return diagnostic
        if self.document:
            place = inside(self.document, self.path, self.text, place)
        within = ": ".join(filter(None, (self.path, diagnostic.within)))
        return replace(diagnostic, location=place, within=within)


def container_commands(document: Yaml) -> Iterator[ContainerCommand]:
    """What the containers of a document run, as far as it starts a server or writes files."""
    for path, container in containers(document.data, ""):
        given = {name: text for name, text, _ in environment(container)}
        words = [
            row
            for key in command_keys(container)
            for row in words_of(document, container, path, key, _is_read)
        ]
        if runs_code([word.text for _, word in words]):
            continue
        for index, (where, word) in enumerate(words):
            if script.is_server(word.text):
                rest = [later for _, later in words[index + 1 :]]
                yield ContainerCommand(
                    _last_key(path, container), Script([rest], environment=given)
                )
                break
            if _is_read(word.text):
                found = replace(script.read(word.text), environment=given)
                yield ContainerCommand(where, found, word.text, document)


def environment(container: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The variables of a container with their texts and paths, as Kubernetes, Compose as a list and
    Compose as a mapping write them."""
    for key in ("env", "environment"):
        given = container.get(key)
        if isinstance(given, Mapping):
            yield from ((str(name), str(text), f"{key}.{name}") for name, text in given.items())
        for index, row in enumerate(listed(given)):
            if isinstance(row, Mapping) and "value" in row:
                yield str(row.get("name")), str(row["value"]), f"{key}.{index}.value"
            elif isinstance(row, str) and "=" in row:
                name, _, text = row.partition("=")
                yield name, text, f"{key}.{index}"


def command_texts(container: Mapping[str, Any]) -> list[str]:
    """All words that a container runs."""
    rows = [container.get(key) for key in COMMANDS]
    return [str(word) for row in rows for word in (listed(row) or [row]) if word]


def _last_key(path: str, container: Mapping[str, Any]) -> str:
    return below(path, command_keys(container)[-1])


def containers(data: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every mapping that holds a command, with its path."""
    if isinstance(data, Mapping):
        if any(isinstance(data.get(key), list | str) for key in COMMANDS):
            yield path, data
        for key, value in data.items():
            yield from containers(value, below(path, str(key)))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from containers(value, below(path, str(index)))


def words_of(
    document: Yaml,
    container: Mapping[str, Any],
    path: str,
    key: str,
    mentions: Callable[[str], bool] = script.mentions_server,
) -> Iterator[tuple[str, Word]]:
    """The words of a list or a line, each with its path; a text of several commands that `mentions`
    a server is one word. Values are put in later for `$(NAME)`."""
    values = container.get(key)
    if isinstance(values, str):
        where, values = below(path, key), as_shell(values)
        if mentions(values) and _is_long(values):
            yield where, Word(values, document.locate(where), True)
            return
        for statement in script.statements(values):
            for word in statement.words:
                place = inside(document, where, values, word.location)
                yield where, replace(word, location=place)
    for index, value in enumerate(listed(values)):
        where, text = below(path, f"{key}.{index}"), as_shell(str(value))
        yield where, Word(text, document.locate(where), "$" not in text, quoted=True)
