"""Pods keep the pod security standard "restricted", and the check would see each rule broken."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes import cluster_files, policy
from tests.kubernetes.test_schemas import SHAPES

Break = Callable[[dict[str, Any]], None]


def own(pod: dict[str, Any]) -> dict[str, Any]:
    """The security context of the first container."""
    found: dict[str, Any] = pod["containers"][0]["securityContext"]
    return found


def unset_seccomp(pod: dict[str, Any]) -> None:
    del pod["securityContext"]["seccompProfile"]


# How each rule is broken, by nothing that another one forbids, but where two forbid the same.
BREAKS: dict[str, Break] = {
    "host process": lambda pod: own(pod).update(windowsOptions={"hostProcess": True}),
    "host namespaces": lambda pod: pod.update(hostIPC=True),
    "privileged": lambda pod: own(pod).update(privileged=True),
    "host path": lambda pod: pod["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
    "host ports": lambda pod: pod["containers"][0]["ports"][0].update(hostPort=80),
    "host of probes": lambda pod: pod["containers"][0]["readinessProbe"].update(
        httpGet={"host": "192.0.2.1", "port": 80}
    ),
    "app armor": lambda pod: own(pod).update(appArmorProfile={"type": "Unconfined"}),
    "selinux": lambda pod: own(pod).update(seLinuxOptions={"type": "spc_t"}),
    "proc mount": lambda pod: own(pod).update(procMount="Unmasked"),
    "sysctls": lambda pod: pod["securityContext"].update(sysctls=[{"name": "kernel.msgmax"}]),
    "volume types": lambda pod: pod["volumes"].append({"name": "x", "nfs": {"path": "/"}}),
    "privilege escalation": lambda pod: own(pod).pop("allowPrivilegeEscalation"),
    "non-root": lambda pod: own(pod).update(runAsNonRoot=False),
    "non-root user": lambda pod: own(pod).update(runAsUser=0),
    "seccomp": unset_seccomp,
    "drop all capabilities": lambda pod: own(pod).update(capabilities={"drop": ["NET_RAW"]}),
    "no added capabilities": lambda pod: own(pod)["capabilities"].update(add=["SYS_PTRACE"]),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every shape, rendered."""
    root = tmp_path_factory.mktemp("shapes")
    return {
        shape: cluster_files.render(root / shape, preset, server, *overrides)
        for shape, (preset, server, overrides) in SHAPES.items()
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_no_pod_breaks_a_rule(shape: str, folders: dict[str, Path]) -> None:
    found = cluster_files.served_pods(folders[shape])
    assert found
    for pod in found:
        assert policy.violations(pod) == []


@pytest.mark.parametrize("rule", [rule.name for rule in policy.RULES])
def test_the_check_sees_each_rule_broken(rule: str, folders: dict[str, Path]) -> None:
    pod: dict[str, Any] = copy.deepcopy(dict(cluster_files.served_pods(folders["everything"])[0]))
    BREAKS[rule](pod)
    assert rule in policy.violations(pod)


@pytest.mark.parametrize("shape", SHAPES)
def test_pods_have_less_than_they_may(shape: str, folders: dict[str, Path]) -> None:
    """What the standard does not ask for: no way to write to the image, no account, no links."""
    for pod in cluster_files.served_pods(folders[shape]):
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsUser"] == 1000
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            models = [row for row in container["volumeMounts"] if "/models/" in row["mountPath"]]
            assert all(row["readOnly"] is True for row in models)
