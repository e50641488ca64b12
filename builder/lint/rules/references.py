"""Checks references between the objects of a manifest: volumes, claims, labels, ports, probes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...diagnostics import Diagnostic, closest, located
from ...documents import Yaml, value_at
from ...facts import engines, release
from ...general_rules import UNKNOWN_VALUE, Severity
from ..engine import TENSORRT_LLM, surroundings
from ..model import ROLES, Server, below, is_open
from ..read.containers import (
    GPU,
    SIDE,
    Around,
    command_texts,
    listed,
    may_open,
    named_rows,
    number,
    number_of,
    objects,
    opens,
    port_of,
)
from . import (
    DOMAIN_NODES,
    GPU_REQUEST,
    MISSPELT_NAME,
    PORT_UNREACHED,
    UNKNOWN_PROBE,
    UNKNOWN_REFERENCE,
)
from .files import Mount, lost_path
from .ports import PROBES


def graph_diagnostics(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """Checks the Dynamo graphs of a manifest."""
    yield from misspelt_sides(documents)
    yield from domain_nodes(documents)
    for document in documents:
        if _is(document, "DynamoGraphDeployment"):
            yield from _misspelt_keys(document)


def _misspelt_keys(document: Yaml) -> Iterator[Diagnostic]:
    """Reports misspelt keys of graph services, which the operator ignores."""
    known = surroundings()["graph_services"]["names"]
    services = value_at(document.data, "spec.services")
    rows: Mapping[str, Any] = services if isinstance(services, Mapping) else {}
    for name, data in rows.items():
        for key in data if isinstance(data, Mapping) else ():
            left = [row for row in known if row not in data]
            if key not in known and (near := closest(str(key), left)):
                where = below(f"spec.services.{name}", str(key))
                what, fix = "is not a key of a service in a graph", f"did you mean {near}?"
                yield located(document.locate(where), where, what, fix, MISSPELT_NAME)


def misspelt_sides(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """Reports misspelt prefill or decode roles of Dynamo services, which the operator ignores."""
    for document in documents:
        for data, path, *_ in objects(document):
            side = data.get(SIDE)
            if isinstance(side, str) and side not in ROLES and (near := closest(side, ROLES)):
                where = below(path, SIDE)
                what, fix = f"{side} is not a role of a service", f"did you mean {near}?"
                yield located(document.locate(where), where, what, fix, UNKNOWN_VALUE)


def domain_nodes(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """Reports a compute domain with fewer nodes than the servers of its graph need."""
    domains = [row for row in documents if _is(row, "ComputeDomain")]
    graphs = [row for row in documents if _is(row, "DynamoGraphDeployment")]
    if len(domains) != 1 or len(graphs) != 1:
        return
    services = value_at(graphs[0].data, "spec.services")
    needed = 0
    for service in services.values() if isinstance(services, Mapping) else ():
        if number(value_at(service, "resources.limits.gpu")):
            nodes = number(value_at(service, "multinode.nodeCount")) or 1
            needed += nodes * (number(value_at(service, "replicas")) or 1)
    path = "spec.numNodes"
    given = number(value_at(domains[0].data, path))
    if given and needed > given:
        what = f"{given} nodes, but the services of the graph need {needed}"
        place = domains[0].locate(path)
        yield located(place, path, what, f"give {needed}", DOMAIN_NODES, "warning")


def _is(document: Yaml, kind: str) -> bool:
    return isinstance(document.data, Mapping) and document.data.get("kind") == kind


_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")  # has no template variable
_VOLUME = re.compile(r"(?:^|\.)volumes\.\d+$")
_TEMPLATE = "spec.channel.resourceClaimTemplate.name"  # created by a compute domain
_RULE = UNKNOWN_REFERENCE
_MOST_PAIRS = 30_000  # of names to compare; each comparison takes microseconds


@dataclass(frozen=True, slots=True)
class _Server:
    """A container that starts one server, with its document and its surroundings."""

    worker: Server
    data: Mapping[str, Any]
    document: Yaml
    around: Around


@dataclass(slots=True)
class _Names:
    """Known names; finds the nearest known name for an unknown one and caches the result."""

    known: set[str] = field(default_factory=set)
    told: dict[str, str | None] = field(default_factory=dict)

    def near(self, name: str) -> str | None:
        if name in self.known or len(self.told) * len(self.known) > _MOST_PAIRS:
            return None
        if name not in self.told:
            self.told[name] = closest(name, self.known)
        return self.told[name]


def reference_diagnostics(
    documents: Sequence[Yaml], engine: str = TENSORRT_LLM
) -> Iterator[Diagnostic]:
    """Runs all checks on the containers that start a server and on the objects they use."""
    maps = _config_maps(documents)
    servers = [
        _Server(each.of_engine(engine)[0], each.data, document, each.around)
        for document in documents
        for each in objects(document)
        if len(each.of_engine(engine)) == 1 == len(each.servers)
    ]
    for server in servers:
        if given := server.worker.file_flag:
            path, place = server.worker.file_path, given[1]
            mounted = list(_mounts(server, maps))
            made = command_texts(server.data)
            for row in lost_path(path, place, server.worker.path, mounted, made):
                # A chart may mount more than its values list.
                yield row if server.around.pod else replace(row, severity="warning")
        yield from _volumes(server)
        yield from _requests(server)
        yield from _probes(server)
    yield from _claims(documents)
    yield from _maps(documents, maps, {row.worker.file for row in servers})
    labels = _pod_labels(documents)
    for document in documents:
        if value_at(document.data, "kind") == "Service":
            yield from _selector(document, labels)
            yield from _target_ports(document, servers)


def _config_maps(documents: Sequence[Yaml]) -> dict[str, Mapping[str, Any]]:
    """The files of each config map, by the name of the map."""
    rows = [row.data for row in documents if value_at(row.data, "kind") == "ConfigMap"]
    names = [str(value_at(row, "metadata.name")) for row in rows]
    files = [value_at(row, "data") for row in rows]
    return {name: row for name, row in zip(names, files, strict=True) if isinstance(row, Mapping)}


def _mounts(server: _Server, maps: Mapping[str, Mapping[str, Any]]) -> Iterator[Mount]:
    """The mounts of a container, with the files of the config maps in them."""
    for name, row in named_rows(server.data.get("volumeMounts")).items():
        target, part = str(row.get("mountPath")).rstrip("/"), row.get("subPath")
        volume = server.around.volumes.get(name)
        sources = [row for _, row in _map_sources(volume)]
        files = [file for source in sources for file in _files(source, maps)]
        names = {file.rpartition("/")[2]: f"{target}/{file}" for file in files}
        if part:
            names = {target.rpartition("/")[2]: target}
        source = value_at(sources[0], "name") if sources else ""
        yield Mount(f"config map {source}" if source else f"volume {name}", target, names)


def _map_sources(volume: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The config maps of a volume, plain or projected, each with its path in the volume."""
    alone = value_at(volume, "configMap")
    if isinstance(alone, Mapping):
        yield "configMap", alone
    for index, source in enumerate(listed(value_at(volume, "projected.sources"))):
        part = value_at(source, "configMap")
        if isinstance(part, Mapping):
            yield f"projected.sources.{index}.configMap", part


