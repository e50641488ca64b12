"""Checks what containers refer to: mounts, config maps, labels, ports, probes and shared GPUs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...diagnostics import Diagnostic, closest, located
from ...documents import Yaml, value_at
from ...facts import engines, release
from ...general_rules import Rule, Severity
from ...rules.context import RuleContext
from ..arguments.click import own_options
from ..engine import formats
from ..model import OptionsBlock, Server, below, is_open, side_of
from ..read import containers
from ..read.containers import Around, listed, named_rows, number, objects, port_of
from ..read.option_file import read_option_file
from . import sides, starts
from .files import (
    NOTHING_HANDED,
    HandedFiles,
    Mount,
    compose_mounts,
    missing_file_diagnostics,
    path_diagnostics,
)
from .gpus import server_gpu_diagnostics
from .names import task_diagnostics, worker_flag_diagnostics
from .options import flag_option_diagnostics
from .ports import GPU_SHARED, PORT_TAKEN, PORT_UNREACHED, PROBES

UNKNOWN_REFERENCE = Rule(
    "unknown-reference", "An object refers to another one of the manifest by a name that none has."
)
UNKNOWN_PROBE = Rule(
    "unknown-probe", "A probe asks for a path that the server does not have.", "warning"
)
GPU_REQUEST = Rule(
    "gpu-request", "Kubernetes wants the same number of GPUs as request and as limit."
)

Files = Mapping[str, Mapping[str, Any]]
"""The options of each file that servers read, by the last part of its name."""
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")  # has no template variable
_VOLUME = re.compile(r"(?:^|\.)volumes\.\d+$")
_MOST_PAIRS = 30_000  # of names to compare; each comparison takes microseconds


@dataclass(frozen=True, slots=True)
class ServerContainer:
    """A container or Compose service that starts one server, with its surroundings and mounts."""

    document: Yaml
    path: str
    data: Mapping[str, Any]
    around: Around
    server: Server
    mounts: Sequence[Mount] = ()

    @property
    def name(self) -> str:
        """The name of a Compose service; empty for other containers."""
        above, _, name = self.path.rpartition(".")
        return name if above == "services" else ""

    @property
    def outside(self) -> str:
        """The path of the option file relative to the Compose file; empty if it is unknown."""
        for mount in self.mounts:
            path = mount.outside(self.server.file_path)
            if path and path.startswith(("./", "../")):
                return path
        return ""


def _containers(documents: Sequence[Yaml], engine: str, maps: Files) -> list[ServerContainer]:
    """The containers and services that start exactly one server, of this engine."""
    found = []
    for document in documents:
        for data, path, around, servers in objects(document):
            if len(servers) != 1 or servers[0].engine != engine:
                continue
            row = ServerContainer(document, path, data, around, servers[0])
            if row.name:
                mounts = [
                    *compose_mounts(data.get("volumes")),
                    *compose_mounts(data.get("configs")),
                ]
            else:
                mounts = list(_mounts(data, around, maps))
            found.append(replace(row, mounts=mounts))
    return found


def reference_diagnostics(documents: Sequence[Yaml], engine: str) -> Iterator[Diagnostic]:
    """Runs all checks on the containers that start a server and on the objects they use."""
    maps = _config_maps(documents)
    servers = _containers(documents, engine, maps)
    for row in servers:
        if option_file := row.server.file_flag:
            made = containers.command_texts(row.data)
            for found in path_diagnostics(
                row.server.file_path, option_file[1], row.path, row.mounts, made
            ):
                # A chart may mount more than its values list.
                is_whole = row.around.pod or row.name
                yield found if is_whole else replace(found, severity="warning")
        yield from _volume_diagnostics(row)
        yield from _gpu_request_diagnostics(row)
        yield from _probe_diagnostics(row)
        yield from starts.container_start_diagnostics(
            row.server, row.document, row.path, row.data, row.around
        )
    yield from _config_map_diagnostics(documents, maps, {row.server.file for row in servers})
    labels = _pod_labels(documents)
    targets = [row for row in documents if value_at(row.data, "kind") == "Service"]
    for document in targets:
        yield from _selector_diagnostics(document, labels, _MOST_PAIRS // len(targets))
        yield from _target_port_diagnostics(document, servers)


def _config_maps(documents: Sequence[Yaml]) -> dict[str, Mapping[str, Any]]:
    """The files of each config map, by the name of the map."""
    found = {}
    for document in documents:
        files = value_at(document.data, "data")
        if value_at(document.data, "kind") == "ConfigMap" and isinstance(files, Mapping):
            found[str(value_at(document.data, "metadata.name"))] = files
    return found


def _mounts(data: Mapping[str, Any], around: Around, maps: Files) -> Iterator[Mount]:
    """The mounts of a container, with the files of the config maps in them."""
    for name, row in named_rows(data.get("volumeMounts")).items():
        target = str(row.get("mountPath")).rstrip("/")
        sources = [source for _, source in _map_sources(around.volumes.get(name))]
        names = {}
        for source in sources:
            files: list[Any] = [value_at(item, "path") for item in listed(source.get("items"))]
            for file in files or maps.get(str(source.get("name")), {}):
                names[str(file).rpartition("/")[2]] = f"{target}/{file}"
        if row.get("subPath"):
            names = {target.rpartition("/")[2]: target}
        source_name = value_at(sources[0], "name") if sources else ""
        yield Mount(f"config map {source_name}" if source_name else f"volume {name}", target, names)


def _map_sources(volume: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The config maps of a volume, plain or projected, each with its path in the volume."""
    alone = value_at(volume, "configMap")
    if isinstance(alone, Mapping):
        yield "configMap", alone
    for index, source in enumerate(listed(value_at(volume, "projected.sources"))):
        part = value_at(source, "configMap")
        if isinstance(part, Mapping):
            yield f"projected.sources.{index}.configMap", part


