"""The pod of a server: one container on one node, with nothing that it does not need."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from ...facts.hardware import load as load_gpu
from ...facts.images import Image
from ...render import CommentedValue
from ..container import BUNDLE, HOME, KEY_FOLDER, SCRATCH_GIB, TLS_FOLDER, USER, Container
from .options import KubernetesOptions, Volume
from .workload import COMPONENT_LABEL, INSTANCE_LABEL, SERVER, Workload, files_volume

LEADER = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
LEADER_HOST = "LWS_LEADER_ADDRESS"
STAYS = "Its ranks answer until the first pod takes no connections: its name may be the next one's"
# Where a pod keeps the address of the first one, in a folder that it may write to.
LEADER_FILE = "$TMPDIR/leader"
GROUP_FOLDER = "/run/secrets/server-group"
GROUP_PORT = 2222
SECRET_MODE = 0o440
CHECK = "sha256sum --check --quiet --strict"

# Life is asked for when the start is over, and no more when the pod ends: a server may load and
# drain for as long as it needs to. In between it has two minutes to answer under load.
# Source: kubernetes/kubernetes, pkg/kubelet/kubelet.go, SyncTerminatingPod.
STARTUP_PERIOD_S = 10
READINESS = {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3}
LIVENESS = {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 12}

# One token. A server that is busy may let it wait; one that has ended refuses at once.
GENERATION_PERIOD_S, GENERATION_TIMEOUT_S = 10, 120
GENERATES = """\
import sys, urllib.request
kind = {"Content-Type": "application/json"}
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), kind)
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).read()
"""

SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def pod(workload: Workload) -> dict[str, Any]:
    """The pod of a server, or of the first of its nodes."""
    claims = [
        {"name": name, "resourceClaimTemplateName": template}
        for name, template in workload.claims.items()
    ]
    return {
        **placed(workload),
        **_near(workload),
        **({"resourceClaims": claims} if claims else {}),
        "terminationGracePeriodSeconds": grace(workload),
        "initContainers": [_verification(workload)],
        "containers": [_server(workload)],
        "volumes": _volumes(workload),
    }


def placed(workload: Workload) -> dict[str, Any]:
    """What pods of all components have: no rights of their own, and a node with the driver."""
    container, options = workload.container, workload.options
    asked: dict[str, Any] = {
        "priorityClassName": options.priority_class,
        "runtimeClassName": options.runtime_class,
        "imagePullSecrets": [{"name": name} for name in options.image_pull_secrets],
    }
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": CommentedValue(
            False, "Variables of other services could be mistaken for settings of the server"
        ),
        "securityContext": SECURITY,
        "nodeSelector": _node_selector(container, options),
        "tolerations": _tolerations(container),
        **{key: value for key, value in asked.items() if value},
    }


def grace(workload: Workload) -> CommentedValue:
    """How long a pod has from when it is to go until it is killed."""
    wait_s, stop_s = workload.options.deregistration_s, workload.container.stop_s
    return CommentedValue(
        stop_s + wait_s,
        f"{wait_s} s until clients send no more requests, and {stop_s} s for requests in flight",
    )


def worker_pod(workload: Workload) -> dict[str, Any]:
    """The pod of every other node of a server; only the first node answers requests.

    It listens only if the first node starts its ranks.
    """
    found = pod(workload)
    server = {
        name: value
        for name, value in found["containers"][0].items()
        if name not in ("startupProbe", "livenessProbe", "lifecycle")
    }
    if workload.container.is_started_from_first_node:
        server["ports"] = [{"name": "ranks", "containerPort": GROUP_PORT, "protocol": "TCP"}]
        server["readinessProbe"] = {"tcpSocket": {"port": "ranks"}, **READINESS}
    else:
        del server["ports"], server["readinessProbe"]
        stay = {"exec": {"command": ["bash", "-c", _stay(workload)]}}
        server["lifecycle"] = {"preStop": CommentedValue(stay, STAYS)}
        server["command"] = ["bash", "-c", f"{_NOTE_LEADER} {server['command'][-1]}"]
    found.pop("topologySpreadConstraints", None)  # it belongs to its group, wherever that is
    return {**found, "containers": [server]}


# The trap lets a pod end that waits: a shell that is process 1 ignores what it does not trap.
_NOTE_LEADER = (
    f"trap exit TERM; until getent hosts ${LEADER_HOST} >{LEADER_FILE}; do sleep 1; done;"
)


def _stay(workload: Workload) -> str:
    """Waits until the first pod is gone: a server closes its port before its last answers are out,
    and its ranks listen to each other until then."""
    command = workload.container.server.record.node_command
    assert command is not None  # or the first pod would start the ranks
    ports = (workload.container.ports["http"], command["head_port"])
    takes = " || ".join(f"takes {port}" for port in ports)
    return (
        f"read -r leader _ <{LEADER_FILE}; "
        'takes() { timeout 2 bash -c ": </dev/tcp/$leader/$1" 2>/dev/null; }; '
        f"while {takes}; do sleep 1; done"
    )


def first_pods(workload: Workload) -> dict[str, str]:
    """The labels of one pod for each server: its only one, or the first of a group."""
    first = LEADER if workload.nodes > 1 else {}
    return {**workload.selector(), **first}


def _verification(workload: Workload) -> dict[str, Any]:
    """The init container that fails if a file differs from the rendered one.

    The digest of the list is in the pod itself, so a changed file needs a changed pod as well.
    """
    container, listed = workload.container, workload.files_list
    lines = [
        f"cd {BUNDLE}",
        f"echo '{workload.lists[listed].sha256}  {listed}' | {CHECK} -",
        f"{CHECK} {listed}",
    ]
    for folder, role in zip(container.models.values(), workload.model_volumes, strict=True):
        if (known := workload.list_path(role)) in workload.lists:
            lines += [f"cd {folder}", f"{CHECK} --ignore-missing {BUNDLE}/{known}"]
    own = {"bundle", *workload.model_volumes}
    return verification(
        container.image, lines, [row for row in _mounts(workload) if row["name"] in own]
    )


def contained(
    name: str,
    image: str,
    command: list[str],
    mounts: list[dict[str, Any]],
    environment: Mapping[str, str] = MappingProxyType({}),
    ports: Mapping[str, int] = MappingProxyType({}),
    why: str = "",
    **more: Any,
) -> dict[str, Any]:
    """A container of any pod, which may write to its volumes only; `more` are its other fields, and
    `why` is about its environment."""
    variables = [{"name": key, "value": value} for key, value in environment.items()]
    opened = [
        {"name": key, "containerPort": port, "protocol": "TCP"} for key, port in ports.items()
    ]
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        **({"env": CommentedValue(variables, why) if why else variables} if variables else {}),
        **({"ports": opened} if opened else {}),
        **more,
        "securityContext": RESTRICTED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def verification(
    image: Image, lines: Iterable[str], mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    """A container that runs lines of a shell before the pod's own one starts."""
    command = ["bash", "-euo", "pipefail", "-c", "".join(f"{line}\n" for line in lines)]
    size = {"requests": {"cpu": "1", "memory": "256Mi"}, "limits": {"memory": "256Mi"}}
    return contained("verify", image.reference, command, mounts, resources=size)


