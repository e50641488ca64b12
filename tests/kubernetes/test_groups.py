"""The stand-in for what makes the pods of LeaderWorkerSets, without a node that runs them."""

from __future__ import annotations

import pytest

from tests.kubernetes import groups
from tests.kubernetes.object_store import Object, Objects

PLACE = "leaderworkersets/s"
ALL = ["s-0", "s-0-1", "s-1", "s-1-1"]
TEMPLATE = {"metadata": {"labels": {}}, "spec": {"containers": [{"env": []}]}}
SPEC: Object = {
    "replicas": 2,
    "rolloutStrategy": {"rollingUpdateConfiguration": {"maxSurge": 0, "maxUnavailable": 1}},
    "leaderWorkerTemplate": {"size": 2, "leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE},
}
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


@pytest.fixture
def objects() -> Objects:
    """Two groups of two pods, all ready."""
    found = Objects()
    metadata = {"name": "s", "namespace": "default"}
    found.create(PLACE, {"apiVersion": "v1", "kind": "S", "metadata": metadata, "spec": SPEC})
    grow(found)
    return found


def roll(objects: Objects) -> None:
    """A leader comes before its workers."""
    for _ in range(2):
        [owner] = objects.of("leaderworkersets")[1]
        groups.roll(objects, owner)


def grow(objects: Objects) -> None:
    """Until every pod that is wanted is ready."""
    roll(objects)
    for name in names(objects):
        objects.change(f"pods/{name}", lambda pod: {**pod, "status": READY})
    roll(objects)


def names(objects: Objects) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in objects.of("pods")[1])


def leaving(objects: Objects) -> list[str]:
    found = [pod["metadata"] for pod in objects.of("pods")[1]]
    return sorted(row["name"] for row in found if "deletionTimestamp" in row)


def is_available(objects: Objects) -> bool:
    conditions: list[Object] = (objects.get(PLACE) or {})["status"]["conditions"]
    return {"type": "Available", "status": "True"}.items() <= conditions[0].items()


def test_it_is_available_when_all_pods_of_all_groups_are_ready(objects: Objects) -> None:
    assert names(objects) == ALL
    assert is_available(objects)
    objects.change("pods/s-1-1", lambda pod: {**pod, "status": {}})
    roll(objects)
    assert not is_available(objects)


def test_a_change_takes_one_group_after_the_other(objects: Objects) -> None:
    """The workers of a leader go when it has gone."""
    template = {**SPEC["leaderWorkerTemplate"], "note": "changed"}
    changed = {**SPEC, "leaderWorkerTemplate": template}
    objects.change(PLACE, lambda found: {**found, "spec": changed})
    for leader in ("s-1", "s-0"):
        roll(objects)
        assert leaving(objects) == [leader]
        assert not is_available(objects)
        objects.remove(f"pods/{leader}")
        assert leaving(objects) == [f"{leader}-1"]
        objects.remove(f"pods/{leader}-1")
        grow(objects)
    assert leaving(objects) == []
    assert is_available(objects)


def test_a_group_that_has_lost_a_pod_is_made_anew(objects: Objects) -> None:
    objects.delete("pods/s-0-1")
    roll(objects)
    assert leaving(objects) == ["s-0", "s-0-1"]
    for name in ("s-0-1", "s-0"):
        objects.remove(f"pods/{name}")
    grow(objects)
    assert names(objects) == ALL
    assert is_available(objects)
