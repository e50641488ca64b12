"""Records of what a file holds: servers, GPUs, options blocks, models, and how much was checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..diagnostics import Diagnostic, Location, located
from ..documents import Yaml, value_at
from ..facts.release import Release, ServerRole
from .engine import (
    DISAGGREGATED_COMMANDS,
    FILE_FLAGS,
    MODEL_FLAGS,
    SERVER_LISTS,
    SIZE_FLAGS,
    SPAWNERS,
    SUBCOMMANDS,
    TENSORRT_LLM,
    TOOLS,
    holder,
    is_server,
    worker_flags,
)

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
    """What a file was taken for, and what in it is to be checked.

    `diagnostics` are those of the file's own format, which `is_read` even if it has no options.
    `document` is the one whose paths they name, `unread` what has more options elsewhere.
    """

    kind: str
    sections: list[Section] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    document: Yaml = field(default_factory=Yaml)
    is_read: bool = False
    unread: list[str] = field(default_factory=list)


# A kind by name: whether a mapping is of it, and how to read it.
Kind = tuple[str, Callable[[Mapping[str, Any], Release], bool], Callable[[Yaml], Content]]


def role_of(name: str) -> ServerRole | None:
    return next((role for role, words in _ROLES if any(word in name for word in words)), None)


def side_of(name: str) -> ServerRole | None:
    """The side of disaggregated serving that the name of a file tells in a word of its own, the
    only one; counts of both sides tell none."""
    rest = _BOTH.sub("", name.lower())
    sides: set[ServerRole] = {
        "prefill" if found["prefill"] else "decode" for found in SIDE.finditer(rest)
    }
    return sides.pop() if len(sides) == 1 else None


def of_named_side(section: Section, name: str) -> Section:
    """A worker's options with the side that the name of its file tells."""
    if section.role or "cache_transceiver_config" not in section.options:
        return section
    return replace(section, role=side_of(name.rpartition("/")[2]))