def _server(workload: Workload) -> dict[str, Any]:
    container = workload.container
    return contained(
        *(SERVER, container.image.reference, _command(workload), _mounts(workload)),
        _environment(workload),
        container.ports,
        **probes(container, container.start_s) | _generation(workload),
        lifecycle={"preStop": {"sleep": {"seconds": workload.options.deregistration_s}}},
        resources=_resources(workload),
    )


def probes(container: Container, start_s: CommentedValue) -> dict[str, Any]:
    """Of a server, or of the router that answers like one, which may take so long to start."""
    ready = _probe(container, container.ready_path)
    periods = -(-int(start_s.value) // STARTUP_PERIOD_S)
    return {
        "startupProbe": {
            **ready,
            "periodSeconds": STARTUP_PERIOD_S,
            "timeoutSeconds": 5,
            "failureThreshold": CommentedValue(periods, start_s.reason),
        },
        "readinessProbe": {**ready, **READINESS},
        "livenessProbe": CommentedValue(
            {**_probe(container, container.server.record.paths["live"]), **LIVENESS},
            "Asked neither before the first answer nor while the pod ends",
        ),
    }


def _generation(workload: Workload) -> dict[str, Any]:
    """The probes of a server that a router asks: it has to answer the smallest request.

    A process that listens may have lost a rank, and its first answer may take minutes. Decode
    servers answer whole requests (NVIDIA/TensorRT-LLM tensorrt_llm/serve/openai_disagg_service.py
    @00bb903, need_ctx); that prefill servers do is assumed.
    """
    if not workload.is_side:
        return {}
    container = workload.container
    [folder, *_] = container.models.values()
    model = container.server.entry.get("model_name") or PurePosixPath(folder).name
    canary = container.server.record.canary_for(str(model))
    url = f"http://localhost:{container.ports['http']}{canary['path']}"
    command = ["python3", "-c", GENERATES, url, json.dumps(canary["body"])]
    asked = {"exec": {"command": command}, "timeoutSeconds": GENERATION_TIMEOUT_S}
    start = probes(container, container.start_s)["startupProbe"]
    started = {"periodSeconds": STARTUP_PERIOD_S, "failureThreshold": start["failureThreshold"]}
    ready = {
        "periodSeconds": GENERATION_PERIOD_S,
        "failureThreshold": READINESS["failureThreshold"],
    }
    return {"startupProbe": {**asked, **started}, "readinessProbe": {**asked, **ready}}


def _command(workload: Workload) -> list[str]:
    """The server's own command, to which its controller's variables say which node it is."""
    container = workload.container
    if workload.nodes == 1:
        return container.command
    if container.is_started_from_first_node:
        return ["bash", f"{BUNDLE}/kubernetes/group.sh"]
    given = f"SERVE_NODE=$LWS_WORKER_INDEX SERVE_HEAD=${LEADER_HOST}"
    return ["bash", "-c", f"{given} exec {shlex.join(container.command)}"]


def _environment(workload: Workload) -> dict[str, str]:
    container = workload.container
    if not container.is_started_from_first_node:
        return container.environment
    return {
        **container.environment,
        "GROUP_SCRIPT": container.command[1],
        "GROUP_RANKS_PER_NODE": str(container.gpus),
        "GROUP_PORT": str(GROUP_PORT),
        "GROUP_TLS_FOLDER": GROUP_FOLDER,
        "GROUP_START_TIMEOUT_S": str(container.start_s.value),
    }


def _probe(container: Container, path: str) -> dict[str, Any]:
    match container.health_protocol:
        case "http":
            return {"httpGet": {"path": path, "port": "http", "scheme": "HTTP"}}
        case "grpc":
            return {"grpc": {"port": container.ports["grpc"]}}
        case "tcp":
            return {"tcpSocket": {"port": next(iter(container.ports))}}


def _resources(workload: Workload) -> dict[str, Any]:
    """No limit of cores: a server that is held back for a moment holds all its GPUs back."""
    container, options = workload.container, workload.options
    memory, cpus = container.memory_gib, container.cpus
    claims = [{"name": name} for name in workload.claims]
    exact: dict[str, str | CommentedValue] = {
        "nvidia.com/gpu": str(container.gpus),
        "memory": CommentedValue(f"{memory.value}Gi", memory.reason),
        "ephemeral-storage": CommentedValue(
            f"{2 * SCRATCH_GIB}Gi", f"{SCRATCH_GIB} GiB each for {HOME} and /tmp [assumed]"
        ),
        **{name: str(count) for name, count in options.resources.items()},
    }
    return {
        "requests": {"cpu": CommentedValue(str(cpus.value), cpus.reason), **exact},
        "limits": {name: _value(quantity) for name, quantity in exact.items()},
        **({"claims": claims} if claims else {}),
    }


def _value(quantity: str | CommentedValue) -> str:
    return str(quantity.value) if isinstance(quantity, CommentedValue) else quantity


def _mounts(workload: Workload) -> list[dict[str, Any]]:
    folders = workload.container.models.values()
    volumes = workload.model_volumes.items()
    return [
        {"name": "bundle", "mountPath": BUNDLE, "readOnly": True},
        *(
            {"name": role, "mountPath": folder, **_read(volume)}
            for folder, (role, volume) in zip(folders, volumes, strict=True)
        ),
        {"name": "home", "mountPath": HOME},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
        *(
            {"name": name, "mountPath": folder, "readOnly": True}
            for name, _, folder in _secrets(workload)
        ),
    ]


def _read(volume: Volume) -> dict[str, Any]:
    return {"readOnly": True, **({"subPath": volume.path} if volume.path else {})}


def _volumes(workload: Workload) -> list[dict[str, Any]]:
    shm = workload.container.shm_gib
    scratch = {"sizeLimit": f"{SCRATCH_GIB}Gi"}
    in_memory = {"medium": "Memory", "sizeLimit": CommentedValue(f"{shm.value}Gi", shm.reason)}
    return [
        {"name": "bundle", "projected": files_volume(workload.maps)},
        *(
            {"name": role, **_source(workload, role, volume)}
            for role, volume in workload.model_volumes.items()
        ),
        {"name": "home", "emptyDir": scratch},
        {"name": "tmp", "emptyDir": scratch},
        {"name": "shm", "emptyDir": in_memory},
        *(
            {"name": name, "secret": {"secretName": secret, "defaultMode": SECRET_MODE}}
            for name, secret, _ in _secrets(workload)
        ),
    ]


def _source(workload: Workload, role: str, volume: Volume) -> dict[str, Any]:
    """A folder of the node is mounted through a claim, since restricted pods may mount no path."""
    if volume.csi is None:
        claim = volume.claim or workload.called(role)
        return {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    attributes = {"volumeAttributes": dict(volume.csi.attributes)} if volume.csi.attributes else {}
    return {"csi": {"driver": volume.csi.driver, "readOnly": True, **attributes}}


def _secrets(workload: Workload) -> list[tuple[str, str, str]]:
    """The secrets that the server reads: volume, name of the Secret, and folder."""
    container, options = workload.container, workload.options
    rows = {
        ("server-key", options.key_secret, KEY_FOLDER): container.server.has_key,
        ("server-tls", options.tls_secret, TLS_FOLDER): bool(container.server.tls),
        ("server-group", options.group_secret, GROUP_FOLDER): container.is_started_from_first_node,
    }
    return [row for row, is_needed in rows.items() if is_needed]


def _node_selector(container: Container, options: KubernetesOptions) -> dict[str, Any]:
    arch = {"kubernetes.io/arch": container.architecture}
    if options.node_selector is not None:
        return {**options.node_selector, **arch}
    row = load_gpu(container.context.deployment.hardware.gpu).kubernetes_product
    doubt = "" if row.verified else "; not verified: kubectl get nodes -L nvidia.com/gpu.product"
    product = CommentedValue(row.value, f"{row.source}{doubt}")
    return {"nvidia.com/gpu.product": product, **arch}


def _tolerations(container: Container) -> list[dict[str, str]]:
    """Of nodes that keep others away from their GPUs, or from another kind of processor."""
    found = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    if container.architecture != "amd64":
        other = {"key": "kubernetes.io/arch", "operator": "Equal", "value": container.architecture}
        found.append({**other, "effect": "NoSchedule"})
    return found


def _near(workload: Workload) -> dict[str, Any]:
    """Where servers are to each other: those of two sides exchange the KV cache."""
    if workload.is_side:
        return _together(workload)
    return {"topologySpreadConstraints": _spread(workload)}


def _together(workload: Workload) -> dict[str, Any]:
    """All pods of both sides in one domain, if it is known which nodes that has."""
    if (key := workload.topology_key) is None:
        return {}
    term = {
        "topologyKey": key,
        "labelSelector": {
            "matchExpressions": [
                {"key": INSTANCE_LABEL, "operator": "In", "values": [workload.name]},
                {"key": COMPONENT_LABEL, "operator": "In", "values": list(workload.peers)},
            ]
        },
    }
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def _spread(workload: Workload) -> list[dict[str, Any]]:
    """One zone or node less takes as few servers as possible."""
    selector = {"matchLabels": first_pods(workload)}
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": selector,
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]
