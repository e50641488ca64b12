"""Why a deployment cannot run as a job, as far as that is known without a plan."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from ...deployment import Deployment, schema_problems
from ...diagnostics import Diagnostic
from ...facts.hardware import load as load_gpu
from ...servers import load, options_of
from ...site import TARGET
from .. import selected_server, selection_problems
from . import service
from .options import Options

HIGHEST_PORT = 65_535


def problems(deployment: Deployment) -> Iterator[Diagnostic]:
    options = Options.model_validate(deployment.targets[TARGET])
    if found := list(selection_problems(deployment, TARGET, options.server)):
        yield from found
        return
    server = selected_server(deployment, options.server)
    yield from _size_problems(deployment, options)
    yield from _role_problems(deployment, options)
    yield from _container_problems(options, server)
    yield from _access_problems(deployment, options, server)
    yield from _port_problems(deployment, options, server)


def _size_problems(deployment: Deployment, options: Options) -> Iterator[Diagnostic]:
    gpu, total = deployment.hardware.gpu, deployment.hardware.num_gpus
    size = load_gpu(gpu).gpus_per_node.value
    if total > size and deployment.instances > 1:
        what = f"{deployment.instances} have {total} GPUs and share one node: {gpu} has {size}"
        yield Diagnostic(
            "instances", what, "give at most one node's GPUs, and submit a job for each"
        )
    elif total > size and options.site.mpi == "none":
        what = f"is none, and ranks on {-(-total // size)} nodes find each other by MPI"
        yield Diagnostic(f"targets.{TARGET}.site.mpi", what, "name a plugin, such as pmix")


def _role_problems(deployment: Deployment, options: Options) -> Iterator[Diagnostic]:
    if options.prefill is None:
        return
    where = f"targets.{TARGET}.prefill"
    if deployment.role != "decode":
        what = f"is there, and role is {deployment.role}"
        yield Diagnostic(where, what, "set role: decode, or remove the prefill servers")
    if deployment.instances > 1:
        what = f"is there, and instances is {deployment.instances}"
        yield Diagnostic(
            where, what, f"set instances: 1, and the number by targets.{TARGET}.servers"
        )


def _container_problems(options: Options, server: str) -> Iterator[Diagnostic]:
    container = options.site.container
    if container.runtime != "none" and server not in container.images:
        what = f"has no image of {server} for runtime {container.runtime}"
        where = f"targets.{TARGET}.site.container.images"
        yield Diagnostic(where, what, f"add {server}: IMAGE")


def _access_problems(deployment: Deployment, options: Options, server: str) -> Iterator[Diagnostic]:
    """Health and smoke are asked over HTTP, from outside of the server's node."""
    given = deployment.targets[server]
    if given.get("http") is False:
        what = "is off, and the supervisor asks for health over HTTP"
        yield Diagnostic(f"targets.{server}.http", what, "set http: true")
        return
    if options.host != options.heard_at and server == "triton" and deployment.instances == 1:
        what = f"is {options.host}, and Triton itself listens on addresses only, not on names"
        yield Diagnostic(
            f"targets.{TARGET}.host", what, "remove it, or name an address of all nodes"
        )
    if given.get("grpc_tls") and deployment.instances > 1:
        what = "is there, and the router of several instances speaks plain gRPC"
        yield Diagnostic(f"targets.{server}.grpc_tls", what, "remove it, or set instances: 1")
    model = load(server).Options
    try:
        model.model_validate({**given, "host": options.heard_at})
    except ValidationError as fault:
        for problem in schema_problems(fault, model, f"targets.{server}"):
            yield Diagnostic(f"targets.{TARGET}.host", problem.message, problem.fix)


def _port_problems(deployment: Deployment, options: Options, server: str) -> Iterator[Diagnostic]:
    """The servers on a node and their router have ports of their own."""
    prefill = options.prefill.servers if options.prefill else 0
    count = deployment.instances * options.servers + prefill
    if count == 1:
        return
    most = min(count, load_gpu(deployment.hardware.gpu).gpus_per_node.value)
    given = options_of(deployment, server)
    ports = service.front_ports(given.ports, options.router)
    owners = dict.fromkeys(ports.values(), "the router")
    for number in range(most):
        owner = f"server {number}"
        for port in service.instance_ports(given.ports, number).values():
            if (other := owners.setdefault(port, owner)) != owner:
                what = f"port {port} is that of {other} and of {owner}"
                yield Diagnostic(f"targets.{server}", what, "give ports that are further apart")
            if port > HIGHEST_PORT:
                what = f"{owner} has port {port}; the highest is {HIGHEST_PORT}"
                yield Diagnostic(f"targets.{server}", what, "give lower ports, or fewer servers")
