"""The same servers as KServe runs them: a runtime of our own, and the service that uses it."""

from __future__ import annotations

from typing import Any

from ...render import CommentedValue
from .objects import metadata
from .pod import pod
from .workload import SERVER, Workload

# What KServe calls the container that serves, and what a runtime can say of its pods.
CONTAINER = "kserve-container"
OF_THE_RUNTIME = (
    "containers",
    "volumes",
    "nodeSelector",
    "tolerations",
    "imagePullSecrets",
    "resourceClaims",
)
FORMAT = "tensorrt-llm"
# Plain Deployments: others look at one port only, and take a slow start for a failed one. KServe's
# own autoscaler looks at processors, which say nothing of a load on GPUs.
MODE = {
    "serving.kserve.io/deploymentMode": "RawDeployment",
    "serving.kserve.io/autoscalerClass": "external",
}


def runtime(workload: Workload) -> dict[str, Any]:
    names, spec = workload.names, pod(workload)
    [container] = spec["containers"]
    protocols = list(workload.container.server.record.kserve_protocols)
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": metadata(names, names.base, SERVER),
        "spec": {
            "multiModel": CommentedValue(
                False, "Valid by KServe's definitions; not tried with KServe itself"
            ),
            "supportedModelFormats": [{"name": FORMAT, "autoSelect": False}],
            **({"protocolVersions": protocols} if protocols else {}),
            **{key: spec[key] for key in OF_THE_RUNTIME if key in spec},
            "containers": [{**container, "name": CONTAINER}],
        },
    }


def inference_service(workload: Workload) -> dict[str, Any]:
    """KServe labels pods itself; the ones of ours let the rest of the objects find them."""
    names, spec = workload.names, pod(workload)
    scale = workload.options.autoscaling
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {**metadata(names, names.base, SERVER), "annotations": MODE},
        "spec": {
            "predictor": {
                "labels": names.labels(SERVER),
                "minReplicas": scale.min_replicas if scale else workload.replicas,
                "maxReplicas": scale.max_replicas if scale else workload.replicas,
                "deploymentStrategy": _strategy(workload),
                "model": {"modelFormat": {"name": FORMAT}, "runtime": names.base},
                **{key: value for key, value in spec.items() if key not in OF_THE_RUNTIME},
            }
        },
    }


def _strategy(workload: Workload) -> dict[str, Any]:
    update = workload.options.update
    rolling = {"maxSurge": update.max_surge, "maxUnavailable": update.max_unavailable}
    return {"type": "RollingUpdate", "rollingUpdate": rolling}