def _volume_diagnostics(row: ServerContainer) -> Iterator[Diagnostic]:
    """Reports mounts of a volume that the pod lacks if a volume with a similar name exists."""
    volumes = row.around.volumes
    if not row.around.pod or not volumes:
        return  # a chart may add volumes that its values do not list
    for index, mount in enumerate(listed(row.data.get("volumeMounts"))):
        name = str(value_at(mount, "name"))
        if name not in volumes and _NAME.fullmatch(name) and (near := closest(name, volumes)):
            where = below(row.path, f"volumeMounts.{index}.name")
            what, fix = f"no volume of the pod is called {name}", f"did you mean {near}?"
            yield located(row.document.locate(where), where, what, fix, UNKNOWN_REFERENCE)


def _gpu_request_diagnostics(row: ServerContainer) -> Iterator[Diagnostic]:
    """Reports a GPU request that differs from the limit: Kubernetes requires them to be equal."""
    counts = []
    for key in ("limits", "requests"):
        amounts = value_at(row.data, f"resources.{key}")
        counts.append(number(amounts.get(containers.GPU)) if isinstance(amounts, Mapping) else None)
    limit, request = counts
    if limit and request and limit != request:
        where = below(row.path, f"resources.requests.{containers.GPU}")
        what = f"asks for {request} GPUs, and the limit is {limit}: Kubernetes wants both the same"
        fix = f"give {limit}, or the limit {request}"
        yield located(row.document.locate(where), where, what, fix, GPU_REQUEST)


def _probe_diagnostics(row: ServerContainer) -> Iterator[Diagnostic]:
    """Reports HTTP probes of a path that the server does not have."""
    own = engines.load(row.server.engine)
    newest = release.load(release.known(own)[-1], engine=own)
    endpoints = {path for _, path in newest.endpoints}
    for probe in PROBES:
        asked = value_at(row.data, f"{probe}.httpGet")
        path, port = value_at(asked, "path"), str(value_at(asked, "port"))
        is_own = containers.number_of(row.data, port) == port_of(row.server)
        if not is_own or not isinstance(path, str) or is_open(path):
            continue
        if f"/{path.partition('?')[0].strip('/')}" not in endpoints:
            where = below(row.path, f"{probe}.httpGet.path")
            what = f"the server has no {path[:60]}: it answers 404, and the pod is never ready"
            yield located(row.document.locate(where), where, what, "give /health", UNKNOWN_PROBE)


