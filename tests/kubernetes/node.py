"""A stand-in for what makes the pods of Deployments, and for the node that runs them as processes.

It is no scheduler and no kubelet: there is one node, which has so many GPUs; the startup and the
readiness probe are asked over HTTP, more often than they say; a container that ends stays ended.
"""

from __future__ import annotations

import hashlib
import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import uuid4

from tests.kubernetes.api_server import serving
from tests.kubernetes.box import Box, boxed
from tests.kubernetes.object_store import Object, Objects, now

NODE = "node-0"
GPU = "nvidia.com/gpu"
CLAIM = "persistentVolumeClaim"
HASH = "pod-template-hash"
PAUSE_S = 0.2


@dataclass
class Node:
    """`claims` are the folders behind claims of volumes, `programs` are for the front of the path.
    `exit_codes` are those of the pods that have ended."""

    objects: Objects
    claims: Mapping[str, Path]
    programs: Sequence[Path]
    gpus: int
    boxes: dict[str, Box] = field(default_factory=dict)
    logs: dict[str, Path] = field(default_factory=dict)
    exit_codes: list[int] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    _workers: dict[str, threading.Thread] = field(default_factory=dict)
    _taken: dict[str, int] = field(default_factory=dict)
    _choice: threading.Lock = field(default_factory=threading.Lock)

    def work(self) -> None:
        """Makes the pods that Deployments want and runs all there are, until the node closes."""
        while not self.closing.wait(PAUSE_S):
            for deployment in self.objects.of("deployments")[1]:
                roll(self.objects, deployment)
            for pod in self.objects.of("pods")[1]:
                if (name := pod["metadata"]["name"]) not in self._workers:
                    self._workers[name] = threading.Thread(target=self._live, args=[pod])
                    self._workers[name].start()
        for worker in self._workers.values():
            worker.join()

    def ask(self, service: str, path: str, body: str = "", port: str = "http") -> str | None:
        """What the address of a Service does with a request."""
        found = self.objects.get(f"services/{service}") or {"spec": {"selector": {}, "ports": []}}
        [target] = [row["targetPort"] for row in found["spec"]["ports"] if row["name"] == port]
        for pod in self.objects.of("pods")[1]:
            chosen = found["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
            if chosen and is_ready(pod):
                return self.boxes[pod["metadata"]["name"]].ask(path, target, body)
        return None

    def _live(self, pod: Object) -> None:
        """From a place on the node to the last answer."""
        name, place = pod["metadata"]["name"], f"pods/{pod['metadata']['name']}"
        while self._stays(place) and (lack := self._take(name, pod["spec"])):
            _tell(self.objects, pod, "FailedScheduling", lack)
            self.closing.wait(PAUSE_S)
        if self._stays(place):
            maps = {row["metadata"]["name"]: row for row in self.objects.of("configmaps")[1]}
            with boxed(pod["spec"], maps, self.claims, self.programs) as box:
                self.boxes[name], self.logs[name] = box, box.log_file
                _tell(self.objects, pod, "Started", "Started container")
                self._serve(place, box)
                self._end(pod, box)
                del self.boxes[name], self.logs[name]
        self._taken.pop(name, None)
        self.objects.remove(place)

    def _stays(self, place: str) -> bool:
        found = self.objects.get(place)
        return not self.closing.is_set() and found is not None and not is_leaving(found)

    def _take(self, name: str, spec: Object) -> str | None:
        """Gives a pod its GPUs, or says what the node lacks for it."""
        wanted = int(spec["containers"][0]["resources"]["limits"][GPU])
        volumes = [row[CLAIM] for row in spec["volumes"] if CLAIM in row]
        for claim in (row["claimName"] for row in volumes):
            if self.objects.get(f"persistentvolumeclaims/{claim}") is None:
                return f'persistentvolumeclaim "{claim}" not found'
        with self._choice:
            if sum(self._taken.values()) + wanted > self.gpus:
                return f"Insufficient {GPU}"
            self._taken[name] = wanted
        return None

    def _serve(self, place: str, box: Box) -> None:
        """Asks the probes and says what they answer, until the pod is to go."""
        probe, failures, ready = "startupProbe", 0, False
        while self._stays(place):
            passed = box.process.poll() is None and box.passes(probe)
            failures = 0 if passed else failures + 1
            if probe == "startupProbe":
                probe = "readinessProbe" if passed else probe
            else:
                ready = passed or (ready and failures < box.container[probe]["failureThreshold"])
            status = _status(box, ready)
            self.objects.change(place, partial(_with_status, status))
            self.closing.wait(PAUSE_S)

    def _end(self, pod: Object, box: Box) -> None:
        """What its container asked for before the signal, and no more time than the pod has."""
        deadline = time.monotonic() + pod["spec"]["terminationGracePeriodSeconds"]
        self.closing.wait(box.container["lifecycle"]["preStop"]["sleep"]["seconds"])
        if box.process.poll() is None:
            box.send(signal.SIGTERM)
        while box.process.poll() is None and time.monotonic() < deadline:
            if self.closing.wait(PAUSE_S):
                return
        box.kill()
        self.exit_codes.append(box.process.wait())


@contextmanager
def cluster(
    kubeconfig: Path, claims: Mapping[str, Path], programs: Sequence[Path], gpus: int
) -> Iterator[Node]:
    """A node behind an API server, with the claims in it; `kubeconfig` is written for kubectl."""
    node = Node(Objects(), claims, programs, gpus)
    for name in claims:
        own = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
        node.objects.create(f"persistentvolumeclaims/{name}", own)
    work = threading.Thread(target=node.work)
    with serving(node.objects, node.logs) as config:
        kubeconfig.write_text(config)
        work.start()
        try:
            yield node
        finally:
            node.closing.set()
            work.join()


def roll(objects: Objects, deployment: Object) -> None:
    """One step towards the pods that a Deployment wants, within the limits of its strategy."""
    spec, uid = deployment["spec"], deployment["metadata"]["uid"]
    alive = [
        pod
        for pod in objects.of("pods")[1]
        if pod["metadata"]["ownerReferences"][0]["uid"] == uid and not is_leaving(pod)
    ]
    digest = hashlib.sha256(json.dumps(spec["template"], sort_keys=True).encode()).hexdigest()[:10]
    new = [pod for pod in alive if pod["metadata"]["labels"][HASH] == digest]
    old = sorted((pod for pod in alive if pod not in new), key=is_ready)
    wanted, limits = spec.get("replicas", 1), spec["strategy"]["rollingUpdate"]
    ready, new_ready = sum(map(is_ready, alive)), sum(map(is_ready, new))
    status = {
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": len(alive),
        "updatedReplicas": len(new),
        "readyReplicas": ready,
        "availableReplicas": ready,
    }
    place = f"deployments/{deployment['metadata']['name']}"
    objects.change(place, partial(_with_status, status))
    spare = len(alive) - (len(new) - new_ready) - (wanted - limits["maxUnavailable"])
    for pod in [*old[: max(spare, 0)], *new[wanted:]]:
        objects.delete(f"pods/{pod['metadata']['name']}")
    for _ in range(min(wanted + limits["maxSurge"] - len(alive), wanted - len(new))):
        _make_pod(objects, deployment, digest)


def is_leaving(found: Object) -> bool:
    return "deletionTimestamp" in found["metadata"]


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return not is_leaving(pod) and any(row["status"] == "True" for row in conditions)


def _make_pod(objects: Objects, deployment: Object, digest: str) -> None:
    own, template = deployment["metadata"], deployment["spec"]["template"]
    name = f"{own['name']}-{digest}-{uuid4().hex[:5]}"
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": own["name"], "uid": own["uid"]}
    metadata = {
        "name": name,
        "namespace": own["namespace"],
        "labels": {**template["metadata"]["labels"], HASH: digest},
        "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    spec = {**template["spec"], "nodeName": NODE}
    objects.create(f"pods/{name}", {**pod, "spec": spec, "status": {"phase": "Pending"}})


def _with_status(status: Object, found: Object) -> Object:
    return {**found, "status": status}


def _status(box: Box, ready: bool) -> Object:
    code = box.process.poll()
    state: Object = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
    container = {
        "name": box.container["name"],
        "image": box.container["image"],
        "imageID": "",
        "restartCount": 0,
        "ready": ready,
        "state": state,
    }
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"phase": "Running", "conditions": conditions, "containerStatuses": [container]}


def _tell(objects: Objects, pod: Object, reason: str, message: str) -> None:
    """An event of a pod, once."""
    own = pod["metadata"]
    about = {"kind": "Pod", "name": own["name"], "namespace": own["namespace"], "uid": own["uid"]}
    name = f"{own['name']}.{reason.lower()}"
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": own["namespace"]},
        "involvedObject": about,
        "reason": reason,
        "message": message,
        "type": "Normal",
        "source": {"component": "kubelet", "host": NODE},
        "firstTimestamp": now(),
        "lastTimestamp": now(),
        "count": 1,
    }
    objects.create(f"events/{name}", event)
