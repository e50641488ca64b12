"""Records of what a file holds: servers, GPUs, options blocks, models, and what was checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..diagnostics import NOWHERE, Diagnostic, Location, located
from ..documents import START, Yaml, value_at
from ..facts import engines
from ..facts.release import Flag, Release, ServerRole
from ..general_rules import Rule, Severity
from .engine import Formats, formats, holder, is_server, worker_flags

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
    """The detected kind of a file and its content to check.

    `diagnostics` concern the file's own format. `document` is the document that paths refer to.
    `unread` names parts with more options elsewhere.
    """

    kind: str
    sections: list[OptionsBlock] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    document: Yaml = field(default_factory=Yaml)
    unread: list[str] = field(default_factory=list)


# A kind of file: its name, a test whether a mapping is of this kind, and its parser.
Kind = tuple[str, Callable[[Mapping[str, Any], Release], bool], Callable[[Yaml], Content]]


def role_of(name: str) -> ServerRole | None:
    return next((role for role, words in _ROLES if any(word in name for word in words)), None)


def side_of(name: str) -> ServerRole | None:
    """Returns the side of disaggregated serving that a file name contains as a word. A name with
    both sides has no side, and neither do counts such as `ctx4_gen1`."""
    rest = _BOTH.sub("", name.lower())
    sides: set[ServerRole] = {
        "prefill" if found["prefill"] else "decode" for found in SIDE.finditer(rest)
    }
    return sides.pop() if len(sides) == 1 else None


def of_named_side(section: OptionsBlock, name: str) -> OptionsBlock:
    """Sets the side of a worker's options from the name of its file."""
    if section.role or "cache_transceiver_config" not in section.options:
        return section
    return replace(section, role=side_of(name.rpartition("/")[2]))


