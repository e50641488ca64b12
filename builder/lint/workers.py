"""A server that a manifest or a script starts, the engine's own or a worker of Dynamo: its words,
and what they say of its model, option file, sizes and side."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic, Location
from ..facts import hardware
from ..facts.release import ServerRole
from ..rules.context import RuleContext
from . import script, serving
from .embedded_formats import worker_flags
from .section import Section
from .server_commands import read_option_file
from .serving import Named

WORKER = "dynamo.trtllm"
TOOLS = ("trtllm-bench", "trtllm-eval")  # which hold the engine themselves
SPAWNERS = ("mpirun", "srun", script.LAUNCHER)  # they start a server on other nodes as well
MODE_FLAG = "--disaggregation-mode"
MODEL_FLAGS = ("--model-path", "--model")
_NAME_ENDS = re.compile(r"=|\s+")
FILE_FLAGS = ("--extra-engine-args", "--extra_llm_api_options", "--config")
_SERVER_LISTS = ("-c", "--config_file")  # of a server in front of others
# Those of the server that have no model behind them.
DISAGGREGATED = ("disaggregated", "disaggregated_mpi_worker")
_SUBCOMMANDS = (*DISAGGREGATED, "mm_embedding_serve")
_SIZE_FLAGS = {
    "tensor_parallel_size": ("--tp_size", "--tensor_parallel_size", "--tensor-parallel-size"),
    "pipeline_parallel_size": ("--pp_size", "--pipeline_parallel_size", "--pipeline-parallel-size"),
    "context_parallel_size": ("--cp_size", "--context_parallel_size"),
}
ROLES: Mapping[str, ServerRole] = {"prefill": "prefill", "decode": "decode"}


@dataclass(frozen=True, slots=True)
class Place:
    """A number of GPUs, and where it stands; `on_all_nodes` if they are those of several nodes.
    Where the number of nodes stands there, `each` are those of one of them."""

    count: int
    location: Location
    path: str
    on_all_nodes: bool = False
    each: Place | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """One server: its words with their places, its GPUs in all, their kind, its side, and where it
    finds files of config maps: the maps by the folder that each is mounted at."""

    words: Sequence[tuple[str, Location]]
    gpus: Place | None = None
    gpu: str | None = None
    role: ServerRole | None = None
    path: str = ""
    config_maps: Mapping[str, str] = field(default_factory=dict)

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
        short = ("-m",) if self.program in TOOLS else ()
        found = self.flag((*MODEL_FLAGS, *short)) or self._positional()
        return Named(found[0].strip("\"'"), found[1], self.path) if found else None

    def _positional(self) -> tuple[str, Location] | None:
        for index, (word, _) in enumerate(self.words):
            if script.is_server(word):
                rest = [row for row in self.words[index + 1 : index + 3] if row[0] != "serve"]
                named = rest and not rest[0][0].startswith("-") and rest[0][0] not in _SUBCOMMANDS
                return rest[0] if named else None
        return None

    @property
    def file_flag(self) -> tuple[str, Location] | None:
        """Its option file with its place."""
        return self.flag((*FILE_FLAGS, *_SERVER_LISTS) if self.is_disaggregated else FILE_FLAGS)

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
        found = {name: self.flag(flags) for name, flags in _SIZE_FLAGS.items()}
        return {name: row[0] for name, row in found.items() if row}

    @property
    def is_disaggregated(self) -> bool:
        """Whether its file says where it listens, and not its command."""
        return any(word in DISAGGREGATED for word, _ in self.words)

    @property
    def starts_elsewhere(self) -> bool:
        return any(word.rpartition("/")[2] in SPAWNERS for word, _ in self.words)


def holder(word: str) -> str:
    """The program with the engine in it that a word names: Dynamo's worker, or a tool."""
    if word.endswith(WORKER):
        return WORKER
    name = word.rpartition("/")[2]
    return name if name in TOOLS else ""


def unknown_models(workers: Sequence[Worker]) -> Iterator[Diagnostic]:
    """Models of servers of which no facts are known, each once."""
    seen = set()
    for worker in workers:
        model = worker.model
        if model and model.name not in seen and not serving.is_open(model.name):
            seen.add(model.name)
            if serving.find(model.name) is None:
                yield serving.unknown(model)


def may_name_a_file(text: str) -> bool:
    """Whether a text can hold a server's command with an option file."""
    starts = any(name in text for name in (script.COMMAND, WORKER, *TOOLS))
    return starts and any(flag in text for flag in FILE_FLAGS)


def option_files(worker: Worker, folder: Path) -> Iterator[Path]:
    """Where the option file of a command may lie that stands in a folder: where it says, or, as it
    may be mounted elsewhere, in the folder itself."""
    if worker.file and not serving.is_open(worker.file_path):
        yield Path(os.path.normpath(folder / worker.file_path))
    if worker.file and not serving.is_open(worker.file):
        yield folder / worker.file


def on_disk(servers: Iterable[Worker], folder: Path) -> dict[str, Mapping[str, Any]]:
    """The options of each file in or below a folder that servers read, by its name."""
    read_files = {row.file: read_option_file(row.file_path, folder) for row in servers if row.file}
    return {name: options for name, options in read_files.items() if options}


def by_file(sections: Iterable[Section]) -> dict[str, Mapping[str, Any]]:
    """The options of sections by the name of the file that each is in; of files of one name in
    several config maps by `map/name`."""
    rows = [(section, file_name(section)) for section in sections]
    names = Counter(name for _, name in rows)
    return {
        f"{row.config_map}/{name}" if row.config_map and names[name] > 1 else name: row.options
        for row, name in rows
    }


def file_name(section: Section) -> str:
    """The name of the file that a section is in, inside of another one."""
    inside = section.within.partition("data.")[2] or section.within.rpartition("/")[2]
    return section.file.rpartition("/")[2] or inside


def of_file(workers: Sequence[Worker], section: Section) -> Worker | None:
    """The server that reads an option file, if all that read it serve one model."""
    name = file_name(section).rpartition("/")[2]
    users = [row for row in workers if row.file and row.file == name]
    if section.config_map:
        users = [row for row in users if row.config_map in ("", section.config_map)]
    models = {row.model.name for row in users if row.model}
    return users[0] if users and len(models) <= 1 else None


def by_path(servers: Iterable[Worker]) -> dict[str, list[Worker]]:
    """The servers at each path of one document."""
    found: dict[str, list[Worker]] = {}
    for row in servers:
        found.setdefault(row.path, []).append(row)
    return found


def context(rule_context: RuleContext, worker: Worker | None) -> RuleContext:
    """The context of the options of a server: its model and GPU, where they are known."""
    if worker is None:
        return rule_context
    if worker.gpu:
        rule_context = replace(rule_context, gpu=hardware.load(worker.gpu))
    if worker.role:
        rule_context = replace(rule_context, role=worker.role)
    return serving.serving(rule_context, worker.model)
