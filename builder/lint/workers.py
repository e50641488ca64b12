"""The servers that a manifest or a script starts: their GPUs, options and models.

Read from what the engine's own server and the workers of Dynamo are started with, in containers of
Kubernetes, Dynamo graphs and Compose files, and in scripts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic, Location, closest, located
from ..documents import Yaml, value_at
from ..facts import hardware
from ..facts.release import ServerRole
from ..rules.context import RuleContext
from . import job_script, script, serving
from .section import below
from .server_commands import environment
from .serving import Named
from .shell_values import Values
from .surroundings import gpu_diagnostic, world_size

WORKER = "dynamo.trtllm"
_SPAWNERS = ("mpirun", "srun", job_script.LAUNCHER)  # they start a server on other nodes as well
MODE_FLAG = "--disaggregation-mode"
MODEL_FLAGS = ("--model-path", "--model")
FILE_FLAGS = ("--extra-engine-args", "--extra_llm_api_options", "--config")
_SIZE_FLAGS = {
    "tensor_parallel_size": ("--tp_size", "--tensor_parallel_size", "--tensor-parallel-size"),
    "pipeline_parallel_size": ("--pp_size", "--pipeline_parallel_size", "--pipeline-parallel-size"),
    "context_parallel_size": ("--cp_size", "--context_parallel_size"),
}
_GPU = "nvidia.com/gpu"
_RESOURCES = ("limits", "requests", "claims")
_PRODUCT = "nvidia.com/gpu.product"
_PIECE = re.compile(r"[^\s\\]+")
_ROLES: Mapping[str, ServerRole] = {"prefill": "prefill", "decode": "decode"}


@dataclass(frozen=True, slots=True)
class Place:
    """A number of GPUs, and where it stands."""

    count: int
    location: Location
    path: str


@dataclass(frozen=True, slots=True)
class Worker:
    """One server: its words with their places, its GPUs in all, their kind, its side."""

    words: Sequence[tuple[str, Location]]
    gpus: Place | None = None
    gpu: str | None = None
    role: ServerRole | None = None
    path: str = ""

    def flag(self, names: Iterable[str]) -> tuple[str, Location] | None:
        """The value of the first of these flags that is given."""
        for index, (word, place) in enumerate(self.words):
            name, equals, value = word.partition("=")
            if name in names:
                return (value, place) if equals else next(iter(self.words[index + 1 :]), None)
        return None

    @property
    def model(self) -> Named | None:
        found = self.flag(MODEL_FLAGS) or self._positional()
        return Named(found[0].strip("\"'"), found[1], self.path) if found else None

    def _positional(self) -> tuple[str, Location] | None:
        for index, (word, _) in enumerate(self.words):
            if script.is_server(word):
                rest = [row for row in self.words[index + 1 : index + 3] if row[0] != "serve"]
                return rest[0] if rest and not rest[0][0].startswith("-") else None
        return None

    @property
    def file_path(self) -> str:
        """Its option file as the command names it."""
        found = self.flag(FILE_FLAGS)
        return found[0].strip("\"'") if found else ""

    @property
    def file(self) -> str:
        """The last part of the name of its option file."""
        return self.file_path.rpartition("/")[2]

    @property
    def sizes(self) -> dict[str, str]:
        """The parallel sizes that its command gives."""
        found = {name: self.flag(flags) for name, flags in _SIZE_FLAGS.items()}
        return {name: row[0] for name, row in found.items() if row}

    @property
    def starts_elsewhere(self) -> bool:
        return any(word.rpartition("/")[2] in _SPAWNERS for word, _ in self.words)


@dataclass(frozen=True, slots=True)
class Around:
    """What the objects around a container say of it."""

    gpu: str | None = None
    gpus: Place | None = None
    nodes: tuple[int, str] | None = None
    role: ServerRole | None = None


def in_documents(documents: Sequence[Yaml]) -> list[Worker]:
    """The servers that the containers of a manifest start."""
    return [row for document in documents for row in _walk(document, document.data, "", Around())]


def _walk(document: Yaml, data: Any, path: str, around: Around) -> Iterator[Worker]:
    if isinstance(data, list):
        for index, value in enumerate(data):
            yield from _walk(document, value, below(path, str(index)), around)
    if not isinstance(data, Mapping):
        return
    around = around_of(document, data, path, around)
    if seen := _visible_of(document, data, path):
        around = replace(around, gpus=seen)
    if "command" in data or "args" in data:
        words = [*_words(document, data, path, "command"), *_words(document, data, path, "args")]
        if any("$" in word for word, _ in words):
            values = Values((), {name: text for name, text, _ in environment(data)})
            words = [(values.expanded(word), place) for word, place in words]
        if any(script.is_server(word) or word.endswith(WORKER) for word, _ in words):
            worker = Worker(words, total(around), around.gpu, around.role, path)
            spread = worker.starts_elsewhere and not around.nodes
            yield replace(worker, gpus=None) if spread else worker
    for key, value in data.items():
        if isinstance(value, Mapping | list):
            yield from _walk(document, value, below(path, str(key)), around)


def around_of(document: Yaml, data: Mapping[str, Any], path: str, around: Around) -> Around:
    """What an object adds to what is around its containers."""
    selector = data.get("nodeSelector")
    product = selector.get(_PRODUCT) if isinstance(selector, Mapping) else None
    if product and (kind := _of_product(str(product))):
        around = replace(around, gpu=kind)
    if count := _number(value_at(data, "leaderWorkerTemplate.size")):
        where = below(path, "leaderWorkerTemplate.size")
        around = replace(around, nodes=(count, where))
    if "componentType" in data:  # a service of a Dynamo graph
        count = _number(value_at(data, "multinode.nodeCount"))
        where = below(path, "multinode.nodeCount")
        role = _ROLES.get(str(data.get("subComponentType")))
        around = replace(around, nodes=(count, where) if count else None, gpus=None, role=role)
    limits = value_at(data, "resources.limits")
    for key in (_GPU, "gpu"):
        if isinstance(limits, Mapping) and (count := _number(limits.get(key))):
            where = below(path, f"resources.limits.{key}")
            around = replace(around, gpus=Place(count, document.locate(where), where))
    devices = value_at(data, "deploy.resources.reservations.devices")
    for index, device in enumerate(devices if isinstance(devices, list) else ()):
        ids = device.get("device_ids") if isinstance(device, Mapping) else None
        count = len(ids) if isinstance(ids, list) else _number(value_at(device, "count"))
        if count:
            key = "device_ids" if ids else "count"
            where = below(path, f"deploy.resources.reservations.devices.{index}.{key}")
            around = replace(around, gpus=Place(count, document.locate(where), where))
    return around


def _visible_of(document: Yaml, data: Mapping[str, Any], path: str) -> Place | None:
    """The GPUs that a variable of a container leaves it."""
    for name, text, within in environment(data):
        if name == "CUDA_VISIBLE_DEVICES" and re.fullmatch(r"\d+(,\d+)*", text):
            where = below(path, within)
            return Place(len(text.split(",")), document.locate(where), where)
    return None


def total(around: Around) -> Place | None:
    """The GPUs of all nodes of a server."""
    if around.gpus is None or around.nodes is None:
        return around.gpus
    return replace(around.gpus, count=around.gpus.count * around.nodes[0])


def misspelt_resources(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """Limits of containers that are the one of GPUs, misspelt, and limits that are misspelt."""
    for document in documents:
        for path, place in document.places.items():
            above, _, key = path.rpartition(".resources.")
            if above and key not in _RESOURCES and (near := closest(key, _RESOURCES)):
                what = (
                    "is no part of a container's resources: what stands below it is not asked for"
                )
                yield located(place, path, what, f"did you mean {near}?", "misspelt-name")
            above, _, key = path.partition(".limits.")
            if key and key != _GPU and not above.endswith(".limits") and closest(key, [_GPU]):
                what, fix = "is no resource of a node", f"did you mean {_GPU}?"
                yield located(place, path, what, fix, "misspelt-name")


def _of_product(label: str) -> str | None:
    """The kind of GPU that a label of a node names."""
    for name in hardware.known():
        product = hardware.load(name).kubernetes_product.value
        if label == product or label.startswith(f"{product}-"):
            return name
    return None


def _number(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isdigit() and len(text) < 7 and not isinstance(value, bool) else None


def _words(
    document: Yaml, container: Mapping[str, Any], path: str, key: str
) -> Iterator[tuple[str, Location]]:
    """The words of a command line, those of a shell's text one by one."""
    value = container.get(key)
    texts = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    for index, text in enumerate(texts):
        where = below(path, f"{key}.{index}" if isinstance(value, list) else key)
        block = document.blocks.get(where)
        place = document.locate(where)
        for piece in _PIECE.finditer(str(text)):
            lines = str(text).count("\n", 0, piece.start())
            at = Location(block.line + lines, block.column) if block else place
            yield piece.group(), at


