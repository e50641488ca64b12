"""A graph of Dynamo: the keys and sides of its services, and the nodes of its compute domain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..diagnostics import Diagnostic, closest, located
from ..documents import Yaml, value_at
from ..general_rules import UNKNOWN_VALUE
from . import rules
from .containers import SIDE, number, objects
from .embedded_formats import surroundings
from .section import below
from .workers import ROLES


def diagnostics(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """What is wrong with the graphs of a manifest."""
    yield from misspelt_sides(documents)
    yield from domain_nodes(documents)
    for document in documents:
        if _is(document, "DynamoGraphDeployment"):
            yield from _misspelt_keys(document)


def _misspelt_keys(document: Yaml) -> Iterator[Diagnostic]:
    """Keys of services that are one of theirs, misspelt: the operator does not see them."""
    known = surroundings()["graph_services"]["names"]
    services = value_at(document.data, "spec.services")
    rows: Mapping[str, Any] = services if isinstance(services, Mapping) else {}
    for name, data in rows.items():
        for key in data if isinstance(data, Mapping) else ():
            left = [row for row in known if row not in data]
            if key not in known and (near := closest(str(key), left)):
                where = below(f"spec.services.{name}", str(key))
                what, fix = "is no key of a service in a graph", f"did you mean {near}?"
                yield located(document.locate(where), where, what, fix, rules.MISSPELT_NAME)


def misspelt_sides(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """Services of a Dynamo graph of a side that is misspelt: they are of no side then."""
    for document in documents:
        for data, path, *_ in objects(document):
            side = data.get(SIDE)
            if isinstance(side, str) and side not in ROLES and (near := closest(side, ROLES)):
                where = below(path, SIDE)
                what, fix = f"{side} is no side of a service", f"did you mean {near}?"
                yield located(document.locate(where), where, what, fix, UNKNOWN_VALUE)


def domain_nodes(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """A compute domain of fewer nodes than the servers of the graph beside it need."""
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
        what = f"{given} nodes, and the services of the graph take {needed}"
        place = domains[0].locate(path)
        yield located(place, path, what, f"give {needed}", rules.DOMAIN_NODES, "warning")


def _is(document: Yaml, kind: str) -> bool:
    return isinstance(document.data, Mapping) and document.data.get("kind") == kind
