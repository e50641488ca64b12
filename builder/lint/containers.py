"""Containers of manifests, Dynamo graphs and Compose files: what stands around them, and what they
start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ..diagnostics import Diagnostic, Location, closest, located
from ..documents import START, Yaml, value_at
from ..facts.release import ServerRole
from . import program_names, rules, script, script_workers
from .inner_places import inside
from .mentioned_gpus import of_label
from .mere_mentions import runs_code
from .pods import beside, listed, may_open, named_rows, number_of
from .script import Statement
from .section import below
from .server_commands import (
    COMMANDS,
    command_keys,
    command_texts,
    containers,
    environment,
    words_of,
)
from .serving import is_open
from .shell_values import Values
from .workers import ROLES, TOOLS, WORKER, Place, Worker, holder

GPU = "nvidia.com/gpu"
_RESOURCES = ("limits", "requests", "claims")
SIDE = "subComponentType"
VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_DEFAULT_PORT, _DEFAULT_HOST = "8000", "localhost"  # of the engine's own server
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_WAYS = ("httpGet", "tcpSocket", "grpc")  # of a probe that comes from outside
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Around:
    """What the objects around a container say of it: its GPUs and nodes, its role, and its pod with
    the labels and volumes of that."""

    gpu: str | None = None
    gpus: Place | None = None
    nodes: tuple[int, Place] | None = None
    others: Place | None = None  # those of each node but the first, where that is said
    role: ServerRole | None = None
    volumes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by the name of each
    labels: Mapping[str, Any] = field(default_factory=dict)
    pod: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total(self) -> Place | None:
        """The GPUs of all nodes of a server, at whichever of its numbers is the odd one."""
        if self.gpus is None or self.nodes is None:
            return self.gpus
        first, (nodes, place) = self.gpus, self.nodes
        other = self.others or first
        if other.count != first.count:
            whole = first.count + other.count * (nodes - 1)
            return replace(other, count=whole, on_all_nodes=True)
        return Place(first.count * nodes, place.location, place.path, True, first)


class Object(NamedTuple):
    """A mapping of a document, its path, what it and those above it say of a container, and the
    servers that it starts, whatever the release."""

    data: Mapping[str, Any]
    path: str
    around: Around
    servers: Sequence[Worker]


class _Read(NamedTuple):
    """The objects of a document when it held these data, and the first object at each path."""

    data: Any
    objects: Sequence[Object]
    by_path: Mapping[str, Object]


_READ: WeakKeyDictionary[Yaml, _Read] = WeakKeyDictionary()


def objects(document: Yaml) -> Sequence[Object]:
    """Every mapping of a document."""
    return _read(document).objects


def object_at(document: Yaml, path: str) -> Object | None:
    return _read(document).by_path.get(path)


def _read(document: Yaml) -> _Read:
    """A document's objects, found once for all that ask."""
    known = _READ.get(document)
    if known is None or known.data is not document.data:
        rows = _objects(document, document.data, "", Around())
        found = [Object(*row, list(_started(document, *row))) for row in rows]
        by_path: dict[str, Object] = {}
        for each in found:
            by_path.setdefault(each.path, each)
        known = _READ[document] = _Read(document.data, found, by_path)
    return known


def in_documents(documents: Sequence[Yaml]) -> list[Worker]:
    """The servers that the containers of a manifest start."""
    return [
        worker
        for document in documents
        if document.data  # of a hundred thousand, most may be empty
        for each in objects(document)
        for worker in each.servers
    ]