_VISIBLE = re.compile(r"\bCUDA_VISIBLE_DEVICES=[\"']?([0-9]+(?:,[0-9]+)*)\b[\"']?")
_SET = re.compile(rf"^\s*(?:export\s+)?{_VISIBLE.pattern}\s*(?:#.*)?$", re.M)
_DOCKER = re.compile(r"--gpus[= ]+[\"']*(?:device=([0-9]+(?:,[0-9]+)*)|([0-9]+))")
_GRES = re.compile(r"gpu:(?:([a-z]\w*):)?([0-9]+)")


def in_script(text: str) -> list[Worker]:
    """The servers that a script starts, with the variables put in whose values it sets."""
    read = script.read(text)
    values = Values(read.statements)
    gpus, gpu = _visible(text), None
    lines = text.splitlines()
    is_job = job_script.is_job(text)
    if is_job:
        gpus, gpu = _of_job(text)
    found = []
    for command in read.commands:
        words = [(word.text, word.location) for word in values.words(command)]
        own = _of_command(lines, command[0].location.line) if command and not is_job else None
        found.append(Worker([(script.COMMAND, Location(1, 1)), *words], own or gpus, gpu))
    for row in read.statements if WORKER in text else ():
        at = next((n for n, word in enumerate(row.words) if word.text == WORKER), None)
        if at is not None:
            words = [(word.text, word.location) for word in values.words(row.words[at:])]
            own = None if is_job else _of_command(lines, row.words[at].location.line)
            found.append(Worker(words, own or gpus, gpu, _mode(words)))
    return found


