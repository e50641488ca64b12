"""Which nodes and GPUs of a job each server gets.

Servers that are smaller than a node share nodes; others take whole ones. A job has one part, or a
heterogeneous one for each side of disaggregated serving where their servers differ in nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True)
class Group:
    """Servers alike: how many, the GPUs of each, and the tasks that start on them."""

    role: str
    servers: int
    gpus: int
    ranks: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server runs: from `first_node` of a part on, on `gpus` where it shares its node.

    `slot` counts the servers on that node.
    """

    part: int = 0
    first_node: int = 0
    nodes: int = 1
    gpus: tuple[int, ...] | None = None
    slot: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of the job asks for; `server_nodes` of it belong together."""

    nodes: int
    gpus_per_node: int
    tasks_per_node: int
    server_nodes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a job, and for each group the places of its servers."""

    parts: tuple[Part, ...]
    places: tuple[tuple[Place, ...], ...]

    @property
    def heterogeneous(self) -> bool:
        return len(self.parts) > 1


def of(groups: Sequence[Group], gpus_per_node: int) -> Layout:
    """The layout of all groups on nodes that are alike."""
    # 0 stands for servers that share a node
    nodes = {group.gpus // gpus_per_node for group in groups}
    if len(nodes) == 1:
        part, places = _part(groups, gpus_per_node, 0)
        return Layout((part,), places)
    split = [_part([group], gpus_per_node, index) for index, group in enumerate(groups)]
    return Layout(tuple(part for part, _ in split), tuple(places[0] for _, places in split))


def _part(
    groups: Sequence[Group], size: int, part: int
) -> tuple[Part, tuple[tuple[Place, ...], ...]]:
    """Servers one after the other, each on the next GPUs of a node that hold all of it."""
    sizes = [group.gpus for group in groups for _ in range(group.servers)]
    begins = _begins(sizes, size)
    ends = list(accumulate((group.servers for group in groups), initial=0))
    seats: list[Place] = []
    for begin, gpus in zip(begins, sizes, strict=True):
        node, first = divmod(begin, size)
        own = tuple(range(first, first + gpus)) if gpus < size and len(sizes) > 1 else None
        slot = sum(seat.first_node == node for seat in seats[-size:])
        seats.append(Place(part, node, -(-gpus // size), own, slot))
    places = tuple(tuple(seats[first:last]) for first, last in pairwise(ends))
    flat = [(group, place) for group, row in zip(groups, places, strict=True) for place in row]
    nodes = max(place.first_node + place.nodes for _, place in flat)
    on_node = [0] * nodes
    tasks = [0] * nodes
    for group, place in flat:
        for node in range(place.first_node, place.first_node + place.nodes):
            on_node[node] += group.gpus // place.nodes
            tasks[node] += -(-group.ranks // place.nodes)
    return Part(nodes, max(on_node), max(tasks), flat[0][1].nodes), places


def _begins(sizes: Sequence[int], node: int) -> list[int]:
    """The first GPU of each server, all nodes counted through."""
    found, free = [], 0
    for gpus in sizes:
        if free % node + gpus > node:
            free += -free % node
        found.append(free)
        free += gpus
    return found