def _config_map_diagnostics(
    documents: Sequence[Yaml], maps: Files, read_files: Collection[str]
) -> Iterator[Diagnostic]:
    """Reports missing config maps. The suggested map contains a file that a server reads, and no
    object uses it."""
    asked: list[tuple[str, Yaml, str]] = []
    names = set()
    for document in documents:
        for data, path, *_ in objects(document):
            if _VOLUME.search(path):
                for within, source in _map_sources(data):
                    asked.append((str(source.get("name")), document, below(path, f"{within}.name")))
            for key in ("configMapRef", "configMapKeyRef"):
                names.add(str(value_at(data, f"{key}.name")))
    names |= {name for name, _, _ in asked}
    left = [name for name, files in maps.items() if name not in names and files.keys() & read_files]
    for name, document, path in asked:
        if name not in maps and len(left) == 1 and _NAME.fullmatch(name):
            what, fix = f"no config map here is called {name}", f"did you mean {left[0]}?"
            severity: Severity = "error" if closest(name, left) else "warning"
            place, rule = document.locate(path), UNKNOWN_REFERENCE
            yield located(place, path, what, fix, rule, severity)


def _target_port_diagnostics(
    document: Yaml, servers: Sequence[ServerContainer]
) -> Iterator[Diagnostic]:
    """Reports target ports of a Service on which its selected servers do not listen. A headless
    Service (`clusterIP: None`) forwards no ports and is skipped."""
    spec = value_at(document.data, "spec")
    selector = value_at(spec, "selector")
    if not isinstance(selector, Mapping) or value_at(spec, "clusterIP") == "None":
        return
    chosen = [row for row in servers if selector.items() <= dict(row.around.labels).items()]
    listening = {port_of(row.server) for row in chosen} - {""}
    if len(listening) != 1:
        return
    (own,) = listening
    for index, row in enumerate(listed(value_at(spec, "ports"))):
        key = "targetPort" if value_at(row, "targetPort") is not None else "port"
        target = str(value_at(row, key))
        if target == own or not _NAME.fullmatch(target):
            continue
        if not any(_may_listen(each, target) for each in chosen):
            where, fix = f"spec.ports.{index}.{key}", f"give targetPort: {own}"
            what = f"{target} is not a port of the selected pods: their server listens at {own}"
            place = document.locate(where)
            yield located(place, where, what, fix, PORT_UNREACHED)


def _may_listen(row: ServerContainer, port: str) -> bool:
    """Whether a container declares a port, or another one of its pod may listen on it."""
    pod = row.around.pod
    return containers.opens(row.data, port) or containers.may_open(pod, row.data, port)


def _pod_labels(documents: Sequence[Yaml]) -> dict[str, set[str]]:
    """The values of each label on the pods of a manifest."""
    found: dict[str, set[str]] = {}
    for document in documents:
        for data, _, around, _ in objects(document):
            if data is around.pod:
                for key, value in around.labels.items():
                    found.setdefault(str(key), set()).add(str(value))
    return found


def _selector_diagnostics(
    document: Yaml, labels: Mapping[str, set[str]], most_names: int
) -> Iterator[Diagnostic]:
    """Reports a selector label that no pod has if a pod has a similar value."""
    selector = value_at(document.data, "spec.selector")
    if not isinstance(selector, Mapping):
        return
    for key, value in selector.items():
        values, text = labels.get(str(key), set()), str(value)
        if text in values or not _NAME.fullmatch(text) or len(values) > most_names:
            continue
        if near := closest(text, values):
            where = f"spec.selector.{key}"
            what, fix = f"no pod here has the label {key}: {text}", f"did you mean {near}?"
            place, rule = document.locate(where), UNKNOWN_REFERENCE
            yield located(place, where, what, fix, rule, "warning")


