"""What the runbook says of the servers of a cluster, read from what is rendered for it.

That are the objects of Kubernetes and the steps of a job of Slurm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ... import site
from ...servers import RenderContext
from .. import kubernetes, slurm
from ..kubernetes.objects import IMAGE_FETCH_S
from ..kubernetes.options import TARGET, KubernetesOptions
from ..kubernetes.workload import COMPONENT_LABEL

Object = Mapping[str, Any]
# By the component of a service and its port: the port's protocol, and who has it.
Listeners = dict[tuple[str, int], tuple[str, list[str]]]

# The option that says how many servers a target runs, without those of prefill.
NUMBERS = {site.TARGET: "servers", TARGET: "replicas"}
# What a pod reads from the Secret of a volume, by the volume's name.
USES = {
    "server-key": "`key`: the key of the closed APIs",
    "server-tls": "`tls.crt`, `tls.key`, and `ca.crt` if clients have certificates: TLS of gRPC",
    "server-ssh": (
        "type `kubernetes.io/ssh-auth`: an ed25519 key, by which the pods of one server reach each "
        "other"
    ),
}
GATEWAY_USE = "`tls.crt`, `tls.key` and `ca.crt` of the gateway, for clients"


def objects(context: RenderContext) -> list[Object]:
    """None where the deployment does not run under Kubernetes."""
    given = context.deployment.targets.get(TARGET)
    return [] if given is None else kubernetes.all_objects(context, KubernetesOptions.of(given))


def service_listeners(context: RenderContext) -> Listeners:
    """The Services of Kubernetes that clients, routers and Prometheus ask."""
    found: Listeners = {}
    for row in objects(context):
        if row["kind"] == "Service":
            component = row["metadata"]["labels"][COMPONENT_LABEL]
            for port in row["spec"]["ports"]:
                listener = found.setdefault((component, port["port"]), (port["name"], []))
                listener[1].append(row["metadata"]["name"])
    return found


def step_listeners(context: RenderContext) -> Listeners:
    """The steps of a job of Slurm that listen."""
    found: Listeners = {}
    if given := context.deployment.targets.get(site.TARGET):
        for step in slurm.steps(context, slurm.Options.of(given)):
            for name, port in step["ports"].items():
                found.setdefault((step["role"], port), (name, []))[1].append(step["name"])
    return found


def gpus(context: RenderContext) -> str:
    """The number of GPUs of the service, for each target that runs it where they differ."""
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


def secrets(rows: list[Object]) -> dict[str, str]:
    """What each Secret that pods name is for."""
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

    A Deployment says so itself; for the others it is what the probe of their pods allows.
    """
    return max([least_s, *(_deadline_s(row) for row in _controllers(rows))])


def stop_timeout_s(rows: list[Object], least_s: int) -> int:
    """How long a pod may take to end."""
    graces_s: list[int] = [pod["terminationGracePeriodSeconds"] for pod in _pods(rows)]
    return max([least_s, *graces_s])


def _deadline_s(controller: Object) -> int:
    if deadline_s := controller["spec"].get("progressDeadlineSeconds"):
        return int(deadline_s)
    first = next(_pods([controller]))
    probe = first["containers"][0].get("startupProbe", {"failureThreshold": 0, "periodSeconds": 0})
    return int(probe["failureThreshold"] * probe["periodSeconds"]) + IMAGE_FETCH_S


def _controllers(rows: list[Object]) -> Iterator[Object]:
    kinds = ("Deployment", "StatefulSet", "LeaderWorkerSet")
    return (row for row in rows if row["kind"] in kinds)


def _pods(rows: list[Object]) -> Iterator[Object]:
    for row in _controllers(rows):
        parts = row["spec"].get("leaderWorkerTemplate")
        templates = (
            [parts["leaderTemplate"], parts["workerTemplate"]]
            if parts
            else [row["spec"]["template"]]
        )
        yield from (template["spec"] for template in templates)
