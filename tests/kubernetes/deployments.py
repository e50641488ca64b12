"""A stand-in for what makes the pods of Deployments."""

from __future__ import annotations

from uuid import uuid4

from tests.kubernetes import pods
from tests.kubernetes.object_store import Object, Objects
from tests.kubernetes.pods import is_leaving, is_ready

HASH = "pod-template-hash"


def roll(objects: Objects, deployment: Object) -> None:
    """One step towards the pods that a Deployment wants, within the limits of its strategy."""
    own, spec = deployment["metadata"], deployment["spec"]
    alive = [
        pod
        for pod in objects.of("pods")[1]
        if pod["metadata"]["ownerReferences"][0]["uid"] == own["uid"] and not is_leaving(pod)
    ]
    digest = pods.digest(spec["template"])
    new = [pod for pod in alive if pod["metadata"]["labels"][HASH] == digest]
    old = sorted((pod for pod in alive if pod not in new), key=is_ready)
    wanted, limits = spec.get("replicas", 1), spec["strategy"]["rollingUpdate"]
    ready, new_ready = sum(map(is_ready, alive)), sum(map(is_ready, new))
    status = {
        "observedGeneration": own["generation"],
        "replicas": len(alive),
        "updatedReplicas": len(new),
        "readyReplicas": ready,
        "availableReplicas": ready,
    }
    pods.set_status(objects, f"deployments/{own['name']}", status)
    spare = len(alive) - (len(new) - new_ready) - (wanted - limits["maxUnavailable"])
    for pod in [*old[: max(spare, 0)], *new[wanted:]]:
        pods.delete(objects, pod)
    for _ in range(min(wanted + limits["maxSurge"] - len(alive), wanted - len(new))):
        name = f"{own['name']}-{digest}-{uuid4().hex[:5]}"
        pods.make(objects, name, deployment, spec["template"], {HASH: digest})