def _files(source: Mapping[str, Any], maps: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The files of a config map that a volume contains."""
    chosen = [str(value_at(item, "path")) for item in listed(source.get("items"))]
    return chosen or [str(name) for name in maps.get(str(source.get("name")), ())]


def _volumes(server: _Server) -> Iterator[Diagnostic]:
    """Reports mounts of a volume that the pod lacks if a volume with a similar name exists."""
    # A chart may add volumes that its values do not list.
    known = server.around.volumes if server.around.pod else {}
    for index, row in enumerate(listed(server.data.get("volumeMounts")) if known else ()):
        name = str(value_at(row, "name"))
        if name not in known and _NAME.fullmatch(name) and (near := closest(name, known)):
            where = below(server.worker.path, f"volumeMounts.{index}.name")
            what, fix = f"no volume of the pod is called {name}", f"did you mean {near}?"
            yield located(server.document.locate(where), where, what, fix, _RULE)


def _requests(server: _Server) -> Iterator[Diagnostic]:
    """Reports a GPU request that differs from the limit: Kubernetes requires them to be equal."""
    resources = server.data.get("resources")
    rows = [value_at(resources, key) for key in ("limits", "requests")]
    limit, request = (number(row.get(GPU)) if isinstance(row, Mapping) else None for row in rows)
    if limit and request and limit != request:
        where = below(server.worker.path, f"resources.requests.{GPU}")
        what = f"asks for {request} GPUs, and the limit is {limit}: Kubernetes wants both the same"
        place = server.document.locate(where)
        yield located(place, where, what, f"give {limit}, or the limit {request}", GPU_REQUEST)


def _probes(server: _Server) -> Iterator[Diagnostic]:
    """Reports HTTP probes of a path that the server does not have."""
    own = engines.load(server.worker.engine)
    newest = release.load(release.known(own)[-1], engine=own)
    known = {path for _, path in newest.endpoints}
    for probe in PROBES:
        asked = value_at(server.data, f"{probe}.httpGet")
        path, port = (value_at(asked, key) for key in ("path", "port"))
        is_own = number_of(server.data, str(port)) == port_of(server.worker)
        if not is_own or not isinstance(path, str) or is_open(path):
            continue
        if f"/{path.partition('?')[0].strip('/')}" not in known:
            where = below(server.worker.path, f"{probe}.httpGet.path")
            what = f"the server has no {path[:60]}: it answers 404, and the pod is never ready"
            place = server.document.locate(where)
            yield located(place, where, what, "give /health", UNKNOWN_PROBE, "warning")


def _claims(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """Reports missing resource claim templates if one with a similar name exists. Compute domains
    create templates too."""
    rows = [(value_at(row.data, "kind"), row.data) for row in documents]
    made = [str(value_at(data, _TEMPLATE)) for kind, data in rows if kind == "ComputeDomain"]
    own = [
        str(value_at(row, "metadata.name")) for kind, row in rows if kind == "ResourceClaimTemplate"
    ]
    names = _Names({*made, *own})
    for document in documents:
        for data, path, *_ in objects(document):
            name = data.get("resourceClaimTemplateName")
            if isinstance(name, str) and (near := names.near(name)):
                where = below(path, "resourceClaimTemplateName")
                what, fix = f"no template here is called {name}", f"did you mean {near}?"
                yield located(document.locate(where), where, what, fix, _RULE, "warning")


def _maps(
    documents: Sequence[Yaml], maps: Mapping[str, Mapping[str, Any]], read_files: set[str]
) -> Iterator[Diagnostic]:
    """Reports missing config maps. The suggested map contains a file that a server reads, and no
    object uses it."""
    asked = [
        (str(source.get("name")), document, below(path, f"{within}.name"))
        for document in documents
        for data, path, *_ in objects(document)
        if _VOLUME.search(path)
        for within, source in _map_sources(data)
    ]
    names = {name for name, _, _ in asked} | {
        str(name)
        for document in documents
        for data, *_ in objects(document)
        for key in ("configMapRef", "configMapKeyRef")
        if (name := value_at(data, f"{key}.name"))
    }
    left = [name for name, files in maps.items() if name not in names and read_files & files.keys()]
    for name, document, path in asked:
        if name not in maps and len(left) == 1 and _NAME.fullmatch(name):
            what, fix = f"no config map here is called {name}", f"did you mean {left[0]}?"
            severity: Severity = "error" if closest(name, left) else "warning"
            yield located(document.locate(path), path, what, fix, _RULE, severity)


def _target_ports(document: Yaml, servers: Sequence[_Server]) -> Iterator[Diagnostic]:
    """Reports target ports of a Service on which its selected servers do not listen. A headless
    Service (`clusterIP: None`) forwards no ports and is skipped."""
    spec = value_at(document.data, "spec")
    selector, ports = (value_at(spec, key) for key in ("selector", "ports"))
    if not isinstance(selector, Mapping) or value_at(spec, "clusterIP") == "None":
        return
    chosen = [row for row in servers if selector.items() <= dict(row.around.labels).items()]
    listening = {port for row in chosen if (port := port_of(row.worker))}
    for index, row in enumerate(listed(ports) if len(listening) == 1 else ()):
        key = "targetPort" if value_at(row, "targetPort") is not None else "port"
        target = str(value_at(row, key))
        if target in listening or not _NAME.fullmatch(target):
            continue
        if any(
            opens(each.data, target) or may_open(each.around.pod, each.data, target)
            for each in chosen
        ):
            continue
        where = f"spec.ports.{index}.{key}"
        what = f"{target} is not a port of the selected pods: their server listens at "
        what, fix = what + min(listening), f"give targetPort: {min(listening)}"
        yield located(document.locate(where), where, what, fix, PORT_UNREACHED, "warning")


def _pod_labels(documents: Sequence[Yaml]) -> dict[str, _Names]:
    """The values of each label on the pods of a manifest."""
    found: dict[str, _Names] = {}
    for document in documents:
        for data, _, around, _ in objects(document):
            for key, value in around.labels.items() if data is around.pod else ():
                found.setdefault(str(key), _Names()).known.add(str(value))
    return found


def _selector(document: Yaml, labels: Mapping[str, _Names]) -> Iterator[Diagnostic]:
    """Reports a selector label that no pod has if a pod has a similar value."""
    selector = value_at(document.data, "spec.selector")
    for key, value in selector.items() if isinstance(selector, Mapping) else ():
        names, text = labels.get(str(key)), str(value)
        if names and _NAME.fullmatch(text) and (near := names.near(text)):
            where = f"spec.selector.{key}"
            what, fix = f"no pod here has the label {key}: {text}", f"did you mean {near}?"
            yield located(document.locate(where), where, what, fix, _RULE, "warning")
