"""Finds pods under Kubernetes: jobs of Prometheus, its rights, and objects for its operator.

Sources: Prometheus, kubernetes_sd_config; prometheus-operator/prometheus-operator@v0.87.0,
Documentation/api-reference/api.md, PodMonitor and PrometheusRule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...observability.metrics import SERVER_JOB
from .. import kubernetes
from ..kubernetes.options import TARGET, KubernetesOptions
from ..kubernetes.pod import first_pods
from ..kubernetes.workload import Workload
from .monitored import MonitoredServer
from .rules import INTERVAL, Rules, alert_document, recording_document

PREFILL_JOB = "prefill"
COMPONENT = "metrics"
OPERATOR = "monitoring.coreos.com/v1"
RBAC = "rbac.authorization.k8s.io"


def asked(monitored: MonitoredServer) -> Iterator[tuple[str, Workload]]:
    """The jobs, each with the servers whose pods it asks; the signals are of the first."""
    if monitored.exposition is None:
        return
    options = KubernetesOptions.of(monitored.deployment.targets[TARGET])
    *prefill, front = kubernetes.workloads(monitored.context, options)
    yield SERVER_JOB, front
    for workload in prefill:
        yield PREFILL_JOB, workload


def label(monitored: MonitoredServer, job: str) -> str:
    """The label `deployment` of a job: signals are of one side, so the other has its own."""
    name = monitored.deployment.name
    return name if job == SERVER_JOB else f"{name}-{job}"


def job(monitored: MonitoredServer, name: str, workload: Workload) -> dict[str, Any]:
    labels = ",".join(f"{key}={value}" for key, value in first_pods(workload).items())
    pods = {
        "role": "pod",
        "namespaces": {"names": [monitored.options.namespace]},
        "selectors": [{"role": "pod", "label": labels}],
    }
    return {
        "job_name": name,
        "metrics_path": monitored.record.paths["metrics"],
        "kubernetes_sd_configs": [pods],
        "relabel_configs": [
            {**_of("container_port_name"), "action": "keep", "regex": monitored.exposition},
            {**_of("phase"), "action": "drop", "regex": "Failed|Succeeded"},
            {**_of("name"), "target_label": "instance"},
            {"target_label": "deployment", "replacement": label(monitored, name)},
        ],
    }


def _of(fact: str) -> dict[str, Any]:
    return {"source_labels": [f"__meta_kubernetes_pod_{fact}"]}


def documents(rules: Rules) -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """What is applied to the cluster, by file: its title and objects."""
    found = list(asked(rules)) if rules.finds_pods else []
    if not found:
        return {}
    front = found[0][1]
    files = {"rights": ("Pods that Prometheus may read", _rights(rules, front))}
    if rules.options.operator:
        groups = [*recording_document(rules)["groups"], *alert_document(rules)["groups"]]
        kind, spec = f"{OPERATOR}/PrometheusRule", {"spec": {"groups": groups}}
        rows = [_monitor(rules, *row) for row in found]
        rows.append(front.document(kind, front.name, spec, COMPONENT))
        files["operator"] = ("Prometheus Operator", rows)
    return files


def _rights(monitored: MonitoredServer, workload: Workload) -> list[dict[str, Any]]:
    """What the account of Prometheus may read in the namespace of the service."""
    name = workload.called(COMPONENT)
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    account = {
        "kind": "ServiceAccount",
        "name": monitored.options.service_account,
        "namespace": workload.options.monitoring_namespace,
    }
    role = {"apiGroup": RBAC, "kind": "Role", "name": name}
    binding = {"roleRef": role, "subjects": [account]}
    return [
        workload.document(f"{RBAC}/v1/Role", name, {"rules": [rule]}, COMPONENT),
        workload.document(f"{RBAC}/v1/RoleBinding", name, binding, COMPONENT),
    ]


def _monitor(monitored: MonitoredServer, name: str, workload: Workload) -> dict[str, Any]:
    """A job for Prometheus Operator, which looks in the namespace of the object."""
    labels = {"job": name, "deployment": label(monitored, name)}
    endpoint = {
        "port": monitored.exposition,
        "path": monitored.record.paths["metrics"],
        "interval": monitored.duration(INTERVAL, 1),
        "relabelings": [
            {"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "instance"},
            *({"targetLabel": key, "replacement": value} for key, value in labels.items()),
        ],
    }
    spec = {"selector": {"matchLabels": first_pods(workload)}, "podMetricsEndpoints": [endpoint]}
    return workload.document(f"{OPERATOR}/PodMonitor", workload.own_name, {"spec": spec})
