"""Describes the running servers in the runbook: ports, clients, secrets, GPUs and timeouts.

The facts of a cluster are read from the rendered Kubernetes objects and Slurm steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ... import site
from ...servers import PORT_STEP, RenderContext, RenderedServer
from .. import kubernetes, slurm
from ..kubernetes.objects import IMAGE_FETCH_S
from ..kubernetes.options import TARGET, KubernetesOptions
from ..kubernetes.workload import COMPONENT_LABEL
from .document import Block, Section, code, fill, note, paragraph, section, table

Object = Mapping[str, Any]
# The protocol of a port and its owners, by component and port.
Listeners = dict[tuple[str, int], tuple[str, list[str]]]

# The option with the number of servers of a target, not counting prefill servers.
NUMBERS = {site.TARGET: "servers", TARGET: "replicas"}
# The kinds of objects that make the pods of servers.
CONTROLLERS = ("Deployment", "StatefulSet", "LeaderWorkerSet")
# What a pod reads from the Secret in a volume, by the volume's name.
USES = {
    "server-key": "`key`: the key of the restricted APIs",
    "server-tls": "`tls.crt`, `tls.key`, and `ca.crt` if clients have certificates: TLS of gRPC",
    "server-group": (
        "type `kubernetes.io/tls`, made by `kubernetes/secret.sh`: by its certificate the pods of "
        "one server know each other"
    ),
}
GATEWAY_USE = "`tls.crt`, `tls.key` and `ca.crt` of the gateway, for clients"


def objects(context: RenderContext) -> list[Object]:
    """The rendered objects; none if the deployment does not run on Kubernetes."""
    given = context.deployment.targets.get(TARGET)
    return [] if given is None else kubernetes.all_objects(context, KubernetesOptions.of(given))


def service_listeners(context: RenderContext) -> Listeners:
    """The Kubernetes Services for clients, routers and Prometheus."""
    found: Listeners = {}
    for row in objects(context):
        if row["kind"] == "Service":
            component = row["metadata"]["labels"][COMPONENT_LABEL]
            for port in row["spec"]["ports"]:
                listener = found.setdefault((component, port["port"]), (port["name"], []))
                listener[1].append(row["metadata"]["name"])
    return found


def step_listeners(context: RenderContext) -> Listeners:
    found: Listeners = {}
    if given := context.deployment.targets.get(site.TARGET):
        for step in slurm.steps(context, slurm.Options.of(given)):
            for name, port in step["ports"].items():
                found.setdefault((step["role"], port), (name, []))[1].append(step["name"])
    return found


def gpus(context: RenderContext) -> str:
    """The number of GPUs of the service, per target if they differ."""
    deployment = context.deployment
    one = deployment.hardware.num_gpus // deployment.instances
    found = {}
    for target, number in NUMBERS.items():
        if given := deployment.targets.get(target):
            servers = given[number] or deployment.instances
            if target == site.TARGET and not given["prefill"]:
                servers = deployment.instances
            found[target] = one * servers
            if context.prefill and given["prefill"]:
                other = context.prefill.deployment.hardware.num_gpus
                found[target] += other * given["prefill"]["servers"]
    kind = deployment.hardware.gpu.upper()
    if len(set(found.values())) > 1:
        return ", ".join(f"{count}x {kind} ({target})" for target, count in found.items())
    return f"{next(iter(found.values()), deployment.hardware.num_gpus)}x {kind}"


def _secret_uses(rows: list[Object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pod in _pods(rows):
        for volume in pod["volumes"]:
            if "secret" in volume:
                use = USES.get(volume["name"], GATEWAY_USE)
                found.setdefault(volume["secret"]["secretName"], use)
        for row in pod.get("imagePullSecrets", ()):
            found.setdefault(row["name"], "type `kubernetes.io/dockerconfigjson`: login for images")
    return found


def start_timeout_s(rows: list[Object], least_s: int) -> int:
    """How long the slowest controller may take until its pods are ready, images included.

    A Deployment has a deadline; for other controllers it is what their pods' probes allow.
    """
    return max([least_s, *(_deadline_s(row) for row in _controllers(rows))])


def stop_timeout_s(rows: list[Object], least_s: int) -> int:
    """How long a pod may take to stop."""
    graces_s: list[int] = [pod["terminationGracePeriodSeconds"] for pod in _pods(rows)]
    return max([least_s, *graces_s])


def _deadline_s(controller: Object) -> int:
    if deadline_s := controller["spec"].get("progressDeadlineSeconds"):
        return int(deadline_s)
    first = next(_pods([controller]))
    probe = first["containers"][0].get("startupProbe", {"failureThreshold": 0, "periodSeconds": 0})
    return int(probe["failureThreshold"] * probe["periodSeconds"]) + IMAGE_FETCH_S


def _controllers(rows: list[Object]) -> Iterator[Object]:
    return (row for row in rows if row["kind"] in CONTROLLERS)


def _pods(rows: list[Object]) -> Iterator[Object]:
    for row in _controllers(rows):
        parts = row["spec"].get("leaderWorkerTemplate")
        templates = (
            [parts["leaderTemplate"], parts["workerTemplate"]]
            if parts
            else [row["spec"]["template"]]
        )
        yield from (template["spec"] for template in templates)


# The clients of a port, by its name.
CLIENTS = {
    "http": "clients or their gateway; health checks",
    "grpc": "clients or their gateway",
    "metrics": "Prometheus only",
}
PROTOCOLS = {"http": "HTTP", "grpc": "gRPC", "metrics": "HTTP, for metrics"}
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def ports(context: RenderContext) -> Section:
    blocks: list[Block] = list(_of_sides(context) if context.prefill else [_of_servers(context)])
    blocks += [paragraph(words) for words in _notes(context)]
    if context.prefill or any(
        server.entry["host"] not in LOOPBACK for server in context.servers.values()
    ):
        text = (
            "A server is reachable from other machines. It has no users and no rate limits: put a "
            "gateway with both in front of it, and block all other access to its ports."
        )
        blocks.append(note("Reachable by others", text))
    return section("network", {}, *blocks)


def _of_servers(context: RenderContext) -> Block:
    rows: list[tuple[str, ...]] = []
    for server in context.servers.values():
        rows += (_row(server, name) for name in server.ports)
    columns = ("port", "protocol", "server", "listens on", "clients", "protected by")
    return table("Ports", columns, rows)


def _of_sides(context: RenderContext) -> Iterator[Block]:
    given = {
        ("Ports under Slurm", "steps"): step_listeners(context),
        ("Ports under Kubernetes", "Services"): service_listeners(context),
    }
    for (title, named), listeners in given.items():
        rows = [
            (
                code(port),
                PROTOCOLS.get(name, name),
                component,
                ", ".join(owners),
                _askers(component, name),
            )
            for (component, port), (name, owners) in listeners.items()
        ]
        if rows:
            yield table(title, ("port", "protocol", "component", named, "clients"), tuple(rows))


def _askers(component: str, name: str) -> str:
    if component not in ("prefill", "decode") or name == "metrics":
        return CLIENTS.get(name, "clients")
    return "the router; Prometheus if metrics are on this port"


def _row(server: RenderedServer, name: str) -> tuple[str, ...]:
    return (
        code(server.ports[name]),
        PROTOCOLS[name],
        server.record.title,
        code(server.entry["host"]),
        CLIENTS[name],
        _protection(server, name),
    )


def _protection(server: RenderedServer, name: str) -> str:
    tls = server.tls
    if name == "grpc" and tls:
        return "mutual TLS" if tls.client_ca else "TLS"
    closed = bool(server.entry.get("restricted_apis")) and name in ("http", "grpc")
    return "nothing; management needs a key" if closed else "nothing"


def _notes(context: RenderContext) -> Iterator[str]:
    deployment = context.deployment
    if deployment.instances > 1:
        yield (
            f"{deployment.instances} instances share the node: each listens {PORT_STEP} ports "
            "above the previous one."
        )
    if context.nodes > 1:
        yield (
            f"One server spans {context.nodes} nodes. Open all ports between them: MPI and NCCL "
            "choose their own."
        )
    if context.prefill:
        yield "The KV cache is sent between the sides over ports that the transfer library chooses."
    elif deployment.role != "agg":
        yield (
            f"This is the {deployment.role} side of disaggregated serving: the KV cache is sent "
            "between the sides over ports that the transfer library chooses."
        )
    yield from _behind(context)
    quiet = context.engine_record.telemetry_variables
    if "1" in (context.environment.get(name) for name in quiet):
        yield "No outgoing requests: the engine's usage statistics are off."
    else:
        yield "The engine sends usage statistics to its vendor: the deployment enabled them."


def _behind(context: RenderContext) -> Iterator[str]:
    targets = context.deployment.targets
    if context.prefill:
        if "kubernetes" in targets:
            yield (
                "On Kubernetes, pods have the ports of their Services; access is defined in "
                "kubernetes/shared/network-policy.yaml."
            )
        return
    if slurm := targets.get(site.TARGET):
        router = ", ".join(f"{name} {port}" for name, port in slurm["router"].items())
        yield (
            f"On Slurm, the service listens on {slurm['host']} of its node, which every node can "
            f"reach; the router in front of several servers has {router}."
        )
    if "kubernetes" in targets:
        yield (
            "On Kubernetes, these are the ports of the pod and its Service; access is defined in "
            "kubernetes/shared/network-policy.yaml."
        )
    if "compose" in targets:
        yield "With Docker Compose, compose.yaml publishes the ports of the container."


def secrets(context: RenderContext) -> Section:
    rows = tuple(_secrets(context))
    columns = ("secret", "use", "location")
    return section("secrets", {}, table("Secrets", columns, rows))


def _secrets(context: RenderContext) -> Iterator[tuple[str, ...]]:
    for server in context.servers.values():
        environment: Mapping[str, str] = server.environment
        if file := environment.get("SERVE_KEY_FILE"):
            yield _secret("management key", f"restricted APIs of {server.record.title}", file)
        elif server.entry.get("restricted_apis"):
            words = (
                "none: the server uses a random key at each start, so these APIs are inaccessible"
            )
            use = f"restricted APIs of {server.record.title}"
            yield ("management key", use, words)
        if tls := server.tls:
            yield _secret("TLS certificate", f"gRPC of {server.record.title}", tls.certificate)
            yield _secret("TLS key", f"gRPC of {server.record.title}", tls.key)
            if tls.client_ca:
                yield _secret("CA of the clients", "verifies gRPC clients", tls.client_ca)
    yield (
        "hub token",
        "gated weights",
        fill(
            "none if `CHECKPOINT` names a folder; else `HF_TOKEN` in the environment of the first "
            "start",
            {},
        ),
    )
    for server in context.servers.values():
        if image := context.image(server.record.name):
            host = image.name.partition("/")[0]
            words = f"if {host} requires one: in the container runtime's credential store"
            yield ("registry login", f"image of {server.record.title}", words)

    for name, use in _secret_uses(objects(context)).items():
        place = "a Secret in its namespace; create it before the start"
        yield "Secret " + code(name), fill(use, {}), place


def _secret(name: str, use: str, file: str) -> tuple[str, ...]:
    return name, use, "file " + code(file)
