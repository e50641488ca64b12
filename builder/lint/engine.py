"""How engines are recognised: the records of `builder/data/formats`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..documents import DATA
from ..facts import data_file, plain_data
from ..facts.release import Release
from ..facts.release.table import FORMAT_TABLE
from ..schema import Text

VLLM_FORMAT = DATA / "formats" / "vllm.yaml"
VLLM = "vllm"
ENGINE_FILE = "model.json"  # of Triton's backend


@dataclass(frozen=True, slots=True)
class Formats:
    """The words of the file; its comments say what each list is."""

    source: Text
    program: Text
    subcommand: Text
    modules: tuple[Text, ...]
    workers: tuple[Text, ...]
    images: tuple[Text, ...]
    extended_images: tuple[Text, ...]
    bare_images: tuple[Text, ...]
    publishers: tuple[Text, ...]
    mirrors: tuple[Text, ...]
    extensions: tuple[Text, ...]
    flag_lists: tuple[Text, ...]
    other_programs: tuple[Text, ...]
    model_commands: tuple[Text, ...]
    handed_on_beside: Text
    handed_on_by: tuple[Text, ...]
    option_holders: tuple[Text, ...]
    asked_gpus: dict[str, Text]
    roles: tuple[Text, ...]
    minimum: tuple[Text, ...]
    signature: tuple[Text, ...]
    marks: tuple[Text, ...]
    converted: tuple[Text, ...]
    json_flags: tuple[Text, ...]
    python_classes: tuple[Text, ...]
    python_options: tuple[Text, ...]
    wrapper: Text
    wrapped_in: dict[str, Text]
    wrapped_beside: Text
    wrapped_not: Text
    request_class: Text
    request_names: tuple[Text, ...]
    request_words: dict[str, Text]
    python_numbers: dict[str, Text]
    brought_by: dict[str, Text]
    lifted: dict[str, Text]
    former: dict[str, Text]
    former_values: tuple[Text, ...]
    former_variables: dict[str, Text]
    foreign: dict[str, Text]


@cache
def formats() -> Formats:
    return data_file.load(VLLM_FORMAT, Formats)


@cache
def image_pattern() -> re.Pattern[str]:
    """An image of the server; `extended` where it is one that is built on it."""
    own, extended = (
        "|".join(map(re.escape, sorted(rows, key=len, reverse=True)))
        for rows in (formats().images, formats().extended_images)
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
    """Names by which other formats are recognised: keys that are `holders` of options, `signature`
    options that no other engine has, and those of `others`."""

    source: Text
    holders: tuple[Text, ...]
    signature: tuple[Text, ...]
    others: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class WorkerFlags:
    """The flags of a program with the engine in it: the `options` that they set, the `switches`
    among them, those that take `json`, the `prefix` of those that name an option by its path, the
    `modes` or tasks that it has, and `others`. Where it `holds` some modes, those of the rest have
    flags of their own."""

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
    """What stands around engine options in files of others."""
    found: Mapping[str, Any] = data_file.load(SURROUNDINGS, plain_data.SURROUNDINGS_FILE)
    return found


@cache
def format_table(name: str) -> Release:
    """The keys of a file format, in the words of a release table."""
    path = DATA / "formats" / f"{name}.yaml"
    return Release(data_file.load(path, FORMAT_TABLE), path)


def fields_of(table: Release, name: str) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = table.table["types"][name]["fields"]
    return fields


TENSORRT_LLM = "tensorrt_llm"
WORKER = "dynamo.trtllm"
LAUNCHER = "trtllm-llmapi-launch"
TOOLS = ("trtllm-bench", "trtllm-eval")  # which hold the engine themselves
SPAWNERS = ("mpirun", "srun", LAUNCHER)  # they start a server on other nodes as well
MODE_FLAG = "--disaggregation-mode"
MODEL_FLAGS = ("--model-path", "--model")
FILE_FLAGS = ("--extra-engine-args", "--extra_llm_api_options", "--config")
SERVER_LISTS = ("-c", "--config_file")  # of a server in front of others
# Those of the server that have no model behind them.
DISAGGREGATED_COMMANDS = ("disaggregated", "disaggregated_mpi_worker")
SUBCOMMANDS = (*DISAGGREGATED_COMMANDS, "mm_embedding_serve")
SIZE_FLAGS = {
    "tensor_parallel_size": ("--tp_size", "--tensor_parallel_size", "--tensor-parallel-size"),
    "pipeline_parallel_size": ("--pp_size", "--pipeline_parallel_size", "--pipeline-parallel-size"),
    "context_parallel_size": ("--cp_size", "--context_parallel_size"),
}


def holder(word: str) -> str:
    """The program with the engine in it that a word names: Dynamo's worker, or a tool."""
    if word.endswith(WORKER):
        return WORKER
    name = word.rpartition("/")[2]
    return name if name in TOOLS else ""


COMMAND = "trtllm-serve"
MODULE = "tensorrt_llm.commands.serve"  # the same, as `python -m` starts it
PROGRAMS = (COMMAND, LAUNCHER, "trtllm-bench", "trtllm-build", "trtllm-eval", "trtllm-prune")


def is_server(word: str) -> bool:
    """Whether a word is the name of the server's program."""
    return word.rpartition("/")[2] in (COMMAND, MODULE)


def mentions_server(word: str) -> bool:
    """Whether a word is a command line of its own, with a server in it."""
    return (COMMAND in word or MODULE in word) and re.search(r"\s", word) is not None