def split(
    data: Mapping[str, Any], own: Mapping[str, Any] | Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys of the format itself, and the others."""
    inside = {key: value for key, value in data.items() if key in own}
    return inside, {key: value for key, value in data.items() if key not in own}


@dataclass(frozen=True, slots=True)
class StatedWorkload:
    """The workload that a file names beside its options; lengths in tokens."""

    isl: int | None = None
    osl: int | None = None
    concurrency: int | None = None
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Engine options and where they stand.

    `path` is their place in `document`, `within` names the document in its file if it is embedded
    there, as in a `config_map`, and `file` the file that it is for a server, where that is said
    elsewhere. Keys in `inherited` stand at `inherited_at` instead. `beside` are the names
    of the surrounding format, of which a misspelt key may be one. `is_open` if something else may
    add options: what these are with others is not judged then.
    """

    options: Mapping[str, Any]
    document: Yaml
    path: str = ""
    within: str = ""
    config_map: str = ""
    file: str = ""
    role: ServerRole | None = None
    workload: StatedWorkload = StatedWorkload()
    inherited: frozenset[str] = frozenset()
    inherited_at: str = ""
    beside: Sequence[str] = ()
    is_open: bool = False

    def locate(self, diagnostic: Diagnostic) -> Diagnostic:
        """An error of the options at its place in the file."""
        key = diagnostic.where.partition(".")[0]
        path = below(self.inherited_at if key in self.inherited else self.path, diagnostic.where)
        said = (diagnostic.message, diagnostic.fix, diagnostic.rule, diagnostic.severity)
        return located(self.document.locate(path), path, *said, self.within)


def below(path: str, key: str) -> str:
    return ".".join(filter(None, (path, key)))


def int_at(data: Any, path: str) -> int | None:
    """The whole number at a dotted path, or `None`."""
    value = value_at(data, path)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class Judged:
    """What was judged: sections of engine options, server commands, container images, and whether
    the file's own format was.

    `variables` are the paths of options whose value is not in the file: a shell or a template puts
    it in. Their names are judged, their values are not. `unread` says what writes options or flags
    in a way that is not read, or has them in another file.
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
class Verdict:
    """One file by one release: its kind, `None` if check knows none, what is wrong with it, and
    what was judged of it."""

    kind: str | None
    diagnostics: list[Diagnostic]
    judged: Judged = NOTHING


_VARIABLE = re.compile(r"[$<>{}`]")


@dataclass(frozen=True, slots=True)
class Named:
    """A name that stands in a file: at `location`, at the dotted `path` of its document."""

    name: str
    location: Location
    path: str = ""


def is_open(name: str) -> bool:
    """Whether something is put into a name later: a variable, or whatever a placeholder is for."""
    return _VARIABLE.search(name) is not None


_NAME_ENDS = re.compile(r"=|\s+")
ROLES: Mapping[str, ServerRole] = {"prefill": "prefill", "decode": "decode"}


@dataclass(frozen=True, slots=True)
class Gpus:
    """A number of GPUs, and where it stands; `on_all_nodes` if they are those of several nodes.
    Where the number of nodes stands there, `each` are those of one of them."""

    count: int
    location: Location
    path: str
    on_all_nodes: bool = False
    each: Gpus | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """One server: its words with their places, its GPUs in all, their kind, its side, and where it
    finds files of config maps: the maps by the folder that each is mounted at. `named` is its
    model, where the words of its `engine` name it otherwise than by a flag."""

    words: Sequence[tuple[str, Location]]
    gpus: Gpus | None = None
    gpu: str | None = None
    role: ServerRole | None = None
    path: str = ""
    config_maps: Mapping[str, str] = field(default_factory=dict)
    engine: str = TENSORRT_LLM
    named: Named | None = None

    @property
    def program(self) -> str:
        """The program whose flags set options of the engine in words of its own, if it is one."""
        return next((name for word, _ in self.words if (name := holder(word))), "")

    @property
    def tasks(self) -> Iterator[tuple[str, Location]]:
        """The words of a tool that are neither flags nor their values: the first is its task."""
        table, rest = worker_flags(self.program), list(self.words[1:])
        while rest:
            word, place = rest.pop(0)
            if not word.startswith("-"):
                yield word, place
            elif not ("=" in word or word in table.switches or word.startswith("--no")):
                rest = rest[1:]

    def flag(self, names: Iterable[str]) -> tuple[str, Location] | None:
        """The value of the first of these flags that is given."""
        for index, (word, place) in enumerate(self.words):
            if not word.startswith("-"):
                continue
            # Two words in one item are refused; what they mean is known all the same.
            name, *value = _NAME_ENDS.split(word, maxsplit=1)
            if name in names:
                return (value[0], place) if value else next(iter(self.words[index + 1 :]), None)
        return None

    @property
    def model(self) -> Named | None:
        if self.named:
            return self.named
        short = ("-m",) if self.program in TOOLS else ()
        found = self.flag((*MODEL_FLAGS, *short)) or self._positional()
        return Named(found[0].strip("\"'"), found[1], self.path) if found else None

    def _positional(self) -> tuple[str, Location] | None:
        for index, (word, _) in enumerate(self.words):
            if is_server(word):
                rest = [row for row in self.words[index + 1 : index + 3] if row[0] != "serve"]
                named = rest and not rest[0][0].startswith("-") and rest[0][0] not in SUBCOMMANDS
                return rest[0] if named else None
        return None

    @property
    def file_flag(self) -> tuple[str, Location] | None:
        """Its option file with its place."""
        return self.flag((*FILE_FLAGS, *SERVER_LISTS) if self.is_disaggregated else FILE_FLAGS)

    @property
    def file_path(self) -> str:
        """Its option file as the command names it."""
        found = self.file_flag
        return found[0].strip("\"'") if found else ""

    @property
    def file(self) -> str:
        """The last part of the name of its option file."""
        return self.file_path.rpartition("/")[2]

    @property
    def config_map(self) -> str:
        """The config map that its option file is of; empty if that is not known."""
        folder = self.file_path.rpartition("/")[0]
        return self.config_maps.get(folder, "") if folder else ""

    def given(self, files: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """The options of its file among those that are given, as `by_file` has them."""
        return files.get(f"{self.config_map}/{self.file}", files.get(self.file))

    @property
    def sizes(self) -> dict[str, str]:
        """The parallel sizes that its command gives."""
        found = {name: self.flag(flags) for name, flags in SIZE_FLAGS.items()}
        return {name: row[0] for name, row in found.items() if row}

    @property
    def is_disaggregated(self) -> bool:
        """Whether its file says where it listens, and not its command."""
        return any(word in DISAGGREGATED_COMMANDS for word, _ in self.words)

    @property
    def starts_elsewhere(self) -> bool:
        return any(word.rpartition("/")[2] in SPAWNERS for word, _ in self.words)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, without its quotes; `certain` if the shell puts nothing else in.

    `optional` if only some runs of the script give it.
    """

    text: str
    location: Location
    certain: bool
    quoted: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class HereDocument:
    """A text in a script that goes to the file `name`, or without one to a command. The shell puts
    values in unless it is `quoted`. `end` is the line that a reader takes for its end, which is
    the `delimiter` if it is one."""

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
    """A simple command, and the operator behind it; a bracket counts as one.

    `elements` are those of the list that its last word sets; they are the next statements as well.
    """

    words: tuple[Word, ...]
    end: str
    redirects: tuple[tuple[str, Word], ...] = ()
    elements: tuple[Word, ...] | None = None


@dataclass(frozen=True)
class Script:
    """The words after each server command, the here documents, and the commands around them.

    `environment` are variables that the script is given. Of each server command, `starts` has the
    place and `runs` the statement that it stands in, behind those that start its shell.
    """

    commands: Sequence[Sequence[Word]] = ()
    here: Sequence[HereDocument] = ()
    statements: Sequence[Statement] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    starts: Sequence[Location] = ()
    text: str = ""
    runs: Sequence[tuple[Statement, ...]] = ()
