"""What a deployment file says about the service under Kubernetes, and why it cannot run there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from ...deployment import Deployment, ImageReference, Strict
from ...diagnostics import Diagnostic
from ...facts.hardware import Gpu
from ...facts.hardware import load as load_gpu
from ...facts.servers import load as server_record
from ...observability import metrics, signals
from ...schema import Bounds, default
from ...servers import RenderContext
from .. import container, disaggregated, selected_server, unpinned
from ..container import ContainerOptions, Count, Seconds
from ..disaggregated import Prefill

LabelText = r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)"
ObjectName = Annotated[str, Bounds(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=63)]
LabelKey = Annotated[
    str, Bounds(pattern=rf"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?{LabelText}$", max_length=253)
]
LabelValue = Annotated[str, Bounds(pattern=rf"^{LabelText}?$", max_length=63)]
HostFolder = Annotated[str, Bounds(pattern=r"^/[A-Za-z0-9._/+=@-]*$", max_length=1000)]
SubPath = Annotated[str, Bounds(pattern=r"^([A-Za-z0-9._+=@-]+(/[A-Za-z0-9._+=@-]+)*)?$")]
Text = Annotated[str, Bounds(pattern=r"^[ -~]*$", max_length=1000)]
Percent = Annotated[int, Bounds(ge=1, le=100)]


class Csi(Strict):
    """A volume that its driver makes for each pod."""

    driver: LabelKey
    attributes: dict[LabelKey, Text] = default(dict)


class Volume(Strict):
    """Where a model is: in a claim, in a folder of every node, or behind a driver.

    `path` is the folder of the model in there; without it, the volume itself is.
    """

    claim: ObjectName | None = None
    host_path: HostFolder | None = None
    csi: Csi | None = None
    path: SubPath = ""

    def check(self) -> None:
        given = [name for name in ("claim", "host_path", "csi") if getattr(self, name) is not None]
        if len(given) != 1:
            said = " and ".join(given) or "none of claim, host_path and csi"
            raise ValueError(f"names {said}; give exactly one of claim, host_path and csi")
        if ".." in f"{self.path}/{self.host_path or ''}".split("/"):
            raise ValueError("leaves its folder by ..; give a path without it")


class DownloadOptions(Strict):
    """A claim for the checkpoint, which a Job fills once: from the hub, or from `s3`.

    `secret` has the variables of access, as HF_TOKEN or AWS_ACCESS_KEY_ID. For S3, `image` has the
    AWS command line; the hub is read with the server's image. Both are compared with digests: the
    hub's; for S3 the known ones of the checkpoint, or SHA256SUMS next to it in S3.
    """

    storage_class: ObjectName | None = None
    secret: ObjectName | None = None
    revision: Annotated[str, Bounds(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")] = "main"
    s3: Annotated[str, Bounds(pattern=r"^s3://[A-Za-z0-9._/-]+$")] | None = None
    image: ImageReference | None = None

    def check(self) -> None:
        if self.s3 and not self.image:
            raise ValueError("s3 needs an image with the AWS command line; give image")


class AutoscalingOptions(Strict):
    """Between how many servers, and at what load one more is asked for.

    `waiting_requests` and `kv_cache_percent` are the mean of the servers. With the URL of
    `prometheus`, KEDA reads what monitoring records there; else an adapter must offer it.
    """

    min_replicas: Count = 1
    max_replicas: Count
    waiting_requests: Count = 8
    kv_cache_percent: Percent = 80
    prometheus: Annotated[str, Bounds(pattern=r"^https?://[A-Za-z0-9._:/-]+$")] | None = None

    def check(self) -> None:
        if self.min_replicas > self.max_replicas:
            what = f"min_replicas {self.min_replicas} is above max_replicas {self.max_replicas}"
            raise ValueError(f"{what}; swap them")


class GatewayOptions(Strict):
    """A gateway that asks clients for a certificate: HAProxy, from any image that has it,
    with Lua where a server is known that JSON can end, as Triton: haproxy.org's own images have it.

    `tls_secret` holds `tls.crt`, `tls.key` and `ca.crt`, which verifies the clients.
    """

    image: ImageReference
    tls_secret: ObjectName
    replicas: Count = 2


class UpdateOptions(Strict):
    """How many servers may be too many, or missing, while a new version comes."""

    max_surge: Annotated[int, Bounds(ge=0, le=1_000)] = 0
    max_unavailable: Annotated[int, Bounds(ge=0, le=1_000)] = 1

    def check(self) -> None:
        if not self.max_surge and not self.max_unavailable:
            raise ValueError("max_surge and max_unavailable are both 0; raise one of them")


class KubernetesOptions(ContainerOptions):
    """How the service runs under Kubernetes.

    There are `replicas` servers, as many as the deployment has instances unless it says otherwise.
    A deployment of role decode names its `prefill` servers; a router then serves both sides.
    `model` is the volume of the checkpoint, `draft_model` that of the draft model; both are mounted
    read-only. With `download`, a Job fills the claim of `model`. `node_selector` replaces the one
    for the GPU. `key_secret` holds `key` for the restricted APIs, `tls_secret` the certificate for
    gRPC, and `group_secret` the certificate by which pods of one server on several nodes know each
    other. `resources` are further resources of the cluster, such as network adapters, and
    `resource_claims` templates of such claims. With `compute_domain`, pods on several nodes share a
    domain of multi-node NVLink, claimed through NVIDIA's DRA driver; it is on where NVLink goes
    from node to node. Nodes with the same value of the label `topology_key` are near each other: a
    server on several nodes gets a separate domain, both sides of a service share one.

    With `endpoint_picker`, the router of the project llm-d, which the site installs from its chart
    with values of the bundle, prefers the server that holds the longest prefix of a prompt.

    Before it starts, a pod compares its files with their digests, and models with known digests;
    with `verify_weights` the weights too, which reads them once more. `monitoring_namespace` may
    read the metrics; if they share the port of the API, only its pods with the labels
    `monitoring_pods` may.
    """

    replicas: Count | None = None
    prefill: Prefill | None = None
    model: Volume = Volume(claim="model")
    draft_model: Volume = Volume(claim="draft-model")
    download: DownloadOptions | None = None
    node_selector: dict[LabelKey, LabelValue] | None = None
    priority_class: ObjectName | None = None
    runtime_class: ObjectName | None = None
    image_pull_secrets: list[ObjectName] = default(list)
    key_secret: ObjectName = "server-key"
    tls_secret: ObjectName = "server-tls"
    group_secret: ObjectName = "server-group"
    topology_key: LabelKey | None = None
    resources: dict[LabelKey, Count] = default(dict)
    resource_claims: list[ObjectName] = default(list)
    compute_domain: bool | None = None
    monitoring_namespace: ObjectName = "monitoring"
    monitoring_pods: Annotated[dict[LabelKey, LabelValue], Bounds(min_length=1)] = default(
        lambda: {"app.kubernetes.io/name": "prometheus"}
    )
    deregistration_s: Seconds = 15
    verify_weights: bool = False
    update: UpdateOptions = UpdateOptions()
    autoscaling: AutoscalingOptions | None = None
    endpoint_picker: bool = False
    gateway: GatewayOptions | None = None
    kserve: bool = False


TARGET = "kubernetes"
SCALED_BY = ("waiting", "kv_cache")  # signals of the load that the autoscaler looks at
# What NVIDIA's GPU operator says of a node with multi-node NVLink: its domain and the part of it.
# Source: NVIDIA/topograph, pull requests 255 and 305.
NVLINK_LABEL = "nvidia.com/gpu.clique"


def diagnostics(deployment: Deployment) -> Iterator[Diagnostic]:
    options = KubernetesOptions.of(deployment.targets[TARGET])
    found = list(container.diagnostics(deployment, TARGET, options))
    yield from found or _own_diagnostics(deployment, options)


def prefill_diagnostics(deployment: Deployment, prefill: Deployment) -> Iterator[Diagnostic]:
    """Why prefill servers cannot run in the containers of the decode servers, whose image and
    options they have."""
    where = disaggregated.path(TARGET)
    server = selected_server(deployment, KubernetesOptions.of(deployment.targets[TARGET]).server)
    for row in container.port_diagnostics(prefill, server):
        yield replace(row, where=f"{where}.{row.where}")
    given, other = prefill.images.get(server), deployment.images.get(server)
    if given and given != other:
        what = f"is {given}, the decode servers have {other or 'that of their release'}"
        yield Diagnostic(f"{where}.images.{server}", what, "give both the same")


def warnings(context: RenderContext, options: KubernetesOptions) -> Iterator[Diagnostic]:
    """What a reader should know of the images, and of what servers need of a cluster."""
    yield from container.warnings(context, options)
    sides = [side for side in (context.prefill, context) if side]
    served = container.container(context, options)
    if any(replace(served, context=side).is_started_from_first_node for side in sides):
        yield _group_warning(options)
    gpu = load_gpu(context.deployment.hardware.gpu)
    several = sum(side.nodes for side in sides) > 1
    if (
        several
        and _has_domain(gpu)
        and not (options.compute_domain is not False or options.resource_claims)
    ):
        what = f"is off: pods on several nodes of {gpu.name} reach each other's memory by no NVLink"
        remedy = "remove it where NVIDIA's DRA driver runs"
        yield Diagnostic(f"targets.{TARGET}.compute_domain", what, remedy, severity="warning")
    if any(side.nodes > 1 for side in sides) and not options.update.max_unavailable:
        # Source: kubernetes-sigs/lws, issue 776.
        what = "is 0, which the StatefulSets behind a LeaderWorkerSet may refuse"
        remedy = "give 1, or make sure that your release of LeaderWorkerSet takes it"
        where = f"targets.{TARGET}.update.max_unavailable"
        yield Diagnostic(where, what, remedy, severity="warning")
    if options.autoscaling:
        yield from _scaling_warnings(served)
    if options.gateway and "@" not in options.gateway.image:
        yield unpinned(f"targets.{TARGET}.gateway.image", options.gateway.image)


def _scaling_warnings(served: container.Container) -> Iterator[Diagnostic]:
    """Loads by which the autoscaler cannot decide, since the server exports nothing of them."""
    server, release = served.server.record.name, served.context.release
    families = metrics.of_server(server, release)
    recorded, missing = signals.select(server, release, families, (), (), {})
    for name in SCALED_BY:
        if name not in recorded:
            what = f"{missing[name]}, so the autoscaler never adds a server for it"
            remedy = "take a server or release that exports it, or give replicas instead"
            yield Diagnostic(f"targets.{TARGET}.autoscaling", what, remedy, severity="warning")


def _group_warning(options: KubernetesOptions) -> Diagnostic:
    """What servers whose ranks one node starts need of the cluster."""
    what = f"the pods of one server know each other by the Secret {options.group_secret}"
    remedy = f"make it once in your namespace: bash kubernetes/secret.sh {options.group_secret}"
    return Diagnostic(f"targets.{TARGET}.group_secret", what, remedy, severity="warning")


def domain_is_on(context: RenderContext, options: KubernetesOptions) -> bool:
    """Whether pods claim a domain of multi-node NVLink: as the deployment says, or as they need."""
    if options.compute_domain is not None:
        return options.compute_domain
    several = context.nodes > 1 or context.prefill is not None
    return several and _has_domain(load_gpu(context.deployment.hardware.gpu))


def _has_domain(gpu: Gpu) -> bool:
    """Whether NVLink goes from node to node."""
    return gpu.nvlink_domain_gpus.value > gpu.gpus_per_node.value


def _own_diagnostics(deployment: Deployment, options: KubernetesOptions) -> Iterator[Diagnostic]:
    gpu = load_gpu(deployment.hardware.gpu)
    size = gpu.gpus_per_node.value
    nodes = -(-deployment.hardware.num_gpus // (size * deployment.instances))
    yield from _side_diagnostics(deployment, options)
    if options.prefill and nodes == 1 and options.update.max_unavailable != 1:
        what = (
            f"is {options.update.max_unavailable}, and servers of a side come one after the other"
        )
        remedy = "give 1: a StatefulSet replaces the servers of one node"
        yield Diagnostic(f"targets.{TARGET}.update.max_unavailable", what, remedy)
    if options.compute_domain and not (nodes > 1 or options.prefill):
        what = "is there, and a server has one node"
        yield Diagnostic(f"targets.{TARGET}.compute_domain", what, "remove it")
    elif options.compute_domain and not _has_domain(gpu):
        what = f"is there, and NVLink of {gpu.name} ends at its node"
        yield Diagnostic(f"targets.{TARGET}.compute_domain", what, "remove it")
    if nodes > 1 and deployment.instances > 1:
        what = (
            f"{deployment.instances} servers on several nodes each, and {gpu.name} has {size} GPUs"
        )
        remedy = f"give instances: 1 and its GPUs, and the number by targets.{TARGET}.replicas"
        yield Diagnostic("instances", what, remedy)
    if nodes > 1 and options.kserve:
        what = f"is there, and a server has {nodes} nodes"
        yield Diagnostic(
            f"targets.{TARGET}.kserve", what, "remove it: the LeaderWorkerSet holds them"
        )
    yield from _gateway_diagnostics(deployment, options)
    yield from _download_diagnostics(deployment, options)


# What to do about one side of a service that stands alone.
ALONE = {
    "prefill": f"name it in its decode deployment, by targets.{TARGET}.prefill.deployment",
    "decode": "add prefill: {deployment: FILE or preset, servers: 1}, or give role agg",
}


def _side_diagnostics(deployment: Deployment, options: KubernetesOptions) -> Iterator[Diagnostic]:
    """Why prefill and decode servers are no service: one knows the others by their numbers."""
    where = f"targets.{TARGET}"
    if options.prefill is None:
        if deployment.role in ALONE:
            what = f"kubernetes does not serve the {deployment.role} side alone"
            yield Diagnostic(f"{where}.prefill", what, ALONE[deployment.role])
        return
    yield from disaggregated.diagnostics(deployment, TARGET, f"{where}.replicas")
    listed = "the router of both sides has a fixed list of servers"
    unmeasured = "no signal says which of both sides has too few servers: the plan sizes them"
    given = (
        ("autoscaling", options.autoscaling, unmeasured, "give replicas and prefill.servers"),
        ("kserve", options.kserve, listed, "remove it: the router is before both sides"),
        ("update.max_surge", options.update.max_surge, listed, "give 0"),
    )
    for name, value, why, remedy in given:
        if value:
            yield Diagnostic(f"{where}.{name}", f"is there, and {why}", remedy)


HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def _download_diagnostics(
    deployment: Deployment, options: KubernetesOptions
) -> Iterator[Diagnostic]:
    where = f"targets.{TARGET}.download"
    if options.download is None:
        return
    if options.model.claim is None:
        yield Diagnostic(
            where, "is there, and the model is in no claim", "give model: {claim: NAME}"
        )
    if not (options.download.s3 or HUB_NAME.fullmatch(deployment.checkpoint)):
        what = f"is there, and {deployment.checkpoint} is no repository of the Hugging Face hub"
        yield Diagnostic(where, what, "give the checkpoint as OWNER/NAME, or s3 and image")


def _gateway_diagnostics(
    deployment: Deployment, options: KubernetesOptions
) -> Iterator[Diagnostic]:
    server = selected_server(deployment, options.server)
    if options.endpoint_picker and server_record(server).llm_d_engine is None:
        what = f"is there, and llm-d's router reads no requests of {server}"
        yield Diagnostic(f"targets.{TARGET}.endpoint_picker", what, "remove it")
    if options.gateway and deployment.targets[server].get("grpc_tls"):
        what = "is there, and the gateway speaks plain gRPC with the servers"
        yield Diagnostic(f"targets.{server}.grpc_tls", what, "remove it: the gateway encrypts")