_DEVICES = "deploy.resources.reservations.devices"
_PUBLISHED = re.compile(r"(?:(?P<host>[\d.]+):)?(?P<port>\d+):\d+(?:/tcp)?")
_NUMBER = re.compile(r"(?<![\w$.-])\d{1,3}(?![\w.-])")  # of a GPU; UUIDs are names too


def services(document: Yaml, engine: str) -> Sequence[ServerContainer]:
    """Returns the services of a Compose file that start exactly one server of this engine."""
    return [row for row in _containers([document], engine, {}) if row.name]


def service_files(rows: Sequence[ServerContainer], folder: Path) -> dict[str, Mapping[str, Any]]:
    """Reads the option files that servers use from the folder of the Compose file. The keys are the
    last parts of the file names in the container."""
    found = {}
    for row in rows:
        if row.outside and (options := read_option_file(row.outside, folder)):
            found[row.server.file] = options
    return found


def compose_diagnostics(
    document: Yaml, rows: Sequence[ServerContainer], files: Files
) -> Iterator[Diagnostic]:
    """Checks the services of a Compose file against each other."""
    yield from _side_diagnostics(rows)
    yield from _url_diagnostics(rows, files)
    together = []
    for row in rows:
        is_placed = value_at(row.data, "deploy.placement") is not None  # on a host by a swarm
        if not row.data.get("profiles") and not is_placed:
            together.append(row)
    yield from _host_port_diagnostics(document, together)
    yield from _shared_gpu_diagnostics(document, together, files)


def _side_diagnostics(rows: Sequence[ServerContainer]) -> Iterator[Diagnostic]:
    """Compares the models and option files of prefill and decode services, found by their names."""
    workers = [replace(row.server, role=side) for row in rows if (side := side_of(row.name))]
    if {row.role for row in workers} == {"prefill", "decode"}:
        yield from sides.model_difference_diagnostics(workers)
        for worker in workers:
            yield from sides.file_side_diagnostics(worker)


def _url_diagnostics(rows: Sequence[ServerContainer], files: Files) -> Iterator[Diagnostic]:
    """Reports URLs in a router's configuration whose port is not the one its server listens on."""
    asked: list[Any] = []
    for row in rows:
        if row.server.is_disaggregated:
            options = row.server.given(files) or {}
            for side in ("context_servers", "generation_servers"):
                asked += listed(value_at(options, f"{side}.urls"))
    by_name = {row.name: row for row in rows}
    for url in asked:
        host, _, port = str(url).rpartition(":")
        row_there = by_name.get(host)
        own = port_of(row_there.server) if row_there else ""
        if row_there and port.isdigit() and own.isdigit() and own != port:
            given = row_there.server.flag(("--port",))
            place = given[1] if given else row_there.server.place
            what = f"the router asks {host} at {port}, and its server listens at {own}"
            fix = f"give --port {port}, or the router {host}:{own}"
            yield located(place, row_there.path, what, fix, PORT_UNREACHED)


def _host_port_diagnostics(document: Yaml, rows: Sequence[ServerContainer]) -> Iterator[Diagnostic]:
    """Reports host ports that two services publish, or on which two servers listen."""
    owners: dict[str, str] = {}
    for row in rows:
        for port, path in _published(row):
            if (owner := owners.setdefault(port, row.name)) != row.name:
                what = f"{owner} also uses port {port} of the host"
                fix = "publish another one, as HOST:CONTAINER"
                yield located(document.locate(path), path, what, fix, PORT_TAKEN)


def _published(row: ServerContainer) -> Iterator[tuple[str, str]]:
    """The host ports that a service uses, each with its path."""
    if row.data.get("network_mode") == "host":
        flag, port = row.server.flag(("--port",)), port_of(row.server)
        if port.isdigit():
            yield port, below(row.path, "command" if flag else "network_mode")
        return
    for index, port in enumerate(listed(row.data.get("ports"))):
        found = _PUBLISHED.fullmatch(str(port))
        number = found["port"] if found else value_at(port, "published")
        is_any_host = not (found["host"] if found else value_at(port, "host_ip"))
        if number and is_any_host and str(number).isdigit():
            yield str(number), below(row.path, f"ports.{index}")