def diagnostics(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """What is wrong around containers of which some start a server."""
    yield from misspelt_resources(documents)
    yield from unreached_ports(documents)


def misspelt_resources(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """Limits of containers that are the one of GPUs, misspelt, and limits that are misspelt."""
    for document in documents:
        for path, place in document.places.items():
            above, _, key = path.rpartition(".resources.")
            if above and key not in _RESOURCES and (near := closest(key, _RESOURCES)):
                what = (
                    "is no part of a container's resources: what stands below it is not asked for"
                )
                yield located(place, path, what, f"did you mean {near}?", rules.MISSPELT_NAME)
            above, _, key = path.partition(".limits.")
            if key and key != GPU and not above.endswith(".limits") and closest(key, [GPU]):
                what, fix = "is no resource of a node", f"did you mean {GPU}?"
                yield located(place, path, what, fix, rules.MISSPELT_NAME)


def misspelt_programs(document: Yaml) -> Iterator[Diagnostic]:
    """Commands of containers whose program is the server's, misspelt."""
    for data, path, *_ in objects(document):
        rows = [
            row
            for key in command_keys(data)
            for row in words_of(document, data, path, key, _has_words)
        ]
        single = [word for _, word in rows if not _has_words(word.text)]
        yield from program_names.misspelt([Statement(tuple(single), "")] if single else [])
        for where, word in rows:
            if _has_words(word.text):
                for found in program_names.misspelt(script.statements(word.text)):
                    place = inside(document, where, word.text, found.location)
                    yield replace(found, location=place)


def _has_words(text: str) -> bool:
    return re.search(r"\s", text.strip()) is not None


def no_texts(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """Words of a container's command and rows of its environment that are no texts, as Kubernetes
    and Compose want them."""
    for document in documents:
        for path, data in containers(document.data, ""):
            for key in COMMANDS if "image" in data else ():
                words = data.get(key)
                for index, word in enumerate(listed(words)):
                    if isinstance(word, int | float):
                        where = below(path, f"{key}.{index}")
                        shown = str(word).lower() if isinstance(word, bool) else str(word)
                        what = f"{shown} is no text, and a container's words are texts"
                        fix = f'write "{shown}"'
                        yield located(document.locate(where), where, what, fix, rules.NO_TEXT)
            for index, row in enumerate(listed(data.get("environment"))):
                if isinstance(row, Mapping) and len(row) == 1 and "image" in data:
                    where, name = below(path, f"environment.{index}"), str(next(iter(row)))
                    what = "is a mapping in a list, of which Compose wants texts"
                    fix = f"write {name}=, with its value behind, or leave the dashes out"
                    yield located(document.locate(where), where, what, fix, rules.NO_TEXT)


def unreached_ports(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """Ports of containers at which their server does not listen."""
    for document in documents:
        for data, path, around, servers in objects(document):
            if len(servers) != 1 or not port_of(servers[0]):
                continue
            if not (_ports(data) or _is_asked(data)):
                continue
            yield from unreached_server(document, data, path, port_of(servers[0]), around)
            yield from _unreached_host(document, data, path, servers[0], around)


def _is_asked(data: Mapping[str, Any]) -> bool:
    """Whether something outside of a container asks it for its health, and no command in it."""
    return any(value_at(data, f"{probe}.{way}") for probe in PROBES for way in _WAYS)


def _unreached_host(
    document: Yaml, data: Mapping[str, Any], path: str, server: Worker, around: Around
) -> Iterator[Diagnostic]:
    """A server that listens inside of its container alone, of which ports are opened or asked."""
    words = [word for word, _ in server.words]
    if any(is_open(word) for word in words) or not any(map(script.is_server, words)):
        return
    shares = str(data.get("network_mode", "")).startswith(("host", "service:", "container:"))
    if shares or around.pod.get("hostNetwork") is True:
        return
    if not _is_asked(data) and next(beside(around.pod, data), None):
        return  # another container of the pod may hand on what is asked
    given = server.flag(("--host",))
    host = given[0].strip("\"'") if given else _DEFAULT_HOST
    if host in (_DEFAULT_HOST, "127.0.0.1"):
        place = given[1] if given else server.words[0][1]
        what = f"the server listens at {host} of its container, where nothing outside reaches it"
        yield located(place, path, what, "give --host 0.0.0.0", rules.PORT_UNREACHED, "warning")


def port_of(server: Worker) -> str:
    """Where the engine's own server listens; empty of any other."""
    if server.program or server.is_disaggregated:
        return ""
    given = server.flag(("--port",))
    return given[0].strip("\"'") if given else _DEFAULT_PORT


def unreached_server(
    document: Yaml, data: Mapping[str, Any], path: str, port: str, around: Around
) -> Iterator[Diagnostic]:
    """What is wrong where the one server of a container listens at a port: the ports that the
    container opens and those that its probes ask."""
    ports = _ports(data)
    if not port.isdigit():
        return
    if ports and port not in ports:
        where = below(path, next(iter(ports.values())))
        what = f"the server listens at {port}, and {', '.join(ports)} is opened"
        fix = f"open {port}, or give --port {next(iter(ports))}"
        yield located(document.locate(where), where, what, fix, rules.PORT_UNREACHED, "warning")
    for probe, way in product(PROBES, ("httpGet", "tcpSocket")):
        inner = f"{probe}.{way}.port"
        asked = str(value_at(data, inner) or "")
        number = number_of(data, asked)
        if number.isdigit() and number != port and not may_open(around.pod, data, number):
            where = below(path, inner)
            what = f"asks at {asked}, and the server listens at {port}"
            fix = f"give {port}, or --port {number}"
            yield located(document.locate(where), where, what, fix, rules.PORT_UNREACHED, "warning")


def _ports(data: Mapping[str, Any]) -> dict[str, str]:
    """The ports that a container opens, each with its path; none where one of them is no number."""
    ports: dict[str, str] = {}
    rows = data.get("ports")
    for index, row in enumerate(listed(rows)):
        key = next((key for key in ("containerPort", "target") if value_at(row, key)), None)
        text = str(value_at(row, key) if key else row).rpartition(":")[2].removesuffix("/tcp")
        if not text.isdigit():
            return {}
        ports[text] = f"ports.{index}.{key}" if key else f"ports.{index}"
    return ports


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
    kinds = {kind for key, label in _labels(data) if (kind := of_label(key, label))}
    if len(kinds) == 1:
        around = replace(around, gpu=kinds.pop())
    if count := number(value_at(data, "leaderWorkerTemplate.size")):
        where = below(path, "leaderWorkerTemplate.size")
        here = Place(count, document.locate(where), where)
        around = replace(around, nodes=(count, here), others=_of_followers(document, data, path))
    if "componentType" in data or "podTemplate" in data:  # a service of a Dynamo graph
        count = number(value_at(data, "multinode.nodeCount"))
        where = below(path, "multinode.nodeCount")
        role = ROLES.get(str(data.get(SIDE) or data.get("type")))
        nodes = (count, Place(count, document.locate(where), where)) if count else None
        around = replace(around, nodes=nodes, gpus=None, role=role)
    limits = value_at(data, "resources.limits")
    for key in (GPU, "gpu"):
        if isinstance(limits, Mapping) and (count := number(limits.get(key))):
            where = below(path, f"resources.limits.{key}")
            around = replace(around, gpus=Place(count, document.locate(where), where))
    devices = value_at(data, "deploy.resources.reservations.devices")
    for index, device in enumerate(listed(devices)):
        ids = device.get("device_ids") if isinstance(device, Mapping) else None
        count = len(ids) if isinstance(ids, list) else number(value_at(device, "count"))
        if count:
            key = "device_ids" if ids else "count"
            where = below(path, f"deploy.resources.reservations.devices.{index}.{key}")
            around = replace(around, gpus=Place(count, document.locate(where), where))
    if isinstance(labels := value_at(data, "metadata.labels"), Mapping) and "spec" in data:
        around = replace(around, labels=labels)
    if isinstance(data.get("containers"), list):
        around = replace(around, pod=data)
    for claim in listed(data.get("volumeClaimTemplates")):
        if name := value_at(claim, "metadata.name"):
            around = replace(around, volumes={**around.volumes, str(name): claim})
    if volumes := named_rows(data.get("volumes")):
        around = replace(around, volumes={**around.volumes, **volumes})
    for name, text, within in environment(data):
        if name in VISIBLE and re.fullmatch(r"\d+(,\d+)*", text):
            where = below(path, within)
            count = len(text.split(","))
            if around.gpus is None or count < around.gpus.count:  # of what it was given
                around = replace(around, gpus=Place(count, document.locate(where), where))
    return around


def _of_followers(document: Yaml, data: Mapping[str, Any], path: str) -> Place | None:
    """The GPUs of a pod that follows the leader of its group."""
    rows = "leaderWorkerTemplate.workerTemplate.spec.containers"
    for index, row in enumerate(listed(value_at(data, rows))):
        limits = value_at(row, "resources.limits")
        if isinstance(limits, Mapping) and (count := number(limits.get(GPU))):
            where = below(path, f"{rows}.{index}.resources.limits.{GPU}")
            return Place(count, document.locate(where), where)
    return None


def _labels(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The labels that a pod wants its nodes to have."""
    selector = data.get("nodeSelector")
    for key, label in selector.items() if isinstance(selector, Mapping) else ():
        yield str(key), str(label)
    required = f"affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
    terms = value_at(data, required)
    for term in listed(terms):
        rows = value_at(term, "matchExpressions")
        for row in listed(rows):
            values = value_at(row, "values")
            is_wanted = value_at(row, "operator") == "In" and isinstance(values, list)
            for label in values if is_wanted and isinstance(values, list) else ():
                yield str(value_at(row, "key")), str(label)


def _mounted(data: Mapping[str, Any], around: Around) -> dict[str, str]:
    """The config maps of a container by the folder that each is mounted at."""
    maps = {name: value_at(row, "configMap.name") for name, row in around.volumes.items()}
    return {
        str(row.get("mountPath")).rstrip("/"): str(maps[name])
        for name, row in named_rows(data.get("volumeMounts")).items()
        if maps.get(name)
    }


def _started(
    document: Yaml, data: Mapping[str, Any], path: str, around: Around
) -> Iterator[Worker]:
    """The server that a container starts, or those that a script in its command does."""
    keys = command_keys(data)
    if not keys or runs_code(command_texts(data)):
        return
    given = {name: text for name, text, _ in environment(data)}
    values = Values((), given)
    single: list[tuple[str, Location]] = []
    found: list[Sequence[tuple[str, Location]]] = []
    spread = False
    for key in keys:
        for where, word in words_of(document, data, path, key, _is_line):
            if not _is_line(word.text):
                single.append((values.expanded(word.text), word.location))
                continue
            spread = spread or script_workers.spreads(word.text)
            for words in script_workers.started(word.text, START, given):
                found.append([(each, inside(document, where, word.text, at)) for each, at in words])
    if any(script.is_server(word) or holder(word) for word, _ in single):
        found.append(single)
    for each in found:
        maps = _mounted(data, around)
        worker = Worker(each, around.total, around.gpu, around.role, path, maps)
        elsewhere = (spread or worker.starts_elsewhere) and not around.nodes
        yield replace(worker, gpus=None) if elsewhere or len(found) > 1 else worker


def _is_line(text: str) -> bool:
    """Whether a word of a list is a command line of its own, with a server in it."""
    named = any(name in text for name in (WORKER, *TOOLS))
    return script.mentions_server(text) or (named and re.search(r"\s", text) is not None)


def number(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isdigit() and len(text) < 7 and not isinstance(value, bool) else None
