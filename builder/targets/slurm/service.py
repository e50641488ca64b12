"""What the job runs: the steps of `service.json`, which the supervisor reads.

`{bundle}` is the bundle's folder, `{job}` the folder of this job's state and `{host}` the node
whose address clients get. A step's `files` are copied from the bundle into the job's folder; in the
copies `{NAME}` becomes the host of that step, and `port: N` the port that the step got.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ...deployment import Deployment
from ...facts import network_checks, servers
from ...facts.servers import Server
from ...servers import RenderContext
from ...site import Site
from ..disaggregated import ROUTER, ROUTER_FILE, router_command, router_document
from .layout import Layout, Placement, ServerGroup
from .options import SlurmOptions, instance_ports

FORMAT = 1
HAPROXY_FILE = "router.cfg"
LOOPBACK = "127.0.0.1"
# A server that drains answers what it has, and a little more is left to end in order.
STOP_MARGIN_S = 30
ROUTER_START_TIMEOUT_S = 60
HEALTH = {"period_s": 5, "timeout_s": 5, "failures": 6}
GENERATION_PERIOD_S = 60
SMOKE_TIMEOUT_S = 600
CRASH_WINDOW_S = 600
PREFLIGHT_TIMEOUT_S = 900  # the import of a cold image alone takes five minutes
# Variables of the fabric that a job may inherit, and that break the transfer between servers.
# Source: NVIDIA/TensorRT-LLM#18373, examples/disaggregated/slurm/benchmark/start_worker.sh
LEAKED = ("UCX_TLS",)


@dataclass(frozen=True, slots=True)
class ServingSide:
    """Servers alike: the target's entry in `launch.json`, as it is under Slurm.

    `folder` is where the files of the target are in the bundle.
    """

    name: str
    context: RenderContext
    entry: Mapping[str, Any]
    folder: str
    group: ServerGroup


@dataclass(frozen=True, slots=True)
class SlurmService:
    """All that a job runs. Several servers have a router before them."""

    target: str
    options: SlurmOptions
    sides: tuple[ServingSide, ...]
    layout: Layout

    @property
    def record(self) -> Server:
        """What is known of the server that runs."""
        return servers.load(self.target)

    @property
    def site(self) -> Site:
        return self.options.site

    @property
    def deployment(self) -> Deployment:
        return self.sides[-1].context.deployment

    @property
    def is_disaggregated(self) -> bool:
        return len(self.sides) > 1

    @property
    def servers(self) -> list[ServerInstance]:
        """The servers of all sides; those on one node have ports of their own."""
        ports: Mapping[str, int] = self.sides[0].entry["ports"]
        found: list[ServerInstance] = []
        for side, places in zip(self.sides, self.layout.places, strict=True):
            for number, place in enumerate(places):
                own = instance_ports(ports, place.slot)
                found.append(ServerInstance(side, f"{side.name}{number}", place, own))
        return found

    @property
    def has_router(self) -> bool:
        return sum(side.group.servers for side in self.sides) > 1

    @property
    def frontend_ports(self) -> dict[str, int]:
        """The ports for clients: the router's, or those of the only server."""
        ports: Mapping[str, int] = self.sides[0].entry["ports"]
        return self.options.router.ports(ports) if self.has_router else dict(ports)

    @property
    def model(self) -> str:
        """The name by which clients ask for the model."""
        if named := self.sides[0].entry.get("model_name"):
            return str(named)
        checkpoint = self.deployment.checkpoint
        folder = self.site.checkpoints.get(checkpoint, checkpoint)
        return PurePosixPath(folder).name if folder.startswith("/") else folder


@dataclass(frozen=True, slots=True)
class ServerInstance:
    """One server of a side: its nodes and ports."""

    side: ServingSide
    name: str
    place: Placement
    ports: Mapping[str, int]


def document(service: SlurmService) -> dict[str, Any]:
    """`service.json` as a whole."""
    options, deployment = service.options, service.deployment
    generation = {**service.record.canary_for(service.model), "period_s": GENERATION_PERIOD_S}
    return {
        "format": FORMAT,
        "name": deployment.name,
        "bundle_digest_file": "manifest.json",
        "model": service.model,
        "engine": deployment.engine.identity,
        "server": service.target,
        "state_folder": service.site.state_folder,
        "steps": steps(service),
        "front": ROUTER if service.has_router else service.servers[0].name,
        "health": {**HEALTH, "generation": generation},
        "smoke": _smoke(service),
        "preflight": _preflight(service),
        **({"network": _network(service)} if service.is_disaggregated else {}),
        "time": {
            "limit_s": options.time_limit_s,
            "successor_lead_s": options.successor_lead_s,
            "drain_s": options.drain_s,
        },
        "limits": {"attempts": options.attempts, "crash_window_s": CRASH_WINDOW_S},
    }