def _mode(words: Sequence[tuple[str, Location]]) -> ServerRole | None:
    """The side that a worker is told to be."""
    given = Worker(words).flag((MODE_FLAG,))
    return _ROLES.get(given[0]) if given else None


def _visible(text: str) -> Place | None:
    """The GPUs that a line of its own leaves visible, if there is one such line."""
    found = list(_SET.finditer(text))
    if len(found) != 1:
        return None
    place = Location(text.count("\n", 0, found[0].start(1)) + 1, 1)
    return Place(len(found[0][1].split(",")), place, "CUDA_VISIBLE_DEVICES")


def _of_command(lines: Sequence[str], line: int) -> Place | None:
    """The GPUs that stand before a server on its own command line: a variable, or docker's."""
    first = line
    while first > 1 and lines[first - 2].rstrip().endswith("\\"):
        first -= 1
    for number in range(first, line + 1):
        before = lines[number - 1].partition(script.COMMAND)[0] if number == line else ""
        text = before or (lines[number - 1] if number < line else "")
        if found := _VISIBLE.search(text):
            where = Location(number, found.start() + 1)
            return Place(len(found[1].split(",")), where, "CUDA_VISIBLE_DEVICES")
        if found := _DOCKER.search(text):
            count = len(found[1].split(",")) if found[1] else int(found[2])
            return Place(count, Location(number, found.start() + 1), "--gpus")
    return None


