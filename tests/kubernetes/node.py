"""A stand-in for the node that runs the pods of a cluster as processes.

It is not a scheduler and no kubelet: there is one node, which has so many GPUs; the startup and the
readiness probe are asked more often than they say; a container that ends stays ended.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tests.kubernetes import deployments, groups, pods
from tests.kubernetes.api_server import serving
from tests.kubernetes.box import Box, Volumes, boxed
from tests.kubernetes.network import Host, Network, network
from tests.kubernetes.object_store import Object, Objects, now
from tests.kubernetes.pods import NODE, is_leaving, is_ready

GPU = "nvidia.com/gpu"
CLAIM = "persistentVolumeClaim"
ROLLS = {"deployments": deployments.roll, "leaderworkersets": groups.roll}
PAUSE_S = 0.2
# How long a change of an object is there before anything follows from it.
NOTICE_S = 2.0


@dataclass
class Node:
    """`claims` and `secrets` are the folders behind volumes, `programs` for the front of the path.
    `exit_codes` are those of the pods that have ended."""

    objects: Objects
    claims: Mapping[str, Path]
    secrets: Mapping[str, Path]
    programs: Sequence[Path]
    gpus: int
    network: Network
    boxes: dict[str, Box] = field(default_factory=dict)
    logs: dict[str, Path] = field(default_factory=dict)
    exit_codes: list[int] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    _changes: dict[str, float] = field(default_factory=dict)
    _workers: dict[str, threading.Thread] = field(default_factory=dict)
    _taken: dict[str, int] = field(default_factory=dict)
    _choice: threading.Lock = field(default_factory=threading.Lock)

    def work(self) -> None:
        """Lets the pods be made that are wanted, and runs all there are, until the node closes."""
        while not self.closing.wait(PAUSE_S):
            for plural, roll in ROLLS.items():
                for owner in self.objects.of(plural)[1]:
                    if self._has_noticed(owner):
                        roll(self.objects, owner)
            for pod in self.objects.of("pods")[1]:
                if (uid := pod["metadata"]["uid"]) not in self._workers:
                    self._workers[uid] = threading.Thread(target=self._live, args=[pod])
                    self._workers[uid].start()
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
            volumes = Volumes(maps, self.claims, self.secrets)
            with self._place(pod) as host, boxed(pod["spec"], volumes, self.programs, host) as box:
                self.boxes[name], self.logs[name] = box, box.log_file
                _tell(self.objects, pod, "Started", "Started container")
                self._serve(place, box)
                self._end(pod, box)
                del self.boxes[name], self.logs[name]
        self._taken.pop(name, None)
        self.objects.remove(place)

    def _has_noticed(self, owner: Object) -> bool:
        """Whoever waits for a change must not take the state before it for that after it."""
        version = f"{owner['metadata']['uid']} {owner['metadata']['generation']}"
        return time.monotonic() > self._changes.setdefault(version, time.monotonic()) + NOTICE_S

    def _place(self, pod: Object) -> AbstractContextManager[Host | None]:
        """In the network of the node, if other pods may know it by its name."""
        own, domain = pod["metadata"], pod["spec"].get("subdomain")
        if domain is None:
            return nullcontext()
        return self.network.joined(own["name"], f"{domain}.{own['namespace']}")

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
        failures, ready = 0, False
        probe = "startupProbe" if "startupProbe" in box.container else "readinessProbe"
        while self._stays(place):
            passed = box.process.poll() is None and box.passes(probe)
            failures = 0 if passed else failures + 1
            if probe == "startupProbe":
                probe = "readinessProbe" if passed else probe
            else:
                ready = passed or (ready and failures < box.container[probe]["failureThreshold"])
            pods.set_status(self.objects, place, _status(box, ready))
            self.closing.wait(PAUSE_S)

    def _end(self, pod: Object, box: Box) -> None:
        """What its container asked for before the signal, and no more time than the pod has."""
        deadline = time.monotonic() + pod["spec"]["terminationGracePeriodSeconds"]
        if "lifecycle" in box.container:
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
    folder: Path,
    claims: Mapping[str, Path],
    secrets: Mapping[str, Path],
    programs: Sequence[Path],
    gpus: int,
) -> Iterator[Node]:
    """A node behind an API server, with the claims in it; `folder` gets a kubeconfig."""
    objects = Objects()
    for name in claims:
        own = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
        objects.create(f"persistentvolumeclaims/{name}", own)
    with ExitStack() as stack:
        joined = stack.enter_context(network(folder))
        node = Node(objects, claims, secrets, programs, gpus, joined)
        config = stack.enter_context(serving(objects, node.logs))
        (folder / "kubeconfig").write_text(config)
        work = threading.Thread(target=node.work)
        work.start()
        try:
            yield node
        finally:
            node.closing.set()
            work.join()


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
