"""Reads the records of `builder/data/formats`, which describe how to recognize engines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from ..diagnostics import Diagnostic
from ..documents import DATA
from ..facts import data_file, engines, plain_data
from ..facts.release import Release
from ..facts.release.table import FORMAT_TABLE
from ..general_rules import UNKNOWN_KEY, VALUE_TYPE
from ..rules.context import RuleContext
from ..rules.remedies import before_tables
from ..schema import Text
from .rules import FLAG_VALUE, UNKNOWN_FLAG

FORMATS = DATA / "formats"
ENGINE_FILE = "model.json"  # of Triton's backend


@dataclass(frozen=True, slots=True)
class Formats:
    """How an engine's commands and files are recognized. `vllm.yaml` and `tensorrt_llm.yaml` in
    `builder/data/formats` explain each field. `dialect` names the parser of its command."""

    source: Text
    dialect: Literal["click", "argparse", "getopt"]
    program: Text
    named: Text
    mentions: str = ""
    release_lines: str = ""
    remark: str = ""
    file_flags: tuple[Text, ...] = ()
    memory_option: str = ""
    memory_flags: tuple[Text, ...] = ()
    ranks: tuple[Text, ...] = ()
    ranks_elsewhere: tuple[Text, ...] = ()
    ranks_on_nodes: tuple[Text, ...] = ()
    subcommand: str = ""
    modules: tuple[Text, ...] = ()
    workers: tuple[Text, ...] = ()
    images: tuple[Text, ...] = ()
    extended_images: tuple[Text, ...] = ()
    bare_images: tuple[Text, ...] = ()
    publishers: tuple[Text, ...] = ()
    mirrors: tuple[Text, ...] = ()
    extensions: tuple[Text, ...] = ()
    flag_lists: tuple[Text, ...] = ()
    other_programs: tuple[Text, ...] = ()
    model_commands: tuple[Text, ...] = ()
    handed_on_beside: str = ""
    handed_on_by: tuple[Text, ...] = ()
    option_holders: tuple[Text, ...] = ()
    asked_gpus: dict[str, Text] = field(default_factory=dict)
    roles: tuple[Text, ...] = ()
    minimum: tuple[Text, ...] = ()
    tools: tuple[Text, ...] = ()
    flag_files: dict[str, Text] = field(default_factory=dict)
    programs: tuple[Text, ...] = ()
    mode_flag: str = ""
    model_flags: tuple[Text, ...] = ()
    short_model_flags: tuple[Text, ...] = ()
    server_lists: tuple[Text, ...] = ()
    disaggregated_commands: tuple[Text, ...] = ()
    other_commands: tuple[Text, ...] = ()
    rank_commands: tuple[Text, ...] = ()
    no_port: tuple[Text, ...] = ()
    size_flags: dict[str, tuple[Text, ...]] = field(default_factory=dict)
    server_flags: tuple[Text, ...] = ()
    default_host: str = ""
    default_port: str = ""
    python_others: tuple[Text, ...] = ()
    recipe_name: str = ""
    families: tuple[Text, ...] = ()
    other_options: tuple[Text, ...] = ()
    signature: tuple[Text, ...] = ()
    marks: tuple[Text, ...] = ()
    converted: tuple[Text, ...] = ()
    json_flags: tuple[Text, ...] = ()
    python_classes: tuple[Text, ...] = ()
    python_options: tuple[Text, ...] = ()
    wrapper: str = ""
    wrapped_in: dict[str, Text] = field(default_factory=dict)
    wrapped_beside: str = ""
    wrapped_not: str = ""
    request_class: str = ""
    request_names: tuple[Text, ...] = ()
    request_words: dict[str, Text] = field(default_factory=dict)
    python_numbers: dict[str, Text] = field(default_factory=dict)
    brought_by: dict[str, Text] = field(default_factory=dict)
    lifted: dict[str, Text] = field(default_factory=dict)
    former: dict[str, Text] = field(default_factory=dict)
    former_values: tuple[Text, ...] = ()
    variable_prefix: str = ""
    former_variables: dict[str, Text] = field(default_factory=dict)
    foreign: dict[str, Text] = field(default_factory=dict)


@cache
def formats(engine: str) -> Formats:
    """Returns the record of an engine in `builder/data/formats`."""
    return data_file.load(FORMATS / f"{engine}.yaml", Formats)


@cache
def recorded() -> tuple[str, ...]:
    """Returns the engines with a record of their formats."""
    return tuple(row for row in engines.names() if (FORMATS / f"{row}.yaml").is_file())


TRITON_SERVER = "tritonserver"  # the record of the programs of a server that is no engine


def starts_triton(text: str) -> bool:
    """Returns whether a text contains the name of one of Triton's programs."""
    if TRITON_SERVER.removesuffix("server") not in text:
        return False  # most files need no record
    known = formats(TRITON_SERVER)
    return any(name in text for name in (known.program, *known.modules))


