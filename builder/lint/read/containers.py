"""Reads the containers of manifests, Dynamo graphs and Compose files, and the servers they
start."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ...diagnostics import Diagnostic
from ...documents import Yaml, value_at
from ...facts import engines
from ...facts.release import ServerRole
from ..engine import (
    formats,
    image_pattern,
    is_server,
    mentions_server,
    recorded,
    spawners,
)
from ..model import ROLES, Gpus, Named, Server, Word, below
from .commands import (
    MAX_DEPTH,
    are_flags,
    image_starts_server,
    in_block,
    in_script,
    mentions,
    of_statement,
)
from .gpu_names import of_label
from .shell import Script, read_script, runs_code, statements
from .shell_values import Values
from .yaml_text import inside, template_as_shell

GPU = "nvidia.com/gpu"
SIDE = "subComponentType"
VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class Around:
    """What the objects around a container define: GPUs, nodes, role, volumes, labels and pod."""

    gpu: str | None = None
    gpus: Gpus | None = None
    nodes: tuple[int, Gpus] | None = None
    others: Gpus | None = None  # GPUs of each node except the first, if they differ
    role: ServerRole | None = None
    volumes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by name
    labels: Mapping[str, Any] = field(default_factory=dict)
    pod: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total(self) -> Gpus | None:
        """Returns the GPUs of all nodes of a server, located at the node count or the differing
        number."""
        if self.gpus is None or self.nodes is None:
            return self.gpus
        first, (nodes, place) = self.gpus, self.nodes
        other = self.others or first
        if other.count != first.count:
            whole = first.count + other.count * (nodes - 1)
            return replace(other, count=whole, on_all_nodes=True)
        return Gpus(first.count * nodes, place.location, place.path, True, first)


class Object(NamedTuple):
    """A mapping of a document, with its path, its surroundings and the servers that it starts."""

    data: Mapping[str, Any]
    path: str
    around: Around
    servers: list[Server]

    def of_engine(self, engine: str) -> list[Server]:
        return [row for row in self.servers if row.engine == engine]


class _Read(NamedTuple):
    """The objects of a document, the first object at each path, and the commands in them by engine.
    `data` is the content of the document at the time; the cache is valid only for this content."""

    data: Any
    objects: Sequence[Object]
    by_path: Mapping[str, Object]
    lines: dict[str, list[Server]]


_READ: WeakKeyDictionary[Yaml, _Read] = WeakKeyDictionary()


def objects(document: Yaml) -> Sequence[Object]:
    """Returns every mapping of a document."""
    return _read(document).objects


def object_at(document: Yaml, path: str) -> Object | None:
    return _read(document).by_path.get(path)


def _read(document: Yaml) -> _Read:
    """Returns the objects of a document; they are read once and cached."""
    known = _READ.get(document)
    if known is None or known.data is not document.data:
        found = [Object(*row, []) for row in _objects(document, document.data, "", Around())]
        by_path: dict[str, Object] = {}
        for each in found:
            by_path.setdefault(each.path, each)
        lines: dict[str, list[Server]] = {}
        for engine in recorded():
            lines[engine] = []
            for path, rows in _lines(document, by_path, engine):
                lines[engine] += rows
                by_path[path].servers.extend(rows)
        known = _READ[document] = _Read(document.data, found, by_path, lines)
    return known


def in_documents(documents: Sequence[Yaml], engine: str = "") -> list[Server]:
    """Returns the servers of an engine, or of the default one, that containers start."""
    found, engine = list[Server](), engine or engines.default().name
    for document in documents:
        for each in objects(document) if document.data else ():  # most documents may be empty
            found += each.of_engine(engine)
    return found


def _placed(rows: Sequence[Server], here: Object) -> Iterator[Server]:
    """Yields the servers of a container in its surroundings. Several servers share its GPUs."""
    around, maps = here.around, _mounted(here.data, here.around)
    is_alone = len(rows) == 1
    for row in rows:
        model, gpus = None, None
        if not row.name and row.words and not row.words[0].text.startswith("-"):
            model = Named(row.words[0].text, row.words[0].location, here.path)
        if is_alone and not _is_spread(row, here):
            gpus = row.gpus or around.total
        yield replace(
            row,
            gpus=gpus,
            gpu=around.gpu,
            role=around.role,
            path=here.path,
            within=row.within or here.path,
            is_alone=is_alone,
            config_maps=maps,
            named=model,
        )


def _is_spread(line: Server, here: Object) -> bool:
    """Returns whether a container may start its server on nodes that are unknown."""
    is_far = any(word.text.rpartition("/")[2] in spawners() for word in line.before)
    return is_far and not here.around.nodes


def port_of(server: Server) -> str:
    """Returns the port of a server; empty for a worker or a tool, which have none."""
    if server.program or server.is_disaggregated:
        return ""
    given = server.flag(("--port",))
    return given[0].strip("\"'") if given else server.formats.default_port


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
    """Returns the surroundings of containers, extended by what this object defines."""
    kinds = {kind for key, label in _labels(data) if (kind := of_label(key, label))}
    if len(kinds) == 1:
        around = replace(around, gpu=kinds.pop())
    if count := number(value_at(data, "leaderWorkerTemplate.size")):
        where = below(path, "leaderWorkerTemplate.size")
        here = Gpus(count, document.locate(where), where)
        around = replace(around, nodes=(count, here), others=_of_followers(document, data, path))
    if "componentType" in data or "podTemplate" in data:  # a service of a Dynamo graph
        count = number(value_at(data, "multinode.nodeCount"))
        where = below(path, "multinode.nodeCount")
        role = ROLES.get(str(data.get(SIDE) or data.get("type")))
        nodes = (count, Gpus(count, document.locate(where), where)) if count else None
        around = replace(around, nodes=nodes, gpus=None, role=role)
    limits = value_at(data, "resources.limits")
    for key in (GPU, "gpu"):
        if isinstance(limits, Mapping) and (count := number(limits.get(key))):
            where = below(path, f"resources.limits.{key}")
            around = replace(around, gpus=Gpus(count, document.locate(where), where))
    devices = value_at(data, "deploy.resources.reservations.devices")
    for index, device in enumerate(listed(devices)):
        ids = device.get("device_ids") if isinstance(device, Mapping) else None
        count = len(ids) if isinstance(ids, list) else number(value_at(device, "count"))
        if count:
            key = "device_ids" if ids else "count"
            where = below(path, f"deploy.resources.reservations.devices.{index}.{key}")
            around = replace(around, gpus=Gpus(count, document.locate(where), where))
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
            if around.gpus is None or count < around.gpus.count:  # a subset of the assigned GPUs
                around = replace(around, gpus=Gpus(count, document.locate(where), where))
    return around


def _of_followers(document: Yaml, data: Mapping[str, Any], path: str) -> Gpus | None:
    """Returns the GPUs of a worker pod in a leader-worker group."""
    rows = "leaderWorkerTemplate.workerTemplate.spec.containers"
    for index, row in enumerate(listed(value_at(data, rows))):
        limits = value_at(row, "resources.limits")
        if isinstance(limits, Mapping) and (count := number(limits.get(GPU))):
            where = below(path, f"{rows}.{index}.resources.limits.{GPU}")
            return Gpus(count, document.locate(where), where)
    return None


def _labels(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the node labels that a pod requires; affinities are not read."""
    selector = data.get("nodeSelector")
    for key, label in selector.items() if isinstance(selector, Mapping) else ():
        yield str(key), str(label)


