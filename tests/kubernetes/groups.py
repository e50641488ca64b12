"""A stand-in for what makes the pods of LeaderWorkerSets, each server a group of them.

It knows no surge, and makes no group while the one before it ends. Like the older releases of the
real one, it never says which generation of an object its conditions are about.
Source: kubernetes-sigs/lws@9f47d6c, pkg/controllers/leaderworkerset_controller.go,
pkg/controllers/pod_controller.go and, for the variables, pkg/utils/pod/pod_utils.go.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.conftest import ROOT
from tests.kubernetes import pods
from tests.kubernetes.object_store import Object, Objects
from tests.kubernetes.pods import has_ended, is_leaving, is_ready

LABEL = "leaderworkerset.sigs.k8s.io"
REVISION = f"{LABEL}/template-revision-hash"
LEADER = 0
# What the script makes of a Secret, as files.
KUBECTL = """\
#!/usr/bin/env bash
set -eu
[[ $* == "create secret tls server-group --cert "* ]]
cp "$6" "$TO/tls.crt"
cp "$8" "$TO/tls.key"
"""


def variables(address: str, size: int, index: int) -> dict[str, str]:
    """What a pod of a group is told: where its first is, how many they are, and which it is."""
    return {
        "LWS_LEADER_ADDRESS": address,
        "LWS_GROUP_SIZE": str(size),
        "LWS_WORKER_INDEX": str(index),
    }


def make_key(folder: Path) -> None:
    """The folder of the Secret by which the pods of a group know each other."""
    folder.mkdir()
    (folder / "bin").mkdir()
    kubectl = folder / "bin" / "kubectl"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    variables = {**os.environ, "PATH": f"{kubectl.parent}:{os.environ['PATH']}", "TO": str(folder)}
    script = ROOT / "templates" / "kubernetes" / "secret.sh"
    subprocess.run(["bash", script, "server-group"], check=True, env=variables)
    for name in ("tls.crt", "tls.key"):
        (folder / name).chmod(0o440)
        os.chown(folder / name, 0, 1000)


def roll(objects: Objects, owner: Object) -> None:
    """One step towards the groups that are wanted, within the limits of the strategy."""
    own, spec = owner["metadata"], owner["spec"]
    limits = spec["rolloutStrategy"]["rollingUpdateConfiguration"]
    assert limits["maxSurge"] == 0, "no surge is known here"
    revision = pods.digest(spec["leaderWorkerTemplate"])
    groups = [_group(objects, own["name"], index) for index in range(spec.get("replicas", 1))]
    size = spec["leaderWorkerTemplate"]["size"]
    ready = [len(group) == size and all(map(is_ready, group.values())) for group in groups]
    new = [_revisions(group) == {revision} for group in groups]
    _tell(objects, owner, ready, new)
    spare = limits["maxUnavailable"] - ready.count(False)
    for index, group in reversed(list(enumerate(groups))):
        if not group:
            _make(objects, owner, owner, index, LEADER, revision)
        elif _is_broken(group):
            for pod in group.values():
                pods.delete(objects, pod)
        elif new[index]:
            for worker in range(1, size):
                _make(objects, owner, group[LEADER], index, worker, revision)
        elif spare > 0 or not ready[index]:
            spare -= ready[index]
            pods.delete(objects, group[LEADER])


def _group(objects: Objects, name: str, index: int) -> dict[int, Object]:
    """Its pods, by their numbers in it."""
    wanted = {f"{LABEL}/name": name, f"{LABEL}/group-index": str(index)}
    return {
        int(labels[f"{LABEL}/worker-index"]): pod
        for pod in objects.of("pods")[1]
        if wanted.items() <= (labels := pod["metadata"]["labels"]).items()
    }


def _revisions(group: dict[int, Object]) -> set[str]:
    return {pod["metadata"]["labels"][REVISION] for pod in group.values()}


def _is_broken(group: dict[int, Object]) -> bool:
    """By RecreateGroupOnPodRestart. A leader may leave: its workers go when it is gone."""
    workers = [pod for index, pod in group.items() if index != LEADER]
    return any(map(is_leaving, workers)) or any(map(has_ended, group.values()))


def _tell(objects: Objects, owner: Object, ready: list[bool], new: list[bool]) -> None:
    available = all(ready) and all(new)
    common = {"reason": "Test", "message": ""}
    common["lastTransitionTime"] = owner["metadata"]["creationTimestamp"]
    status = {
        "readyReplicas": sum(ready),
        "updatedReplicas": sum(new),
        "conditions": [
            {"type": "Available", "status": str(available), **common},
            {"type": "Progressing", "status": str(not available), **common},
        ],
    }
    pods.set_status(objects, f"leaderworkersets/{owner['metadata']['name']}", status)


def _make(
    objects: Objects, owner: Object, above: Object, group: int, index: int, revision: str
) -> None:
    """A pod of a group; a worker goes with its leader, and that with the whole."""
    own, rows = owner["metadata"], owner["spec"]["leaderWorkerTemplate"]
    template = rows["workerTemplate" if index else "leaderTemplate"]
    leader = f"{own['name']}-{group}"
    name = f"{leader}-{index}" if index else leader
    told = variables(f"{leader}.{own['name']}.{own['namespace']}", rows["size"], index)
    [container] = template["spec"]["containers"]
    env = [{"name": key, "value": value} for key, value in told.items()] + container["env"]
    spec = {
        **template["spec"],
        "hostname": name,
        "subdomain": own["name"],
        "containers": [{**container, "env": env}],
    }
    labels = {
        f"{LABEL}/name": own["name"],
        f"{LABEL}/group-index": str(group),
        f"{LABEL}/worker-index": str(index),
        REVISION: revision,
    }
    pods.make(objects, name, above, {**template, "spec": spec}, labels)
