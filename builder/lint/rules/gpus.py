"""Checks GPU counts against the ranks that a server starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from ...diagnostics import Diagnostic, Location, located
from ...documents import Yaml, value_at
from ...facts import hardware
from ...facts.release import Release
from ...general_rules import Rule
from ..arguments.click import FlagOptions
from ..engine import default_formats, formats
from ..model import Gpus, Server, below, int_at
from .model import mapping_around, named_gpu

GPUS_BELOW_RANKS = Rule(
    "gpus-below-ranks", "A server has fewer GPUs than ranks and does not start."
)
GPUS_IDLE = Rule("gpus-idle", "More GPUs are requested than the servers have ranks.", "warning")
NODE_GPUS = Rule("node-gpus", "A node has fewer GPUs than the file says.", "warning")

_OF_NODE = ("resources.gpus_per_node", "hardware.gpus_per_node")
_NODE_GPUS, _NODES = ("gpus_per_node", "num_gpus_per_node"), ("num_nodes", "nnodes", "nodes")
_ALL_GPUS = ("num_gpus", "gpus", "gpu_count", "n_gpus")


def world_size(
    options: Mapping[str, Any], engine: str = "", on_all_nodes: bool = False
) -> int | None:
    """The number of ranks of a server that has its GPUs to itself; `None` if it is unknown. If
    `on_all_nodes`, options for several nodes are allowed. Without a name, the default engine is
    meant."""
    record, size = formats(engine) if engine else default_formats(), 1
    elsewhere = set(record.ranks_elsewhere)
    if on_all_nodes:
        elsewhere -= set(record.ranks_on_nodes)
    if not elsewhere.isdisjoint(options):
        return None
    for name in record.ranks:
        value = options.get(name, 1)
        is_text = isinstance(value, str) and value.isdecimal() and len(value) < 10
        number = int(value) if is_text else value
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            return None
        size *= number
    return size


def _node_diagnostics(document: Yaml) -> Iterator[Diagnostic]:
    """Reports more GPUs per node than a node with the named GPU type has."""
    gpu = named_gpu(document)
    if gpu is None or gpu.name.lower() not in hardware.known():
        return
    most = hardware.load(gpu.name.lower()).gpus_per_node.value
    for path in _OF_NODE:
        if (count := int_at(document.data, path)) and count > most:
            what = f"{count} GPUs in a node, and one of {gpu.name} has {most}"
            fix = f"give {most}, and as many nodes as that takes"
            yield located(document.locate(path), path, what, fix, NODE_GPUS)


def launcher_gpus(document: Yaml, path: str) -> Gpus | None:
    """The total number of GPUs over all nodes that a launcher sets next to its options."""
    above = path.rpartition(".")[0]
    around = mapping_around(document, path)

    def found(names: Iterable[str]) -> tuple[int, str] | None:
        rows = ((int_at(around, name), name) for name in names)
        return next(((count, name) for count, name in rows if count), None)

    if not path:
        return None
    (each, name), nodes = found(_NODE_GPUS) or (None, ""), found(_NODES)
    if each and nodes:
        where = below(above, nodes[1] if nodes[0] > 1 else name)
        return Gpus(each * nodes[0], document.locate(where), where)
    if (whole := found(_ALL_GPUS)) and (nodes is None or nodes[0] == 1):
        where = below(above, whole[1])
        return Gpus(whole[0], document.locate(where), where)
    return None


def gpu_diagnostic(
    world: int, gpus: int, place: Location, path: str, within: str = ""
) -> Diagnostic | None:
    """Reports a server whose number of ranks differs from its number of GPUs."""
    if world > gpus:
        what = f"{gpus} GPU{'s' * (gpus != 1)} for a server of {world} ranks: it does not start"
        fix = f"ask for {world} GPUs, or make the parallel sizes multiply to {gpus}"
        return located(place, path, what, fix, GPUS_BELOW_RANKS, within=within)
    if world < gpus:
        what = f"{gpus} GPUs for a server of {world} ranks: {gpus - world} of them stay idle"
        fix = f"ask for {world} GPUs, or make the parallel sizes multiply to {gpus}"
        return located(place, path, what, fix, GPUS_IDLE, "warning", within)
    return None


def rank_diagnostics(
    document: Yaml, ranks: Iterable[tuple[str, int | None]]
) -> Iterator[Diagnostic]:
    """Checks the workers, nodes and GPUs of a recipe against each other and against `ranks`.
    `ranks` are the ranks of one server of each role, `None` if unknown. The numbers are either
    under `resources` or under each role."""
    yield from _node_diagnostics(document)
    if not isinstance(value_at(document.data, "resources"), Mapping):
        return
    by_role = isinstance(value_at(document.data, "roles"), Mapping)

    def number(path: str) -> int | None:
        return int_at(document.data, path)

    def place(path: str) -> tuple[Location, str]:
        return document.locate(path), path

    of_node = number("resources.gpus_per_node")
    for role, world in ranks:
        asked = f"roles.{role}.gpus" if by_role else f"resources.gpus_per_{role}"
        on = f"roles.{role}.nodes" if by_role else f"resources.{role}_nodes"
        gpus, nodes = number(asked), number(on)
        if world and gpus and (found := gpu_diagnostic(world, gpus, *place(asked))):
            yield found
        workers = number(f"roles.{role}.workers" if by_role else f"resources.{role}_workers")
        each = gpus or world
        if not (workers and nodes and each and of_node):
            continue
        wanted, there = workers * each, nodes * of_node
        enough = workers * ceil(each / of_node)
        if wanted > there:
            what = f"{workers} workers of {each} GPUs want {wanted}, {nodes} nodes have {there}"
            fix = f"give {ceil(wanted / of_node)} nodes, or fewer workers"
            yield located(*place(on), what, fix, GPUS_BELOW_RANKS)
        elif nodes > enough:
            what = f"{workers} workers of {each} GPUs need {enough} nodes: the others stay idle"
            yield located(*place(on), what, f"give {enough}", GPUS_IDLE, "warning")


def server_ranks_diagnostic(
    options: Mapping[str, Any], gpus: Gpus | None, release: Release, is_open: bool
) -> Diagnostic | None:
    """Reports a server whose ranks differ from the GPUs that are requested for it."""
    if gpus is None or is_open:
        return None
    world = world_size(options, release.engine.name, gpus.on_all_nodes)
    return None if world is None else gpu_diagnostic(world, gpus.count, gpus.location, gpus.path)


def server_gpu_diagnostics(
    worker: Server, files: Mapping[str, Mapping[str, Any]], own: FlagOptions | None
) -> Iterator[Diagnostic]:
    if worker.formats.dialect != "click":
        return  # checked together with its flags
    sizes = {**worker.sizes, **(own.over({}) if own else {})}
    read = worker.given(files)
    file, is_complete = read or {}, not worker.file or read is not None
    if worker.gpus is None or not (is_complete or "tensor_parallel_size" in sizes):
        return
    # In the engine's own server, the flags override the file.
    world = world_size({**worker.sizes, **own.over(file)} if own else {**file, **sizes})
    if world is None or (own and own.unknown):
        return
    gpus = worker.gpus
    found = gpu_diagnostic(world, gpus.count, gpus.location, gpus.path)
    if found and gpus.on_all_nodes:
        fix = f"ask for {world} GPUs over all nodes, or make the parallel sizes multiply to"
        found = replace(found, fix=f"{fix} {gpus.count}")
    if found and not is_complete:  # the file may override the flags
        found = replace(found, severity="warning")
    if found and (sizes or worker.file or found.severity == "error"):
        yield from _node_count_diagnostics(found, gpus, world)


def _node_count_diagnostics(found: Diagnostic, gpus: Gpus, world: int) -> Iterator[Diagnostic]:
    """Suggests fixes for a wrong number of GPUs. If both nodes and GPUs per node are set, either
    may be wrong, so both places are reported."""
    each = gpus.each
    if each is None:
        yield found
        return
    nodes = gpus.count // each.count
    ways = [f"give {world // each.count} nodes of {each.count} GPUs"] * (world % each.count == 0)
    ways += [f"ask for {world // nodes} GPUs in each of {nodes} nodes"] * (world % nodes == 0)
    fix = f"{', or '.join([*ways, 'make the parallel sizes multiply to'])} {gpus.count}"
    found = replace(found, fix=fix)
    yield found
    yield replace(found, location=each.location, path=each.path)
