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
from ..rules.remedies import before_tables
from ..schema import Text
from .rules import FLAG_VALUE, UNKNOWN_FLAG

FORMATS = DATA / "formats"
ENGINE_FILE = "model.json"  # of Triton's backend


@dataclass(frozen=True, slots=True)
class Formats:
    """How an engine's commands and files are recognized; `builder/data/formats/vllm.yaml` explains
    each field. `dialect` names the parser of its command."""

    source: Text
    dialect: Literal["click", "argparse"]
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
    former_variables: dict[str, Text] = field(default_factory=dict)
    foreign: dict[str, Text] = field(default_factory=dict)


@cache
def formats(engine: str) -> Formats:
    """Returns the record of an engine in `builder/data/formats`."""
    return data_file.load(FORMATS / f"{engine}.yaml", Formats)


@cache
def dialect(name: str) -> tuple[str, ...]:
    """Returns the engines whose commands are parsed so."""
    return tuple(row for row in engines.names() if formats(row).dialect == name)


def is_former(engine: str, row: Diagnostic) -> bool:
    """Returns whether an unknown option or value comes from a release before the first table.
    Options may have been removed since then, and values may have had another form."""
    keys, known = (
        [key.lstrip("-").replace("-", "_") for key in row.path.split(".")],
        formats(engine),
    )
    ends = {".".join(keys[depth:]) for depth in range(len(keys))}
    if row.rule in (FLAG_VALUE, VALUE_TYPE):
        return not ends.isdisjoint(known.former_values)
    if row.rule not in (UNKNOWN_KEY, UNKNOWN_FLAG):
        return False
    return not ends.isdisjoint((*known.former, *before_tables(engine)))


@cache
def image_pattern(engine: str) -> re.Pattern[str]:
    """Returns a pattern for images of the server; `extended` matches images that build on them."""
    known = formats(engine)
    own, extended = (
        "|".join(map(re.escape, sorted(rows, key=len, reverse=True))) or "(?!)"
        for rows in (known.images, known.extended_images)
    )
    return re.compile(
        rf"(?:^|(?<=[/\s=\"'#]))(?:(?P<own>{own})|(?P<extended>{extended}))"
        r"(?::(?P<tag>[\w.${}:-]+))?(?:@sha256:[0-9a-f]+)?(?=$|[\s\"',])"
    )


EMBEDDED_FORMAT = DATA / "formats" / "embedded.yaml"
SURROUNDINGS = DATA / "formats" / "surroundings.yaml"
WORKERS = {
    "dynamo.trtllm": DATA / "formats" / "dynamo_worker.yaml",
    "trtllm-bench": DATA / "formats" / "bench_worker.yaml",
    "trtllm-eval": DATA / "formats" / "eval_worker.yaml",
}


@dataclass(frozen=True, slots=True)
class EmbeddedFormats:
    """Names by which files of other formats are recognized. `holders` are keys that hold options,
    `signature` are options that only this engine has, and `others` are options of other engines."""

    source: Text
    holders: tuple[Text, ...]
    signature: tuple[Text, ...]
    others: tuple[Text, ...]


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
def names(kind: str) -> frozenset[str]:
    return frozenset(getattr(_document(), kind))


@cache
def _document() -> EmbeddedFormats:
    document: EmbeddedFormats = data_file.load(EMBEDDED_FORMAT, EmbeddedFormats)
    return document


@cache
def worker_flags(program: str) -> WorkerFlags:
    document: WorkerFlags = data_file.load(WORKERS[program], WorkerFlags)
    return document


@cache
def surroundings() -> Mapping[str, Any]:
    """Returns the names that surround engine options in files of other programs."""
    found: Mapping[str, Any] = data_file.load(SURROUNDINGS, plain_data.SURROUNDINGS_FILE)
    return found


@cache
def format_table(name: str) -> Release:
    """Returns the keys of a file format in the form of a release table."""
    path = DATA / "formats" / f"{name}.yaml"
    return Release(data_file.load(path, FORMAT_TABLE), path)


def fields_of(table: Release, name: str) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = table.table["types"][name]["fields"]
    return fields


TENSORRT_LLM = "tensorrt_llm"
WORKER = "dynamo.trtllm"
LAUNCHER = "trtllm-llmapi-launch"
TOOLS = ("trtllm-bench", "trtllm-eval")  # these embed the engine
MPI_STARTERS = ("mpirun", "mpiexec", "orterun", "prterun")
SPAWNERS = (*MPI_STARTERS, "srun", LAUNCHER)  # these start a server on other nodes too
MODE_FLAG = "--disaggregation-mode"
MODEL_FLAGS = ("--model-path", "--model")
FILE_FLAGS = ("--extra-engine-args", "--extra_llm_api_options", "--config")
SERVER_LISTS = ("-c", "--config_file")  # of a server that routes to others
# Subcommands of the server that take no model.
DISAGGREGATED_COMMANDS = ("disaggregated", "disaggregated_mpi_worker")
SUBCOMMANDS = (*DISAGGREGATED_COMMANDS, "mm_embedding_serve")
SIZE_FLAGS = {
    "tensor_parallel_size": ("--tp_size", "--tensor_parallel_size", "--tensor-parallel-size"),
    "pipeline_parallel_size": ("--pp_size", "--pipeline_parallel_size", "--pipeline-parallel-size"),
    "context_parallel_size": ("--cp_size", "--context_parallel_size"),
}


def holder(word: str) -> str:
    """Returns the program in a word that embeds the engine: Dynamo's worker or a tool."""
    if word.endswith(WORKER):
        return WORKER
    name = word.rpartition("/")[2]
    return name if name in TOOLS else ""


COMMAND = "trtllm-serve"
MODULE = "tensorrt_llm.commands.serve"  # the module for `python -m`
PROGRAMS = (COMMAND, LAUNCHER, "trtllm-bench", "trtllm-build", "trtllm-eval", "trtllm-prune")


def is_server(word: str) -> bool:
    """Returns whether a word is the name of the server's program."""
    return word.rpartition("/")[2] in (COMMAND, MODULE)


def mentions_server(word: str) -> bool:
    """Returns whether a word is itself a command line that starts a server."""
    return (COMMAND in word or MODULE in word) and re.search(r"\s", word) is not None
