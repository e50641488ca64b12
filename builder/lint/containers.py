"""Containers of manifests, Dynamo graphs and Compose files: what stands around them, and what they
start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..diagnostics import Diagnostic, Location, closest, located
from ..documents import START, Yaml, value_at
from ..facts import hardware
from ..facts.release import ServerRole
from . import script, script_workers
from .section import below
from .server_commands import COMMANDS, environment
from .shell_values import Values
from .workers import ROLES, WORKER, Place, Worker

_GPU = "nvidia.com/gpu"
_RESOURCES = ("limits", "requests", "claims")
_PRODUCT = "nvidia.com/gpu.product"


@dataclass(frozen=True, slots=True)
class Around:
    """What the objects around a container say of it."""

    gpu: str | None = None
    gpus: Place | None = None
    nodes: tuple[int, str] | None = None
    role: ServerRole | None = None

    @property
    def total(self) -> Place | None:
        """The GPUs of all nodes of a server."""
        if self.gpus is None or self.nodes is None:
            return self.gpus
        return replace(self.gpus, count=self.gpus.count * self.nodes[0])


def objects(document: Yaml) -> Iterator[tuple[Mapping[str, Any], str, Around]]:
    """Every mapping of a document with its path, and what it and those above say of a container."""
    yield from _objects(document, document.data, "", Around())


def in_documents(documents: Sequence[Yaml]) -> list[Worker]:
    """The servers that the containers of a manifest start."""
    return [
        worker
        for document in documents
        for data, path, around in objects(document)
        for worker in _started(document, data, path, around)
    ]


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


def _objects(
    document: Yaml, data: Any, path: str, around: Around
) -> Iterator[tuple[Mapping[str, Any], str, Around]]:
    if isinstance(data, Mapping):
        around = _around(document, data, path, around)
        yield data, path, around
    rows = enumerate(data) if isinstance(data, list) else ()
    for key, value in data.items() if isinstance(data, Mapping) else rows:
        if isinstance(value, Mapping | list):
            yield from _objects(document, value, below(path, str(key)), around)


def _around(document: Yaml, data: Mapping[str, Any], path: str, around: Around) -> Around:
    """What an object adds to what is around its containers."""
    selector = data.get("nodeSelector")
    product = selector.get(_PRODUCT) if isinstance(selector, Mapping) else None
    if product and (kind := _of_product(str(product))):
        around = replace(around, gpu=kind)
    if count := _number(value_at(data, "leaderWorkerTemplate.size")):
        where = below(path, "leaderWorkerTemplate.size")
        around = replace(around, nodes=(count, where))
    if "componentType" in data or "podTemplate" in data:  # a service of a Dynamo graph
        count = _number(value_at(data, "multinode.nodeCount"))
        where = below(path, "multinode.nodeCount")
        role = ROLES.get(str(data.get("subComponentType") or data.get("type")))
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
    for name, text, within in environment(data):
        if name == "CUDA_VISIBLE_DEVICES" and re.fullmatch(r"\d+(,\d+)*", text):
            where = below(path, within)
            count = len(text.split(","))
            around = replace(around, gpus=Place(count, document.locate(where), where))
    return around


def _started(
    document: Yaml, data: Mapping[str, Any], path: str, around: Around
) -> Iterator[Worker]:
    """The server that a container starts, or those that a script in its command does."""
    given = {name: text for name, text, _ in environment(data)}
    values = Values((), given)
    listed: list[tuple[str, Location]] = []
    found: list[Sequence[tuple[str, Location]]] = []
    spread = False
    for key in COMMANDS:
        for text, where in _texts(data, path, key):
            place = document.locate(where)
            if isinstance(data[key], list) and not _is_line(text):
                listed.append((values.expanded(text), place))
                continue
            start = document.blocks.get(where)
            spread = spread or script_workers.spreads(text)
            for words in script_workers.started(text, start or START, given):
                found.append(words if start else [(word, place) for word, _ in words])
    if any(script.is_server(word) or word.endswith(WORKER) for word, _ in listed):
        found.append(listed)
    for each in found:
        worker = Worker(each, around.total, around.gpu, around.role, path)
        elsewhere = (spread or worker.starts_elsewhere) and not around.nodes
        yield replace(worker, gpus=None) if elsewhere or len(found) > 1 else worker


def _texts(data: Mapping[str, Any], path: str, key: str) -> Iterator[tuple[str, str]]:
    """The texts of a command, each with its path."""
    value = data.get(key)
    if isinstance(value, str):
        yield value, below(path, key)
    for index, text in enumerate(value if isinstance(value, list) else ()):
        yield str(text), below(path, f"{key}.{index}")


def _is_line(text: str) -> bool:
    """Whether a word of a list is a command line of its own, with a server in it."""
    return script.mentions_server(text) or (WORKER in text and re.search(r"\s", text) is not None)


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
