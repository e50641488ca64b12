"""The lines for sbatch: what a job of a layout asks a site for, one list for each of its parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...site import Site
from .layout import Layout, Part
from .options import Options


def serve(name: str, options: Options, layout: Layout) -> list[list[str]]:
    """The job that serves, which gets a signal early enough for a successor."""
    site = options.site
    own = [f"--signal=B:USR1@{options.successor_lead_s}"]
    return [
        [
            *_head(name, options.time_limit_s),
            *_where(site, site.partition),
            *_nodes(site, part),
            "--no-requeue",
            *(own if index == 0 else []),
            *site.sbatch,
        ]
        for index, part in enumerate(layout.parts)
    ]


def preflight(name: str, options: Options, layout: Layout, limit_s: int) -> list[list[str]]:
    """A short job on one node of the same kind."""
    site = options.site
    lines = [
        *_head(f"{name}-preflight", limit_s),
        *_where(site, site.partition),
        *_nodes(site, replace(layout.parts[0], nodes=1)),
        "--no-requeue",
        *site.sbatch,
    ]
    return [lines]


def bench(name: str, options: Options, points: int, limit_s: int) -> list[list[str]]:
    """One client after the other, without a GPU."""
    site = options.site
    lines = [
        *_head(f"{name}-bench", limit_s, "%x-%A-%a.log"),
        *_where(site, site.client_partition or site.partition),
        *("--nodes=1", "--ntasks=1"),
        f"--array=0-{points - 1}%1",
        "--no-requeue",
        *site.sbatch,
    ]
    return [lines]


def segment(part: Part, block_size: int) -> int:
    """The most nodes that can be asked to stand in one block, no server in two of them if possible.

    Slurm wants a divisor of all nodes.
    """
    sizes = [n for n in range(1, min(part.nodes, block_size) + 1) if part.nodes % n == 0]
    return max(sizes, key=lambda n: (n % part.server_nodes == 0, n))


def _head(name: str, limit_s: int, output: str = "%x-%j.log") -> Iterator[str]:
    yield f"--job-name={name}"
    yield f"--output={output}"
    yield "--open-mode=append"
    yield f"--time={_duration(limit_s)}"


def _where(site: Site, partition: str | None) -> Iterator[str]:
    given = {
        "partition": partition,
        "account": site.account,
        "qos": site.qos,
        "reservation": site.reservation,
        "constraint": site.constraint,
    }
    yield from (f"--{name}={value}" for name, value in given.items() if value is not None)


def _nodes(site: Site, part: Part) -> Iterator[str]:
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