def _shared_gpu_diagnostics(
    document: Yaml, rows: Sequence[ServerContainer], files: Files
) -> Iterator[Diagnostic]:
    """Reports GPUs that two services share. A plain GPU count means the first GPUs of the host:
    Docker does not track which container uses them (moby, daemon/nvidia_linux.go)."""
    owners: dict[str, ServerContainer] = {}
    for row in rows:
        devices, path = _devices(row)
        for device in devices:
            owner = owners.setdefault(device, row)
            if owner is row or _fraction(owner, files) + _fraction(row, files) <= 1:
                continue
            what = f"GPU {device} is also used by {owner.name}, and each server takes most of a GPU"
            fix = "give each service its own device_ids, or both a small KV cache fraction"
            yield located(document.locate(path), path, what, fix, GPU_SHARED)
            break


def _devices(row: ServerContainer) -> tuple[list[str], str]:
    """The GPU numbers of a service after its visibility variables are applied, and their path."""
    cuda, nvidia = containers.VISIBLE
    if any(cuda in text for text in containers.command_texts(row.data)):
        return [], ""  # the command sets the variable itself
    chosen = {name: (text, path) for name, text, path in containers.environment(row.data)}
    found, where = _reserved(row)
    if nvidia in chosen:
        text, path = chosen[nvidia]
        found, where = _NUMBER.findall(text), below(row.path, path)
    if cuda in chosen:
        text, path = chosen[cuda]
        indices = map(int, _NUMBER.findall(text))
        found = [found[index] for index in indices if index < len(found)]
        where = below(row.path, path)
    return found, where


def _reserved(row: ServerContainer) -> tuple[list[str], str]:
    """The GPU numbers that a service reserves, and their path."""
    for index, device in enumerate(listed(value_at(row.data, _DEVICES))):
        where = below(row.path, f"{_DEVICES}.{index}")
        ids, count = value_at(device, "device_ids"), value_at(device, "count")
        if isinstance(ids, list):
            return [str(each) for each in ids], below(where, "device_ids")
        if isinstance(count, int):
            return [str(each) for each in range(min(count, 64))], below(where, "count")
    return [], ""


def _fraction(row: ServerContainer, files: Files) -> float:
    """The fraction of a GPU's free memory that a server uses for its KV cache."""
    record = formats(row.server.engine)
    flag = row.server.flag(record.memory_flags)
    share = flag[0] if flag else value_at(row.server.given(files) or {}, record.memory_option)
    try:
        return float(str(share))
    except ValueError:
        return 0.9


def server_diagnostics(
    servers: Sequence[Server],
    files: Files,
    rule_context: RuleContext,
    in_job: bool = False,
    handed: HandedFiles = NOTHING_HANDED,
) -> Iterator[Diagnostic]:
    """Runs all checks on the servers of a file. `handed` lists the files that scripts create or
    use. The servers of a job share its GPUs, so with several servers in a job the GPU counts are
    not checked."""
    read_files = {row.file for row in servers} | handed.used
    alone: list[OptionsBlock] = []
    for worker in servers:
        own = own_options(worker) if worker.program else None
        if own and worker.program in worker.formats.workers and not (own.is_open or worker.file):
            alone.append(own.section(worker))
        if own and worker.program in worker.formats.tools:
            yield from task_diagnostics(worker)
        if own:
            yield from worker_flag_diagnostics(worker, rule_context.release)
            yield from sides.mode_diagnostics(worker)
            yield from flag_option_diagnostics(
                own, own.section(worker), worker, files, rule_context
            )
            yield from sides.block_size_diagnostics(worker, own, files)
        yield from sides.file_side_diagnostics(worker)
        yield from missing_file_diagnostics(worker, files, read_files, handed)
        if not (in_job and len(servers) > 1):
            yield from server_gpu_diagnostics(worker, files, own)
    yield from sides.disagreement_diagnostics(alone, rule_context)
    yield from sides.model_difference_diagnostics(servers)