def split(
    data: Mapping[str, Any], own: Mapping[str, Any] | Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits a mapping into keys of the format itself and other keys."""
    inside = {key: value for key, value in data.items() if key in own}
    return inside, {key: value for key, value in data.items() if key not in own}


@dataclass(frozen=True, slots=True)
class StatedWorkload:
    """The workload that a file defines next to its options; lengths are in tokens."""

    isl: int | None = None
    osl: int | None = None
    concurrency: int | None = None
    gpu: str | None = None


@dataclass(slots=True, eq=False)
class OptionsBlock:
    """Options given to an engine at one place: as keys of a file, or as flags of a command.

    `document` locates the options below `path`; messages show them below `shown`. `within` is the
    path of an embedded file, as in a `config_map`, and `file` is the path at which a server finds
    that file. Keys in `inherited` are at the top of the document instead. `beside` are names of the
    surrounding format, for spelling hints. `gpus` are the GPUs of the server. If `is_open`, options
    may be added elsewhere, so the program does not check how the options combine; if
    `is_extended`, some of them may belong to another program; if `is_whole`, nothing can add to
    them.

    Parsers fill in the rest: each option's name as `written`, `unknown` names with their values,
    the `model` and the `option_file` that a command names, and `diagnostics` of the syntax. For
    flags (`as_flags`), `command` is the server. By click's rules, `flags`, `arguments`
    and `subcommand` are the words of a command, which starts at `start`.
    """

    options: dict[str, Any] = field(default_factory=dict)
    document: Yaml = field(default_factory=Yaml)
    path: str = ""
    shown: str = ""
    within: str = ""
    config_map: str = ""
    file: str = ""
    role: ServerRole | None = None
    workload: StatedWorkload = StatedWorkload()
    inherited: frozenset[str] = frozenset()
    beside: Sequence[str] = ()
    gpus: Gpus | None = None
    is_open: bool = False
    is_extended: bool = False
    is_whole: bool = False
    written: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, tuple[str, Location]] = field(default_factory=dict)
    model: Word | None = None
    diagnostics: list[Diagnostic] = field(default_factory=list)
    as_flags: bool = False
    command: Server | None = None
    option_file: Word | None = None
    flags: list[CommandFlag] = field(default_factory=list)
    arguments: list[Word] = field(default_factory=list)
    subcommand: str = ""
    start: Location | None = None

    @property
    def places(self) -> dict[str, Location]:
        return self.document.places

    def locate(self, diagnostic: Diagnostic) -> Diagnostic:
        """Adds the location in the file to an error of the options."""
        key = diagnostic.where.partition(".")[0]
        path = below("" if key in self.inherited else self.path, diagnostic.where)
        said = (diagnostic.message, diagnostic.fix, diagnostic.rule, diagnostic.severity)
        return located(self.document.locate(path), path, *said, self.within)

    def set(self, name: str, value: Any, written: str, place: Location) -> None:
        self.options[name] = value
        self.places[name] = place
        self.written[name] = written

    def wrong(
        self, written: str, place: Location, what: str, fix: str, rule: Rule, warns: bool = False
    ) -> None:
        severity: Severity = "warning" if warns else "error"
        self.diagnostics.append(located(place, written, what, fix, rule, severity))

    @property
    def values(self) -> dict[str, tuple[str, Location]]:
        """The values that are texts, each with its location, by the names of their options."""
        found = {}
        for name, value in self.options.items():
            if isinstance(value, str):
                found[name] = (value, self.places.get(name, NOWHERE))
        return found

    def value(self, name: str) -> str:
        """The value of a flag as text; the last value if the flag is repeated."""
        word = self.flag_value(name)
        return word.text if word else ""

    def flag_value(self, name: str) -> Word | None:
        values = [row.value for row in self.flags if row.flag.name == name]
        return values[-1] if values else None


def below(path: str, key: str) -> str:
    return ".".join(filter(None, (path, key)))


def int_at(data: Any, path: str) -> int | None:
    """Returns the integer at a dotted path, or `None`."""
    value = value_at(data, path)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def whole(value: str | None) -> int | None:
    """Returns the whole number that a text is, or `None`."""
    return int(value) if value and re.fullmatch(r"[0-9]{1,9}", value) else None


@dataclass(frozen=True, slots=True)
class Judged:
    """What was checked: counts of options blocks, server commands and images, and the format
    itself.

    `variables` are the paths of options whose values come from a shell or a template. Their names
    are checked, their values are not. `unread` lists what sets options or flags in a way that
    cannot be followed, or in another file.
    """

    sections: int = 0
    commands: int = 0
    images: int = 0
    itself: bool = False
    variables: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.sections or self.commands or self.images or self.itself)

    def __add__(self, other: Judged) -> Judged:
        return Judged(
            self.sections + other.sections,
            self.commands + other.commands,
            self.images + other.images,
            self.itself or other.itself,
            (*self.variables, *other.variables),
            (*self.unread, *other.unread),
        )


NOTHING = Judged()
ITSELF = Judged(itself=True)


@dataclass(frozen=True, slots=True)
class Checked:
    """A checked file, its kind, the releases it was checked against, and what was checked.

    `named_by` are the words that pin these releases, `unclear` the words that should pin one and do
    not.
    """

    file: str
    kind: str
    releases: tuple[str, ...]
    assumed: bool = False
    judged: Judged = ITSELF
    named_by: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one file and one release: its kind (`None` if unknown), its diagnostics, and
    what was checked."""

    kind: str | None
    diagnostics: list[Diagnostic]
    judged: Judged = NOTHING


_VARIABLE = re.compile(r"[$<>{}`]")


@dataclass(frozen=True, slots=True)
class Named:
    """A name in a file, at `location` and at the dotted `path` of its document."""

    name: str
    location: Location
    path: str = ""


def is_open(name: str) -> bool:
    """Returns whether a name contains a variable or a placeholder."""
    return _VARIABLE.search(name) is not None


_NAME_ENDS = re.compile(r"=|\s+")
ROLES: Mapping[str, ServerRole] = {"prefill": "prefill", "decode": "decode"}


@dataclass(frozen=True, slots=True)
class Gpus:
    """A GPU count and its location. `on_all_nodes` means that it counts the GPUs of several nodes.
    `each` is the count of one node, if the location is that of the node count."""

    count: int
    location: Location
    path: str
    on_all_nodes: bool = False
    each: Gpus | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """A command that starts a server, or a worker or a tool that embeds the engine.

    `words` follow the program, which is called `name` and is at `start`; without them, an image
    starts the server. `before` are the words that start its container, `statements` the commands of
    a script that contain it, as written, outermost first. `path` is the path of its container,
    `within` that of its text; `is_alone` means that the container starts no other server.
    `config_maps` maps mount folders to config maps. If `is_part`, there are only flags, and the
    rest of the command is elsewhere; if `is_open`, a program or an image may take flags that the
    server does not have. `again` is a program that repeats the entry point of the image. `named` is
    the model if the `engine` does not take it as a flag.
    """

    words: tuple[Word, ...]
    name: str = ""
    start: Location | None = None
    before: tuple[Word, ...] = ()
    statements: tuple[Statement, ...] = ()
    gpus: Gpus | None = None
    gpu: str | None = None
    role: ServerRole | None = None
    path: str = ""
    within: str = ""
    is_alone: bool = False
    config_maps: Mapping[str, str] = field(default_factory=dict)
    engine: str = field(default_factory=lambda: engines.default().name)
    is_open: bool = False
    is_part: bool = False
    again: Word | None = None
    named: Named | None = None

    @property
    def formats(self) -> Formats:
        """The record of its engine."""
        return formats(self.engine)

    @property
    def place(self) -> Location:
        """The location of its program; the start of the file if an image starts the server."""
        return self.start or START

    @property
    def texts(self) -> list[tuple[str, Location]]:
        """The program and its words."""
        return [(self.name, self.place), *((row.text, row.location) for row in self.words)]

    @property
    def program(self) -> str:
        """The program that embeds the engine and has other flags for its options; empty for a
        server."""
        return next((name for word, _ in self.texts if (name := holder(word))), "")

    @property
    def tasks(self) -> Iterator[tuple[str, Location]]:
        """The words of a tool that are neither flags nor values; the first one is its task."""
        table, rest = worker_flags(self.program), self.texts[1:]
        while rest:
            word, place = rest.pop(0)
            if not word.startswith("-"):
                yield word, place
            elif not ("=" in word or word in table.switches or word.startswith("--no")):
                rest = rest[1:]

    def flag(self, names: Iterable[str]) -> tuple[str, Location] | None:
        """Returns the value of the first of these flags in the command, with its location."""
        words = self.texts
        for index, (word, place) in enumerate(words):
            if not word.startswith("-"):
                continue
            # The server refuses two words in one list item; their meaning is still clear.
            name, *value = _NAME_ENDS.split(word, maxsplit=1)
            if name in names:
                return (value[0], place) if value else next(iter(words[index + 1 :]), None)
        return None

    @property
    def model(self) -> Named | None:
        if self.named:
            return self.named
        known = self.formats
        short = known.short_model_flags if self.program in known.tools else ()
        found = self.flag((*known.model_flags, *short)) or self._positional()
        return Named(found[0].strip("\"'"), found[1], self.path) if found else None

    def _positional(self) -> tuple[str, Location] | None:
        without_model = (*self.formats.disaggregated_commands, *self.formats.other_commands)
        words = self.texts
        for index, (word, _) in enumerate(words):
            if is_server(word):
                rest = [row for row in words[index + 1 : index + 3] if row[0] != "serve"]
                named = rest and not rest[0][0].startswith("-") and rest[0][0] not in without_model
                return rest[0] if named else None
        return None

    @property
    def file_flag(self) -> tuple[str, Location] | None:
        """The option file and its location."""
        known = self.formats
        lists = known.server_lists if self.is_disaggregated else ()
        return self.flag((*known.file_flags, *lists))

    @property
    def file_path(self) -> str:
        """The option file as written in the command."""
        found = self.file_flag
        return found[0].strip("\"'") if found else ""

    @property
    def file(self) -> str:
        """The base name of the option file."""
        return self.file_path.rpartition("/")[2]

    @property
    def config_map(self) -> str:
        """The config map that contains the option file; empty if it is unknown."""
        folder = self.file_path.rpartition("/")[0]
        return self.config_maps.get(folder, "") if folder else ""

    def given(self, files: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """Returns the options of its file from `files`, which has the keys that `by_file` makes."""
        return files.get(f"{self.config_map}/{self.file}", files.get(self.file))

    @property
    def sizes(self) -> dict[str, str]:
        """The parallel sizes that the command sets."""
        found = {name: self.flag(flags) for name, flags in self.formats.size_flags.items()}
        return {name: row[0] for name, row in found.items() if row}

    @property
    def is_disaggregated(self) -> bool:
        """Whether the file sets the listen address instead of the command."""
        return any(word in self.formats.disaggregated_commands for word, _ in self.texts)


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command without its quotes; `certain` if the shell does not expand it. `optional`
    means that the word is conditional."""

    text: str
    location: Location
    certain: bool
    quoted: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class HereDocument:
    """A here document, written to the file `name` or else read by a command.

    The shell expands it unless it is `quoted`. `end` is the line that ends it for the reader; a
    correct end is equal to `delimiter`.
    """

    name: str
    text: str
    start: Location
    command: str = ""
    quoted: bool = False
    appends: bool = False
    strips_tabs: bool = False
    end: str = ""
    delimiter: str = ""


@dataclass(frozen=True, slots=True)
class Statement:
    """A simple command and the operator after it; parentheses count as operators. `elements` are
    the elements of the array that its last word sets; they are also the next statements."""

    words: tuple[Word, ...]
    end: str
    redirects: tuple[tuple[str, Word], ...] = ()
    elements: tuple[Word, ...] | None = None


@dataclass(frozen=True, slots=True)
class CommandFlag:
    """A flag on a command line, with its value if it takes one."""

    flag: Flag
    word: Word
    value: Word | None

    @property
    def spelling(self) -> str:
        return self.word.text.partition("=")[0]
