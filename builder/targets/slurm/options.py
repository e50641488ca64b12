"""What a deployment file says about the service under Slurm, and why it cannot be a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from ...deployment import Deployment, ServerName, Strict
from ...diagnostics import Diagnostic
from ...facts import engines
from ...facts.hardware import load as load_gpu
from ...schema import Bounds
from ...servers import PORT_STEP, Host, Port, RenderContext, is_address, options_of
from ...site import TARGET, Site
from .. import disaggregated, host_diagnostics, selected_server, selection_diagnostics, unpinned
from ..container import Count
from ..disaggregated import Prefill

# Slurm keeps the time of `--signal` in 16 bits.
MAX_LEAD_S = 65_535
# It looks every 30 seconds whether a time is up, and the signal may come so much early.
# Source: measured on Slurm 22.05 with --signal=B:USR1@70 -t 2.
SIGNAL_SLACK_S = 60

MAX_PORT = 65_535
IMAGE_FILES = (".sqsh", ".sif")
EVERYWHERE = "0.0.0.0"
THE_NODE = "node"

Seconds = Annotated[int, Bounds(ge=1, le=31_536_000)]


class RouterPorts(Strict):
    """Where the router in front of several servers listens."""

    http_port: Port = 9000
    grpc_port: Port = 9001

    def check(self) -> None:
        if self.http_port == self.grpc_port:
            raise ValueError("http_port and grpc_port collide; give each its own number")

    def ports(self, served: Mapping[str, int]) -> dict[str, int]:
        """Its ports for the protocols that its servers speak with clients."""
        own = {"http": self.http_port, "grpc": self.grpc_port}
        return {name: port for name, port in own.items() if name in served}


class SlurmOptions(Strict):
    """How the service runs under Slurm.

    `site` is the profile of the cluster, usually the name of its file. `server` is the target that
    runs if there are several. A service under Slurm has clients on other nodes: its frontend
    listens on every address of its node unless `host` is set; `node` means the address of the
    node's name.

    `successor_lead_s` before its time limit the job submits a successor, which needs that time to
    queue, start and be admitted. Then the job drains for `drain_s`.

    A deployment of role decode may name its `prefill` servers; the service then consists of them,
    of `servers` decode servers and of a router.
    """

    site: Site
    server: ServerName | None = None
    host: Host = EVERYWHERE
    time_limit_s: Seconds = 28_800
    successor_lead_s: Annotated[int, Bounds(ge=60, le=MAX_LEAD_S)] = 3_000
    drain_s: Seconds = 300
    attempts: Annotated[int, Bounds(ge=1, le=100)] = 3
    router: RouterPorts = RouterPorts()
    servers: Count = 1
    prefill: Prefill | None = None

    @property
    def bind_host(self) -> str:
        """The address in the files of a job, in which `{host}` is filled in on its node."""
        return "{host}" if self.host == THE_NODE else self.host

    @property
    def listen_address(self) -> str:
        """The address, or the part of it that is known before the job runs."""
        return self.host if is_address(self.host) else EVERYWHERE

    @classmethod
    def prepared(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("site") is None:
            raise ValueError("has no site; name the file of a profile, here or with --site FILE")
        return data

    def check(self) -> None:
        least = self.successor_lead_s + SIGNAL_SLACK_S
        if self.time_limit_s <= least:
            what = f"time_limit_s {self.time_limit_s} is over before a successor could be ready"
            raise ValueError(f"{what}; give more than {least}, or lower successor_lead_s")
        if self.drain_s >= self.successor_lead_s:
            what = f"drain_s {self.drain_s} leaves a successor no time"
            raise ValueError(f"{what}; give less than successor_lead_s {self.successor_lead_s}")
        if self.servers > 1 and self.prefill is None:
            what = f"servers is {self.servers}, which only a deployment with prefill servers has"
            raise ValueError(f"{what}; remove it, or submit the job so many times")


def instance_ports(ports: Mapping[str, int], slot: int) -> dict[str, int]:
    """The ports of one of several servers on a node, as the start scripts set them."""
    return {name: port + slot * PORT_STEP for name, port in ports.items()}


def diagnostics(deployment: Deployment) -> Iterator[Diagnostic]:
    options = SlurmOptions.of(deployment.targets[TARGET])
    if found := list(selection_diagnostics(deployment, TARGET, options.server)):
        yield from found
        return
    server = selected_server(deployment, options.server)
    yield from _size_diagnostics(deployment, options)
    if options.prefill:
        number = f"targets.{TARGET}.servers"
        yield from disaggregated.diagnostics(deployment, TARGET, number)
    yield from _container_diagnostics(options, server)
    yield from _access_diagnostics(deployment, options, server)
    yield from _port_diagnostics(deployment, options, server)


def _size_diagnostics(deployment: Deployment, options: SlurmOptions) -> Iterator[Diagnostic]:
    gpu, total = deployment.hardware.gpu, deployment.hardware.num_gpus
    needs_mpi = engines.load(deployment.engine.name).rank_launcher is not None
    size = load_gpu(gpu).gpus_per_node.value
    if total > size and deployment.instances > 1:
        what = f"{deployment.instances} have {total} GPUs and share one node: {gpu} has {size}"
        yield Diagnostic(
            "instances", what, "give at most one node's GPUs, and submit a job for each"
        )
    elif total > size and options.site.mpi == "none" and needs_mpi:
        what = f"'none' does not connect ranks on {-(-total // size)} nodes, which need MPI"
        yield Diagnostic(f"targets.{TARGET}.site.mpi", what, "name a plugin, such as pmix")


def warnings(context: RenderContext, options: SlurmOptions) -> Iterator[Diagnostic]:
    """What a reader should know of the image. One that is a file is what it is."""
    container = options.site.container
    server = selected_server(context.deployment, options.server)
    image = container.images.get(server)
    if container.runtime == "none" or image is None or "@sha256:" in image:
        return
    if not image.startswith("/") and not image.endswith(IMAGE_FILES):
        yield unpinned(f"targets.{TARGET}.site.container.images.{server}", image)


def _container_diagnostics(options: SlurmOptions, server: str) -> Iterator[Diagnostic]:
    container = options.site.container
    if container.runtime != "none" and server not in container.images:
        what = f"has no image of {server} for runtime {container.runtime}"
        where = f"targets.{TARGET}.site.container.images"
        yield Diagnostic(where, what, f"add {server}: IMAGE")


def _access_diagnostics(
    deployment: Deployment, options: SlurmOptions, server: str
) -> Iterator[Diagnostic]:
    """Health and smoke use HTTP, from outside of the server's node."""
    given = deployment.targets[server]
    if given.get("http") is False:
        what = "is off, and the supervisor probes health over HTTP"
        yield Diagnostic(f"targets.{server}.http", what, "set http: true")
        return
    if given.get("grpc_tls") and deployment.instances > 1:
        what = "is there, and the router of several instances speaks plain gRPC"
        yield Diagnostic(f"targets.{server}.grpc_tls", what, "remove it, or set instances: 1")
    host = options.listen_address if deployment.instances > 1 else options.host
    yield from host_diagnostics(deployment, TARGET, server, host)


def _port_diagnostics(
    deployment: Deployment, options: SlurmOptions, server: str
) -> Iterator[Diagnostic]:
    """The servers on a node and their router have ports of their own."""
    prefill = options.prefill.servers if options.prefill else 0
    count = deployment.instances * options.servers + prefill
    if count == 1:
        return
    most = min(count, load_gpu(deployment.hardware.gpu).gpus_per_node.value)
    given = options_of(deployment, server)
    ports = options.router.ports(given.ports)
    owners = dict.fromkeys(ports.values(), "the router")
    for number in range(most):
        owner = f"server {number}"
        for port in instance_ports(given.ports, number).values():
            if (other := owners.setdefault(port, owner)) != owner:
                what = f"port {port} is that of {other} and of {owner}"
                yield Diagnostic(f"targets.{server}", what, "give ports that are further apart")
            if port > MAX_PORT:
                what = f"{owner} has port {port}; the highest is {MAX_PORT}"
                yield Diagnostic(f"targets.{server}", what, "give lower ports, or fewer servers")