def steps(service: SlurmService) -> list[dict[str, Any]]:
    found = [_server(service, server) for server in service.servers]
    return found + ([_router(service)] if service.has_router else [])


def _server(service: SlurmService, server: ServerInstance) -> dict[str, Any]:
    side, place, site = server.side, server.place, service.site
    entry, group = side.entry, side.group
    default_stop_s = service.options.drain_s + STOP_MARGIN_S
    mpi = site.mpi if rank_launcher(site, side.context) else "none"
    return {
        "name": server.name,
        "role": group.role,
        **_extent(service, place, group.ranks, group.gpus // place.nodes),
        "gpu_indices": list(place.gpus) if place.gpus else None,
        "argv": [entry["argv"][0], f"{side.folder}{entry['argv'][1]}"],
        "launcher": [*container_command(site, service.target), *_launcher(service, server)],
        "environment": _environment(service, server),
        "srun": [f"--mpi={mpi}", *_srun(site, service.target)],
        "ports": dict(server.ports),
        "ready": dict(entry["ready"]),
        "critical": True,
        "files": {},
        "start_after": [],
        "start_timeout_s": entry["start_timeout_s"],
        "stop_timeout_s": entry.get("stop_timeout_s", default_stop_s),
    }


def _extent(service: SlurmService, place: Placement, tasks: int, gpus: int) -> dict[str, Any]:
    """The nodes of a step and what starts on each."""
    return {
        "nodes": place.nodes,
        "first_node": place.first_node,
        "het_group": place.part if service.layout.heterogeneous else None,
        "ntasks": tasks,
        "ntasks_per_node": -(-tasks // place.nodes),
        "gpus_per_node": gpus,
    }


def _router(service: SlurmService) -> dict[str, Any]:
    """HAProxy before servers that are alike, the engine's own before those of two sides."""
    site, entry = service.site, service.sides[0].entry
    program = service.target if service.is_disaggregated else ROUTER
    argv, file = ["haproxy", "-W", "-db", "-f", f"{{job}}/{HAPROXY_FILE}"], HAPROXY_FILE
    if service.is_disaggregated:
        argv, file = router_command(service.record, f"{{job}}/{ROUTER_FILE}"), ROUTER_FILE
    return {
        "name": ROUTER,
        "role": "router",
        **_extent(service, Placement(), 1, 0),
        "gpu_indices": None,
        "argv": argv,
        "launcher": container_command(site, program),
        "environment": dict(site.environment),
        "srun": ["--mpi=none", "--gres=none", *_srun(site, program)],
        "ports": service.frontend_ports,
        "ready": dict(entry["ready"]),
        "critical": True,
        "files": {file: f"slurm/{file}"},
        "start_after": [server.name for server in service.servers],
        "start_timeout_s": ROUTER_START_TIMEOUT_S,
        "stop_timeout_s": STOP_MARGIN_S,
    }


def _srun(site: Site, program: str) -> list[str]:
    """Of every step: it may share its node, its end is that of all ranks, without CPU binding."""
    shared = ["--overlap", "--kill-on-bad-exit=1", "--cpu-bind=none"]
    return [*shared, *container_options(site, program), *site.srun]


def rank_launcher(site: Site, context: RenderContext) -> str | None:
    """What starts a server's command on every rank; without it the engine starts its ranks."""
    return None if site.mpi == "none" else context.engine_record.rank_launcher


def _launcher(service: SlurmService, server: ServerInstance) -> list[str]:
    """What precedes the server's command: variables, the ranks' launcher, its memory.

    The ranks' launcher passes its arguments on without quotes: none of them may hold a space.
    """
    site, gpus = service.site, server.place.gpus
    environment = _environment(service, server)
    argv = ["env"]
    for name in LEAKED:
        argv += ["-u", name] if name not in environment else []
    if gpus:  # Slurm itself would show a step all GPUs of the job
        argv.append(f"CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))}")
    launcher = rank_launcher(site, server.side.context)
    alone = "slurm/node.sh" if server.place.nodes > 1 else "slurm/alone.sh"
    argv += [launcher] if launcher else ["bash", alone]
    return [*argv, *(["numactl", "-m", site.memory_nodes] if site.memory_nodes else [])]


def _environment(service: SlurmService, server: ServerInstance) -> dict[str, str]:
    """Variables of all ranks. The engine's own are here since only one rank runs the start script.

    Those of the site win; a checkpoint is named where the site says where it is. Behind a
    router on the same node, a server listens on the loopback address only.
    """
    site, context = service.site, server.side.context
    folders = {name: site.checkpoints.get(value) for name, value in context.checkpoints.items()}
    behind = service.has_router and not service.is_disaggregated
    launcher = rank_launcher(site, context)
    return {
        **context.environment,
        **site.environment,
        **{name: folder for name, folder in folders.items() if folder},
        "SERVE_HOST": LOOPBACK if behind else service.options.bind_host,
        **{f"SERVE_{name.upper()}_PORT": f"{{port:{name}}}" for name in server.ports},
        **({"SERVE_HEAD": "{host}"} if context.nodes > 1 and not launcher else {}),
        **({"INSTANCE": server.name.removeprefix(server.side.name)} if behind else {}),
    }


def container_options(site: Site, program: str) -> list[str]:
    """Pyxis options of a step; they are given to srun only, since sbatch may not know them."""
    image = site.container.images.get(program)
    if site.container.runtime != "pyxis" or image is None:
        return []
    root = ["--container-remap-root"] if site.container.remap_root else []
    return [
        f"--container-image={image}",
        f"--container-mounts={','.join(_mounts(site))}",
        *("--no-container-mount-home", "--no-container-entrypoint"),
        *root,
    ]


def container_command(site: Site, program: str) -> list[str]:
    image = site.container.images.get(program)
    if site.container.runtime != "apptainer" or image is None:
        return []
    return ["apptainer", "exec", "--nv", "--bind", ",".join(_mounts(site)), image]


def _mounts(site: Site) -> Iterator[str]:
    """In a container a folder has the name that it has outside, where its mount gives no other."""
    yield "{bundle}:{bundle}:ro"
    yield "{job}:{job}"
    for mount in site.container.mounts:
        yield mount if ":" in mount else f"{mount}:{mount}"


def _smoke(service: SlurmService) -> dict[str, Any] | None:
    """The smoke suite, where the toolkit is installed; else there is the canary request only."""
    python, ports = service.site.toolkit, service.frontend_ports
    if python is None:
        return None
    # The router of both sides does not tell the model; NVIDIA/TensorRT-LLM#12213.
    is_named = service.is_disaggregated or service.record.default_model is not None
    placeholders = {name: f"{{port:{name}}}" for name in ports}
    url = service.record.url("{host}", placeholders, service.model if is_named else None)
    argv = [python, "-m", "launch", "smoke", url, "--json"]
    return {"argv": argv, "timeout_s": SMOKE_TIMEOUT_S}


def _preflight(service: SlurmService) -> dict[str, Any]:
    """What a node must have before the long job may start."""
    site, context = service.site, service.sides[-1].context
    folders = context.checkpoints.items()
    image = site.container.images.get(service.target)
    launcher = rank_launcher(site, context)
    ranks = [launcher] if launcher else []
    return {
        "timeout_s": PREFLIGHT_TIMEOUT_S,
        "gpus": service.layout.parts[0].gpus_per_node,
        "mpi": site.mpi,
        "images": {service.target: image} if image else {},
        "mounts": [mount.partition(":")[0] for mount in site.container.mounts],
        "checkpoints": {name: site.checkpoints.get(value, value) for name, value in folders},
        "programs": [service.record.program, *ranks],
        "ports": sorted(set().union(*(step["ports"].values() for step in steps(service)))),
    }


def _network(service: SlurmService) -> dict[str, Any]:
    """What every node must have before servers transfer KV cache: rows of data, and the variables
    that servers get, where `None` unsets one."""
    environment: dict[str, str | None] = dict.fromkeys(LEAKED)
    for server in service.servers:
        own = _environment(service, server).items()
        environment |= {name: value for name, value in own if name.startswith("UCX_")}
    return {"environment": environment, "checks": network_checks.load()}


def sides_document(service: SlurmService) -> dict[str, Any]:
    """The option file of the router of both sides; `{NAME}` is the host of a server."""
    prefill, decode = (
        [f"{{{row.name}}}:{{port:{row.name}:http}}" for row in service.servers if row.side is side]
        for side in service.sides
    )
    port = service.options.router.http_port
    return router_document(service.options.bind_host, port, prefill, decode)