@cache
def every(field_name: str) -> tuple[str, ...]:
    """Returns the words of all records in one field, each once."""
    found: dict[str, None] = {}
    for name in recorded():
        found |= dict.fromkeys(getattr(formats(name), field_name))
    return tuple(found)


@cache
def programs() -> tuple[str, ...]:
    """Returns the programs of the servers of all engines."""
    return tuple(formats(name).program for name in recorded())


def takes_clicks(context: RuleContext) -> bool:
    """Returns whether the commands of a release's engine are parsed by click's rules."""
    return formats(context.release.engine.name).dialect == "click"


@cache
def dialect(name: str) -> tuple[str, ...]:
    """Returns the engines whose commands are parsed so."""
    return tuple(row for row in recorded() if formats(row).dialect == name)


def is_former(engine: str, row: Diagnostic) -> bool:
    """Returns whether an unknown option or value comes from a release before the first table.
    Options may have been removed since then, and values may have had another form."""
    keys, record = (
        [key.lstrip("-").replace("-", "_") for key in row.path.split(".")],
        formats(engine),
    )
    ends = {".".join(keys[depth:]) for depth in range(len(keys))}
    if row.rule in (FLAG_VALUE, VALUE_TYPE):
        return not ends.isdisjoint(record.former_values)
    if row.rule not in (UNKNOWN_KEY, UNKNOWN_FLAG):
        return False
    return not ends.isdisjoint((*record.former, *before_tables(engine)))


@cache
def image_pattern(engine: str) -> re.Pattern[str]:
    """Returns a pattern for images of the server; `extended` matches images that build on them."""
    record = formats(engine)
    own, extended = (
        "|".join(map(re.escape, sorted(rows, key=len, reverse=True))) or "(?!)"
        for rows in (record.images, record.extended_images)
    )
    return re.compile(
        rf"(?:^|(?<=[/\s=\"'#]))(?:(?P<own>{own})|(?P<extended>{extended}))"
        r"(?::(?P<tag>[\w.${}:-]+))?(?:@sha256:[0-9a-f]+)?(?=$|[\s\"',])"
    )


SURROUNDINGS = FORMATS / "surroundings.yaml"


@dataclass(frozen=True, slots=True)
class WorkerFlags:
    """The flags of a program that embeds the engine.

    `options` are the flags that set engine options. `switches` take no value and `json` flags take
    JSON. Flags with `prefix` name an option by its path. `modes` are the modes or tasks of the
    program, and `others` are its remaining flags. If `holds` is set, only these modes use the
    engine; the other modes have different flags.
    """

    source: Text
    options: Mapping[Text, Text]
    switches: tuple[Text, ...]
    json: tuple[Text, ...]
    modes: tuple[Text, ...]
    others: tuple[Text, ...]
    prefix: Text | None = None
    holds: tuple[Text, ...] = ()


@cache
def worker_flags(program: str) -> WorkerFlags:
    name = default_formats().flag_files[program]
    return data_file.load(FORMATS / f"{name}.yaml", WorkerFlags)


@cache
def surroundings() -> Mapping[str, Any]:
    """Returns the names that surround engine options in files of other programs."""
    found: Mapping[str, Any] = data_file.load(SURROUNDINGS, plain_data.SURROUNDINGS_FILE)
    return found


@cache
def format_table(name: str) -> Release:
    """Returns the keys of a file format in the form of a release table."""
    path = FORMATS / f"{name}.yaml"
    return Release(data_file.load(path, FORMAT_TABLE), path)


def fields_of(table: Release, name: str) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = table.table["types"][name]["fields"]
    return fields


MPI_STARTERS = ("mpirun", "mpiexec", "orterun", "prterun")


@cache
def default_formats() -> Formats:
    """Returns the record of the default engine."""
    return formats(engines.default().name)


@cache
def rank_launcher() -> str:
    """Returns the program that starts a command of the default engine on every rank."""
    return engines.default().rank_launcher or ""


@cache
def spawners() -> tuple[str, ...]:
    """Returns the programs that start a server on other nodes too."""
    return (*MPI_STARTERS, "srun", rank_launcher())


def holder(word: str) -> str:
    """Returns the program in a word that embeds the engine: a worker of a launcher or a tool."""
    for worker in default_formats().workers:
        if word.endswith(worker):
            return worker
    name = word.rpartition("/")[2]
    return name if name in default_formats().tools else ""


def mentions_holder(text: str) -> bool:
    """Returns whether a text contains the name of a program that embeds the engine."""
    return any(name in text for name in (*default_formats().workers, *default_formats().tools))


def is_server(word: str) -> bool:
    """Returns whether a word is the name of the server's program."""
    name = word.rpartition("/")[2]
    return name == default_formats().program or name in default_formats().modules


def names_server(text: str) -> bool:
    """Returns whether a text contains the name of the server's program."""
    return default_formats().program in text or any(
        name in text for name in default_formats().modules
    )


def mentions_server(word: str) -> bool:
    """Returns whether a word is itself a command line that starts a server."""
    return names_server(word) and re.search(r"\s", word) is not None
