"""Why a deployment cannot run under Kubernetes, as far as that is known without a plan."""

from __future__ import annotations

from collections.abc import Iterator

from ...deployment import Deployment
from ...diagnostics import Diagnostic
from ...facts.hardware import load as load_gpu
from ...servers import BundleContext
from .. import choice, container
from .options import Options

TARGET = "kubernetes"


def problems(deployment: Deployment) -> Iterator[Diagnostic]:
    options = Options.model_validate(deployment.targets[TARGET])
    found = list(container.problems(deployment, TARGET, options))
    yield from found or _own_problems(deployment, options)


def warnings(context: BundleContext, options: Options) -> Iterator[Diagnostic]:
    """What a reader should know of the images."""
    yield from container.warnings(context, options)
    if context.nodes > 1:
        what = "pods of one server reach each other over SSH, which the engine's images do not have"
        remedy = (
            "add openssh-server to the image, and keep an ed25519 key in the Secret "
            f"{options.ssh_secret} of type kubernetes.io/ssh-auth"
        )
        yield Diagnostic(f"targets.{TARGET}.ssh_secret", what, remedy, severity="warning")
    if context.nodes > 1 and not options.update.max_unavailable:
        # Source: kubernetes-sigs/lws, issue 776.
        what = "is 0, which the StatefulSets behind a LeaderWorkerSet may refuse"
        remedy = "give 1, or make sure that your release of LeaderWorkerSet takes it"
        where = f"targets.{TARGET}.update.max_unavailable"
        yield Diagnostic(where, what, remedy, severity="warning")
    if options.gateway and "@" not in options.gateway.image:
        what = f"{options.gateway.image} has no digest, and a tag can come to mean another image"
        remedy = "give REFERENCE@sha256:DIGEST, as your registry shows it"
        yield Diagnostic(f"targets.{TARGET}.gateway.image", what, remedy, severity="warning")


def _own_problems(deployment: Deployment, options: Options) -> Iterator[Diagnostic]:
    gpu, total = deployment.hardware.gpu, deployment.hardware.num_gpus
    size = load_gpu(gpu).gpus_per_node.value
    if total <= size * deployment.instances:
        yield from _gateway_problems(deployment, options)
        return
    nodes = -(-total // size)
    if deployment.instances > 1:
        what = f"{deployment.instances} servers on several nodes each, and {gpu} has {size} GPUs"
        remedy = f"give instances: 1 and its GPUs, and the number by targets.{TARGET}.replicas"
        yield Diagnostic("instances", what, remedy)
    if options.kserve:
        what = f"is there, and a server has {nodes} nodes"
        yield Diagnostic(
            f"targets.{TARGET}.kserve", what, "drop it: the LeaderWorkerSet holds them"
        )
    yield from _gateway_problems(deployment, options)


def _gateway_problems(deployment: Deployment, options: Options) -> Iterator[Diagnostic]:
    server = choice.server_of(deployment, options.server)
    if options.gateway and deployment.targets[server].get("grpc_tls"):
        what = "is there, and the gateway speaks plain gRPC with the servers"
        yield Diagnostic(f"targets.{server}.grpc_tls", what, "drop it: the gateway encrypts")
