"""The objects around a server's pods: what runs them, finds them, guards them and scales them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ...render import CommentedValue
from .options import AutoscalingOptions, Volume
from .pod import first_pods, pod, worker_pod
from .workload import CLIENT_LABEL, SERVER, ObjectNames, Workload

# Images of servers are this large, and a node may have to fetch one before anything starts.
IMAGE_FETCH_S = 1800
# Source: ai-dynamo/dynamo@015d780, deploy/operator/internal/dynamo/backend_trtllm.go, which starts
# ranks over SSH in the same way; names of hosts: kubernetes-sigs/lws, KEP of headless services.
UNTRIED = (
    "Open MPI over SSH between pods without rights was tried with stand-ins for the engine, not "
    "with the engine, nor on a cluster; fast networks between nodes come by options of this target"
)
GROUP_VERSION = "leaderworkerset.x-k8s.io/v1"
TOPOLOGY_ANNOTATION = "leaderworkerset.sigs.k8s.io/exclusive-topology"


def deployment(workload: Workload) -> dict[str, Any]:
    """The servers, each on one node."""
    names, update, start = workload.names, workload.options.update, workload.container.start_s
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(names, names.base, SERVER),
        "spec": {
            **_replicas(workload),
            "revisionHistoryLimit": 5,
            "progressDeadlineSeconds": CommentedValue(
                start.value + IMAGE_FETCH_S,
                f"The start, and {IMAGE_FETCH_S} s to fetch the image [assumed]",
            ),
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": CommentedValue(
                    {"maxSurge": update.max_surge, "maxUnavailable": update.max_unavailable},
                    "A surge needs as many free GPUs again as its servers have",
                ),
            },
            "selector": {"matchLabels": names.selector(SERVER)},
            "template": _template(workload, pod(workload)),
        },
    }


def group(workload: Workload) -> dict[str, Any]:
    """The servers, each on several nodes, which live and die together."""
    names, update = workload.names, workload.options.update
    topology = workload.options.topology_key
    annotations = {"annotations": {TOPOLOGY_ANNOTATION: topology}} if topology else {}
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "LeaderWorkerSet",
        "metadata": {**metadata(names, names.group, SERVER), **annotations},
        "spec": {
            **_replicas(workload),
            "startupPolicy": "LeaderCreated",
            "networkConfig": {"subdomainPolicy": "Shared"},
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {
                    "maxSurge": update.max_surge,
                    "maxUnavailable": update.max_unavailable,
                },
            },
            "leaderWorkerTemplate": CommentedValue(
                {
                    "size": workload.nodes,
                    "restartPolicy": "RecreateGroupOnPodRestart",
                    "leaderTemplate": _template(workload, pod(workload)),
                    "workerTemplate": _template(workload, worker_pod(workload)),
                },
                UNTRIED,
            ),
        },
    }


def service(workload: Workload) -> dict[str, Any]:
    """One address for clients."""
    return _service(workload, workload.names.base, {})


def pods_service(workload: Workload) -> dict[str, Any]:
    """An address for each server, for a router that chooses among them."""
    return _service(workload, workload.names.pods, {"clusterIP": "None"})


def network_policy(workload: Workload) -> dict[str, Any]:
    """Clients and monitoring get in, nothing gets out; pods of a group may do all among them."""
    names, several = workload.names, workload.nodes > 1
    among = [{"podSelector": {"matchLabels": names.selector(SERVER)}}] if several else []
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(names, names.base, SERVER),
        "spec": {
            "podSelector": {"matchLabels": names.selector(SERVER)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [*_ingress(workload), *([{"from": among}] if several else [])],
            "egress": [dns(), *([{"to": among}] if several else [])],
        },
    }


def dns() -> dict[str, Any]:
    """What every pod may ask."""
    return {
        "to": [
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
        ],
        "ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")],
    }


def disruption_budget(workload: Workload) -> dict[str, Any]:
    """One server at a time gives way to work on nodes; one that does not serve is in no way."""
    names = workload.names
    return budget(names, names.base, SERVER)


def budget(names: ObjectNames, name: str, component: str) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(names, name, component),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector(component)},
        },
    }


def model_volumes(workload: Workload) -> Iterator[dict[str, Any]]:
    """A folder of every node as a volume with its claim."""
    gib = math.ceil(workload.container.context.plan.facts.checkpoint.nbytes / 2**30)
    for role, volume in workload.model_volumes.items():
        if volume.host_path is not None:
            yield from _host_volume(workload.names, role, volume, gib)


def _host_volume(
    names: ObjectNames, role: str, volume: Volume, gib: int
) -> Iterator[dict[str, Any]]:
    name = names.volume(role)
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": metadata(names, name, SERVER),
        "spec": {
            **common,
            "capacity": {"storage": f"{gib}Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": volume.host_path, "type": "Directory"},
        },
    }
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(names, name, SERVER),
        "spec": {
            **common,
            "volumeName": name,
            "resources": {"requests": {"storage": f"{gib}Gi"}},
        },
    }


def metadata(names: ObjectNames, name: str, component: str) -> dict[str, Any]:
    return {"name": name, "labels": names.labels(component)}


def _replicas(workload: Workload) -> dict[str, int]:
    """The number of servers, unless the autoscaler has it: applied again, it would win."""
    return {} if workload.options.autoscaling else {"replicas": workload.replicas}


def _template(workload: Workload, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"labels": workload.names.labels(SERVER)}, "spec": dict(spec)}


def _service(workload: Workload, name: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    names = workload.names
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(names, name, SERVER),
        "spec": {
            "type": "ClusterIP",
            **extra,
            "selector": first_pods(workload),
            "ports": [
                {
                    "name": port_name,
                    "port": port,
                    "targetPort": port_name,
                    "protocol": "TCP",
                    **({"appProtocol": "kubernetes.io/h2c"} if port_name == "grpc" else {}),
                }
                for port_name, port in workload.container.ports.items()
            ],
        },
    }


def _ingress(workload: Workload) -> Iterator[dict[str, Any]]:
    names, ports = workload.names, workload.container.ports
    clients = [
        {"podSelector": {"matchLabels": {CLIENT_LABEL: names.base}}},
        {"podSelector": {"matchLabels": names.selector("gateway")}},
    ]
    asked = [port for name, port in ports.items() if name != "metrics"]
    yield {"from": clients, "ports": [{"protocol": "TCP", "port": port} for port in asked]}
    where = {"kubernetes.io/metadata.name": workload.options.monitoring_namespace}
    port = ports.get(workload.container.server.record.metrics.protocol)
    if port is not None:
        yield {
            "from": [{"namespaceSelector": {"matchLabels": where}}],
            "ports": [{"protocol": "TCP", "port": port}],
        }


# Series that the monitoring of a deployment records for each server, offered to Kubernetes by an
# adapter as external metrics under the same names. Several series are added up, and divided by the
# number of servers.
WAITING, KV_CACHE = "instance:llm_waiting", "instance:llm_kv_cache"
# So long must the load be low before a server, which took minutes to load, is given up.
CALM_S = 900


def autoscaler(workload: Workload, options: AutoscalingOptions) -> dict[str, Any]:
    names, start = workload.names, workload.container.start_s
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": names.base}
    if workload.nodes > 1:
        target = {"apiVersion": GROUP_VERSION, "kind": "LeaderWorkerSet", "name": names.group}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(names, names.base, SERVER),
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": options.min_replicas,
            "maxReplicas": options.max_replicas,
            "metrics": CommentedValue(
                [
                    _metric(workload, WAITING, str(options.waiting_requests)),
                    _metric(workload, KV_CACHE, f"{10 * options.kv_cache_percent}m"),
                ],
                "An adapter must offer these as external metrics, as monitoring records them; each "
                "is the mean of the servers",
            ),
            "behavior": {
                "scaleUp": {
                    "stabilizationWindowSeconds": 60,
                    "policies": CommentedValue(
                        [{"type": "Pods", "value": 1, "periodSeconds": min(1800, start.value)}],
                        "The next server is asked for when the last one has had time to load",
                    ),
                },
                "scaleDown": {
                    "stabilizationWindowSeconds": CALM_S,
                    "policies": [{"type": "Pods", "value": 1, "periodSeconds": CALM_S}],
                },
            },
        },
    }


def _metric(workload: Workload, name: str, value: str) -> dict[str, Any]:
    selector = {"matchLabels": {"deployment": workload.names.deployment}}
    return {
        "type": "External",
        "external": {
            "metric": {"name": name, "selector": selector},
            "target": {"type": "AverageValue", "averageValue": value},
        },
    }
