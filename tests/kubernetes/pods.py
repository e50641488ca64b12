"""Pods as objects of a cluster: how an owner makes one, and what the others see of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from tests.kubernetes.object_store import Object, Objects

# The one that there is.
NODE = "node-0"


def make(
    objects: Objects, name: str, owner: Object, template: Object, labels: Mapping[str, str]
) -> None:
    """By a template; nothing, if there is one of that name already, or no more owner."""
    own = owner["metadata"]
    reference = {"kind": owner["kind"], "apiVersion": owner["apiVersion"]}
    reference |= {"name": own["name"], "uid": own["uid"]}
    metadata = {
        "name": name,
        "namespace": own["namespace"],
        "labels": {**template["metadata"]["labels"], **labels},
        "ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    spec = {**template["spec"], "nodeName": NODE}
    objects.create(f"pods/{name}", {**pod, "spec": spec, "status": {"phase": "Pending"}})


def delete(objects: Objects, pod: Object) -> None:
    objects.delete(f"pods/{pod['metadata']['name']}")


def is_leaving(found: Object) -> bool:
    return "deletionTimestamp" in found["metadata"]


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return not is_leaving(pod) and any(row["status"] == "True" for row in conditions)


def has_ended(pod: Object) -> bool:
    containers = pod.get("status", {}).get("containerStatuses", [])
    return any("terminated" in row["state"] for row in containers)


def digest(template: Object) -> str:
    """By which the pods of a template are told from those of another."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def set_status(objects: Objects, place: str, status: Object) -> None:
    objects.change(place, lambda found: {**found, "status": status})
