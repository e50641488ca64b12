"""The nodes of a job: which of them and of their GPUs each server gets, and the sbatch lines.

Servers that are smaller than a node share nodes; others take whole ones. A job has one part, or a
heterogeneous one for each side of disaggregated serving where their servers differ in nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from ...site import Site
from .options import SlurmOptions


@dataclass(frozen=True, slots=True)
class ServerGroup:
    """Servers alike: how many, the GPUs of each, and the tasks that start on them."""

    role: str
    servers: int
    gpus: int
    ranks: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a server runs: from `first_node` of a part on, on `gpus` where it shares its node.

    `slot` counts the servers on that node.
    """

    part: int = 0
    first_node: int = 0
    nodes: int = 1
    gpus: tuple[int, ...] | None = None
    slot: int = 0


@dataclass(frozen=True, slots=True)
class JobPart:
    """What one part of the job requests; `server_nodes` of it belong together."""

    nodes: int
    gpus_per_node: int
    tasks_per_node: int
    server_nodes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a job, and for each group the places of its servers."""

    parts: tuple[JobPart, ...]
    places: tuple[tuple[Placement, ...], ...]

    @property
    def heterogeneous(self) -> bool:
        return len(self.parts) > 1


def place(groups: Sequence[ServerGroup], gpus_per_node: int) -> Layout:
    """All groups on nodes that are alike."""
    # 0 is for servers that share a node
    nodes = {group.gpus // gpus_per_node for group in groups}
    if len(nodes) == 1:
        part, places = _part(groups, gpus_per_node, 0)
        return Layout((part,), places)
    split = [_part([group], gpus_per_node, index) for index, group in enumerate(groups)]
    return Layout(tuple(part for part, _ in split), tuple(places[0] for _, places in split))


def _part(
    groups: Sequence[ServerGroup], size: int, part: int
) -> tuple[JobPart, tuple[tuple[Placement, ...], ...]]:
    """Servers one after the other, each on the next GPUs of a node that hold all of it."""
    owners: list[ServerGroup] = []
    for group in groups:
        owners += [group] * group.servers
    sizes = [group.gpus for group in owners]
    begins = _first_gpus(sizes, size)
    ends = list(accumulate((group.servers for group in groups), initial=0))
    seats: list[Placement] = []
    for begin, gpus in zip(begins, sizes, strict=True):
        node, first = divmod(begin, size)
        own = tuple(range(first, first + gpus)) if gpus < size and len(sizes) > 1 else None
        slot = sum(seat.first_node == node for seat in seats[-size:])
        seats.append(Placement(part, node, -(-gpus // size), own, slot))
    places = tuple(tuple(seats[first:last]) for first, last in pairwise(ends))
    nodes = max(place.first_node + place.nodes for place in seats)
    on_node = [0] * nodes
    tasks = [0] * nodes
    for group, place in zip(owners, seats, strict=True):
        for node in range(place.first_node, place.first_node + place.nodes):
            on_node[node] += group.gpus // place.nodes
            tasks[node] += -(-group.ranks // place.nodes)
    return JobPart(nodes, max(on_node), max(tasks), seats[0].nodes), places


def _first_gpus(sizes: Sequence[int], node: int) -> list[int]:
    """The first GPU of each server, all nodes counted through."""
    found, free = [], 0
    for gpus in sizes:
        if free % node + gpus > node:
            free += -free % node
        found.append(free)
        free += gpus
    return found


# --- Lines for sbatch: a list for each part of the job --------------------------------------------


def serve_directives(name: str, options: SlurmOptions, layout: Layout) -> list[list[str]]:
    """The job that serves, which gets a signal early enough for a successor."""
    site, found = options.site, []
    signal = [f"--signal=B:USR1@{options.successor_lead_s}"]  # to the first part alone
    for part in layout.parts:
        head = _head(name, options.time_limit_s)
        found.append(_job(site, head, [*_nodes(site, part), "--no-requeue", *signal]))
        signal = []
    return found


def preflight_directives(
    name: str, options: SlurmOptions, layout: Layout, limit_s: int
) -> list[list[str]]:
    """A short job on one node of the same kind."""
    nodes = _nodes(options.site, replace(layout.parts[0], nodes=1))
    return [_job(options.site, _head(f"{name}-preflight", limit_s), [*nodes, "--no-requeue"])]


def bench_directives(
    name: str, options: SlurmOptions, points: int, limit_s: int
) -> list[list[str]]:
    """One client after the other, without a GPU."""
    own = ["--nodes=1", "--ntasks=1", f"--array=0-{points - 1}%1", "--no-requeue"]
    head = _head(f"{name}-bench", limit_s, "%x-%A-%a.log")
    return [_job(options.site, head, own, options.site.client_partition)]


def segment(part: JobPart, block_size: int) -> int:
    """The most nodes that can be requested in one block, no server in two of them if possible.

    Slurm wants a divisor of all nodes.
    """
    sizes = [n for n in range(1, min(part.nodes, block_size) + 1) if part.nodes % n == 0]
    return max(sizes, key=lambda n: (n % part.server_nodes == 0, n))


def _head(name: str, limit_s: int, output: str = "%x-%j.log") -> Iterator[str]:
    yield f"--job-name={name}"
    yield f"--output={output}"
    yield "--open-mode=append"
    yield f"--time={_duration(limit_s)}"


def _job(
    site: Site, head: Iterable[str], own: Iterable[str], partition: str | None = None
) -> list[str]:
    given = {
        "partition": partition or site.partition,
        "account": site.account,
        "qos": site.qos,
        "reservation": site.reservation,
        "constraint": site.constraint,
    }
    where = (f"--{name}={value}" for name, value in given.items() if value is not None)
    return [*head, *where, *own, *site.sbatch]


def _nodes(site: Site, part: JobPart) -> Iterator[str]:
    """Nodes, ranks and GPUs, in the way that the site takes such requests."""
    tasks = part.tasks_per_node
    yield f"--nodes={part.nodes}"
    yield f"--ntasks={tasks * part.nodes}"
    yield f"--ntasks-per-node={tasks}"
    gpus = ":".join(filter(None, (site.gpu_type, str(part.gpus_per_node))))
    if site.gpu_request == "gpus_per_node":
        yield f"--gpus-per-node={gpus}"
    elif site.gpu_request == "gres":
        yield f"--gres=gpu:{gpus}"
    if site.exclusive:
        yield "--exclusive"
    elif site.cpus_per_node:
        yield f"--cpus-per-task={max(1, site.cpus_per_node // tasks)}"
    if site.memory_gib_per_node:
        yield f"--mem={site.memory_gib_per_node}G"
    elif site.exclusive:
        yield "--mem=0"
    if site.block_size and part.nodes > 1:
        yield f"--segment={segment(part, site.block_size)}"


def _duration(seconds: int) -> str:
    """As Slurm writes it: it counts whole minutes, and rounds up itself."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{rest:02}"