def docker_gpus(words: Sequence[tuple[str, Location]]) -> Place | None:
    """The GPUs that a command gives a container."""
    found = _DOCKER.search(" ".join(text for text, _ in words))
    if not found:
        return None
    place = next(where for text, where in words if text.startswith("--gpus"))
    return Place(len(found[1].split(",")) if found[1] else int(found[2]), place, "--gpus")


def _of_job(text: str) -> tuple[Place | None, str | None]:
    """The GPUs of a whole job and their kind, as far as its directives say it."""
    job = job_script.read(text)
    given = {row.name: row for row in job.parts[0]} if len(job.parts) == 1 else {}
    nodes = job.number("nodes")
    for name in ("gpus", "gpus-per-node", "gres"):
        if (row := given.get(name)) is None or not row.value:
            continue
        value = row.value if name == "gres" else f"gpu:{row.value}"
        found = _GRES.fullmatch(value.split(",")[0])
        if not found:
            continue
        kind = found[1] if found[1] in hardware.known() else None
        count = int(found[2])
        whole = count if name == "gpus" else count * nodes if nodes else None
        place = Place(whole, row.location, f"--{name}") if whole else None
        return place, kind
    return None, None


def diagnostics(
    workers: Sequence[Worker], options: Mapping[str, Mapping[str, Any]], in_job: bool = False
) -> Iterator[Diagnostic]:
    """GPUs against ranks, and models that differ between the two sides of one service.

    `options` are those of each option file, by the last part of its name. A job may hold several
    servers: they share its GPUs.
    """
    shared = in_job and len(workers) > 1
    for worker in workers:
        known = not worker.file or worker.file in options
        if worker.gpus is None or not known or shared:
            continue
        world = world_size({**options.get(worker.file, {}), **worker.sizes})
        if world is None:
            continue
        gpus = worker.gpus
        found = gpu_diagnostic(world, gpus.count, gpus.location, gpus.path)
        if found and (worker.sizes or worker.file or found.severity == "error"):
            yield found
    yield from _models(workers)


def unknown_models(workers: Sequence[Worker]) -> Iterator[Diagnostic]:
    """Models of servers of which no facts are known, each once."""
    seen = set()
    for worker in workers:
        model = worker.model
        if model and model.name not in seen and not serving.is_open(model.name):
            seen.add(model.name)
            if serving.find(model.name) is None:
                yield serving.unknown(model)


def _models(workers: Sequence[Worker]) -> Iterator[Diagnostic]:
    prefill = [row.model for row in workers if row.role == "prefill" and row.model]
    for worker in workers:
        model = worker.model if worker.role == "decode" else None
        if model and prefill and model.name not in {row.name for row in prefill}:
            what = f"{model.name}, but the prefill worker has {prefill[0].name}"
            fix = "serve the same checkpoint on both"
            yield located(model.location, model.path, what, fix, "disagg-model")


def may_name_a_file(text: str) -> bool:
    """Whether a text can hold a server's command with an option file."""
    starts = script.COMMAND in text or WORKER in text
    return starts and any(flag in text for flag in FILE_FLAGS)


def option_files(worker: Worker, folder: Path) -> Iterator[Path]:
    """Where the option file of a command may lie that stands in a folder: where it says, or, as it
    may be mounted elsewhere, in the folder itself."""
    if worker.file and not serving.is_open(worker.file_path):
        yield Path(os.path.normpath(folder / worker.file_path))
    if worker.file and not serving.is_open(worker.file):
        yield folder / worker.file


def of_file(workers: Sequence[Worker], name: str) -> Worker | None:
    """The server that reads this option file, if all that read it serve one model."""
    users = [row for row in workers if row.file and row.file == name.rpartition("/")[2]]
    models = {row.model.name for row in users if row.model}
    return users[0] if users and len(models) <= 1 else None


def context(rule_context: RuleContext, worker: Worker | None) -> RuleContext:
    """The context of the options of a server: its model and GPU, where they are known."""
    if worker is None:
        return rule_context
    if worker.gpu:
        rule_context = replace(rule_context, gpu=hardware.load(worker.gpu))
    if worker.role:
        rule_context = replace(rule_context, role=worker.role)
    return serving.serving(rule_context, worker.model)
