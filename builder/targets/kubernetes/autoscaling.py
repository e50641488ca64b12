"""More servers when requests wait or KV caches fill up, fewer when both are long over."""

from __future__ import annotations

from typing import Any

from ..manifest import Because
from .objects import GROUP_VERSION, metadata
from .options import Autoscaling
from .pod import SERVER, Workload

# Series that the monitoring of a deployment records for each server, offered to Kubernetes by an
# adapter as external metrics under the same names. Several series are added up, and divided by the
# number of servers.
WAITING, KV_CACHE = "instance:llm_waiting", "instance:llm_kv_cache"
# So long must the load be low before a server, which took minutes to load, is given up.
CALM_S = 900


def autoscaler(workload: Workload, options: Autoscaling) -> dict[str, Any]:
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
            "metrics": Because(
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
                    "policies": Because(
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