def _mounted(data: Mapping[str, Any], around: Around) -> dict[str, str]:
    """Returns the config maps of a container by mount folder."""
    maps = {name: value_at(row, "configMap.name") for name, row in around.volumes.items()}
    return {
        str(row.get("mountPath")).rstrip("/"): str(maps[name])
        for name, row in named_rows(data.get("volumeMounts")).items()
        if maps.get(name)
    }


def number(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isdigit() and len(text) < 7 and not isinstance(value, bool) else None


def beside(pod: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the other containers that run in the same pod."""
    for key in ("containers", "initContainers"):
        for row in listed(pod.get(key)):
            stays = key == "containers" or value_at(row, "restartPolicy") == "Always"
            if stays and isinstance(row, Mapping) and row is not data:
                yield row


def may_open(pod: Mapping[str, Any], data: Mapping[str, Any], port: str) -> bool:
    """Returns whether another container of the pod may listen on a port, given by number or name. A
    container that declares no ports may listen on any port."""
    for row in beside(pod, data):
        ports = listed(row.get("ports"))
        if not ports or port in _ends(ports):
            return True
    return False


def opens(data: Mapping[str, Any], port: str) -> bool:
    """Returns whether a container declares a port, given by number or name."""
    return port in _ends(listed(data.get("ports")))


def _ends(ports: Sequence[Any]) -> set[str]:
    return {str(value_at(row, key)) for row in ports for key in ("containerPort", "name")}


def number_of(data: Mapping[str, Any], port: str) -> str:
    """Returns the number of a port; `port` may be a name that the container defines."""
    row = named_rows(data.get("ports")).get(port)
    return str(row.get("containerPort")) if row else port


def named_rows(rows: Any) -> dict[str, Mapping[str, Any]]:
    """Returns the mappings of a list by their `name`."""
    return {str(row.get("name")): row for row in listed(rows) if isinstance(row, Mapping)}


def listed(rows: Any) -> Sequence[Any]:
    return rows if isinstance(rows, list) else ()


# Keys that hold the command of a container, a service or a launcher, in the order of the words.
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
    """Returns the keys of a container that hold its command, in the order of the words."""
    return [key for key in COMMANDS if key in container]


def _is_long(text: str) -> bool:
    """Returns whether a text has several commands or lines."""
    return len(statements(text)) > 1 or "\n" in text.strip()


def _is_read(text: str) -> bool:
    """Returns whether a text of several commands may start a server or write its options."""
    return mentions_server(text) or "<<" in text


@dataclass(frozen=True, slots=True)
class ContainerCommand:
    """The script that a container runs, with its `path` in the manifest.

    Locations count from the beginning of the script in `document`; if `document` is `None`, they
    are locations in the manifest.
    """

    path: str
    script: Script
    lines: Sequence[Server]
    document: Yaml | None = None

    def move(self, diagnostic: Diagnostic) -> Diagnostic:
        """Moves an error of the script to its location in the manifest."""
        place = diagnostic.location
        if self.document:
            place = inside(self.document, self.path, self.script.text, place)
        within = ": ".join(filter(None, (self.path, diagnostic.within)))
        return replace(diagnostic, location=place, within=within)


def container_commands(document: Yaml) -> Iterator[ContainerCommand]:
    """Yields the container commands of a document that start a server or write files."""
    for path, container in containers(document.data, ""):
        here = _read(document).by_path[path]
        given = {name: text for name, text, _ in environment(container)}
        words = [
            row
            for key in command_keys(container)
            for row in words_of(document, container, path, key, _is_read)
        ]
        if runs_code([word.text for _, word in words]):
            continue
        for index, (where, word) in enumerate(words):
            if is_server(word.text):
                rest = [later for _, later in words[index + 1 :]]
                line = Server(tuple(Values((), given).words(rest)), word.text)
                lines = list(_placed([line], here))
                yield ContainerCommand(_last_key(path, container), Script(), lines)
                break
            if _is_read(word.text):
                found = replace(read_script(word.text), environment=given)
                lines = in_script(found, engines.default().name)
                lines = list(_placed(lines, here))
                yield ContainerCommand(where, found, lines, document)


def environment(container: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields the variables of a container, each with its value and path. The program reads lists of
    Kubernetes, and lists and mappings of Compose."""
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
    """Returns all command words of a container."""
    rows = [container.get(key) for key in COMMANDS]
    return [str(word) for row in rows for word in (listed(row) or [row]) if word]


def _last_key(path: str, container: Mapping[str, Any]) -> str:
    return below(path, command_keys(container)[-1])


def containers(data: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields every mapping that holds a command, with its path."""
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
    mentions: Callable[[str], bool] = mentions_server,
) -> Iterator[tuple[str, Word]]:
    """Yields the command words at a key, a list or a line, each with its path. A text of several
    commands stays one word if it `mentions` a server. `$(NAME)` is not expanded."""
    values = container.get(key)
    if isinstance(values, str):
        where, values = below(path, key), template_as_shell(values)
        if mentions(values) and _is_long(values):
            yield where, Word(values, document.locate(where), True)
            return
        for statement in statements(values):
            for word in statement.words:
                place = inside(document, where, values, word.location)
                yield where, replace(word, location=place)
    for index, value in enumerate(listed(values)):
        where, text = below(path, f"{key}.{index}"), template_as_shell(str(value))
        yield where, Word(text, document.locate(where), "$" not in text, quoted=True)


def in_containers(document: Yaml, engine: str) -> Sequence[Server]:
    """Returns the commands of an engine in the containers, services and launchers of a document.
    Those of a server that is no engine are read only when asked for."""
    found = _read(document)
    if engine not in found.lines:
        rows = (each for _, each in _lines(document, found.by_path, engine))
        found.lines[engine] = list(chain.from_iterable(rows))
    return found.lines[engine]


def _lines(
    document: Yaml, objects_at: Mapping[str, Object], engine: str
) -> Iterator[tuple[str, list[Server]]]:
    """Yields the commands of an engine in each container, with the container's path."""
    known, is_named = formats(engine), partial(mentions, engine=engine)
    names = (known.program, *known.modules, *known.workers, *known.tools)
    for path, container in containers(document.data, ""):
        told = " ".join((*command_texts(container), image_of(container)))
        if not any(name in told for name in names):
            continue  # skips reading its words
        rows: list[tuple[str, Word]] = []
        for key in command_keys(container):
            rows += words_of(document, container, path, key, is_named)
        if not rows or runs_code([word.text for _, word in rows]):
            continue
        given = {name: text for name, text, _ in environment(container)}
        words, found = list[Word](), list[Server]()
        for where, word in rows:
            if re.search(r"\s", word.text) and is_named(word.text):
                found += in_block(word.text, where, document, word.text, engine, given=given)
            else:
                words.append(word)
        words = Values((), given).words(words)
        found += of_statement(words, MAX_DEPTH, engine)
        image = image_pattern(engine).search(image_of(container))
        own = image is not None and _starts_server(container, path)
        if image and own and found and image_starts_server(image, engine):
            found = [replace(row, again=rows[0][1]) for row in found]
        elif image and own and not found and are_flags(words, engine):
            found = [Server(tuple(words), engine=engine, is_open=image["own"] is None)]
        yield path, list(_placed(found, objects_at[path]))


def _starts_server(container: Mapping[str, Any], path: str) -> bool:
    """Returns whether a container with the server's image starts the server.

    In Kubernetes, `args` without `command` does; in Compose, `command` without `args` does, because
    Compose passes it to the entry point of the image.
    """
    if "entrypoint" in container or "extends" in container:
        return False  # the extended service may set an entry point
    in_compose = path.startswith("services.")
    return ("args" in container and "command" not in container) or (
        in_compose and "command" in container and "args" not in container
    )


def image_of(container: Mapping[str, Any]) -> str:
    image = container.get("image")
    if isinstance(image, Mapping):
        name, tag = image.get("repository", image.get("name", "")), image.get("tag", "")
        return f"{name}:{tag}" if tag else str(name)
    return str(image or "")
