"""The configuration of Prometheus and of the blackbox exporter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...observability.metrics import SERVER_JOB
from ...render import CommentedValue
from . import pods
from .monitored import Instance, MonitoredServer
from .rules import INTERVAL

# Names of the blackbox exporter's modules.
READY, CERTIFICATE = "server_ready", "server_certificate"
PROBE_TIMEOUT = "5s"
# A server that answers no later is asked again; the shortest that a loaded one still keeps.
SCRAPE_TIMEOUT = "10s"


def prometheus(monitored: MonitoredServer) -> dict[str, Any]:
    interval = monitored.duration(INTERVAL, 1)
    timeout = min(interval, SCRAPE_TIMEOUT, key=lambda text: int(text[:-1]))
    if monitored.finds_pods:
        jobs = [pods.job(monitored, *row) for row in pods.asked(monitored)]
    else:
        jobs = list(_jobs(monitored))
    return {
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": timeout,
            "evaluation_interval": interval,
        },
        "rule_files": ["rules/recording.yml", "rules/alerts.yml"],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [monitored.options.alertmanager]}]}]
        },
        "scrape_configs": jobs,
    }


def _jobs(monitored: MonitoredServer) -> Iterator[dict[str, Any]]:
    builders = {"ready": _ready, "certificate": _certificate, "gpu": _gpu}
    for job in monitored.jobs:
        if job == SERVER_JOB:
            yield _metrics(monitored, job, monitored.instances)
        else:
            yield builders[job](monitored)
    if monitored.prefill and monitored.exposition:
        yield _metrics(monitored, pods.PREFILL_JOB, monitored.prefill)


def _metrics(monitored: MonitoredServer, job: str, instances: list[Instance]) -> dict[str, Any]:
    assert monitored.exposition is not None  # else there is no such job
    return {
        "job_name": job,
        "metrics_path": monitored.record.paths["metrics"],
        "static_configs": [
            _target(monitored, row, row.address(monitored.exposition), job) for row in instances
        ],
    }


def _ready(monitored: MonitoredServer) -> dict[str, Any]:
    """Of a service of two sides all are asked: the router says nothing of servers."""
    path = monitored.rendered.entry["ready"].get("path")
    instances = [*monitored.instances, *monitored.prefill, *monitored.router]
    targets = [
        f"http://{row.address('http')}{path}" if path else row.address("grpc") for row in instances
    ]
    return _probe(monitored, "ready", READY, instances, targets)


def _certificate(monitored: MonitoredServer) -> dict[str, Any]:
    targets = [row.address("grpc") for row in monitored.instances]
    return _probe(monitored, "certificate", CERTIFICATE, monitored.instances, targets)


def _probe(
    monitored: MonitoredServer,
    job: str,
    module: str,
    instances: list[Instance],
    targets: list[str],
) -> dict[str, Any]:
    """A job in which an exporter asks one target of each instance."""
    asked = zip(instances, targets, strict=True)
    return {
        "job_name": job,
        "metrics_path": "/probe",
        "params": {"module": [module]},
        "static_configs": [_target(monitored, row, target) for row, target in asked],
        "relabel_configs": [
            {"source_labels": ["__address__"], "target_label": "__param_target"},
            {"target_label": "__address__", "replacement": monitored.options.blackbox},
        ],
    }


def _gpu(monitored: MonitoredServer) -> dict[str, Any]:
    hosts = dict.fromkeys(row.host for row in (*monitored.instances, *monitored.prefill))
    port = monitored.options.dcgm_port
    assert port is not None  # else there is no such job
    rows = [Instance(host, {"dcgm": port}) for host in hosts]
    return {
        "job_name": "gpu",
        "static_configs": [
            {
                "targets": [row.address("dcgm")],
                "labels": {"deployment": monitored.deployment.name, "instance": row.host},
            }
            for row in rows
        ],
    }


def _target(
    monitored: MonitoredServer, instance: Instance, address: str, job: str = SERVER_JOB
) -> dict[str, Any]:
    """One instance, known by the same name in every job."""
    name = instance.address(monitored.front)
    labels = {"deployment": pods.label(monitored, job), "instance": name}
    return {"targets": [address], "labels": labels}


def blackbox(monitored: MonitoredServer) -> dict[str, Any]:
    trusting = CommentedValue(
        {"insecure_skip_verify": True},
        "The dates are asked for, not the trust: that is each client's own matter.",
    )
    ready: dict[str, Any] = {"prober": "http", "timeout": PROBE_TIMEOUT}
    if monitored.readiness == "grpc":
        grpc = {"tls": monitored.has_tls, **({"tls_config": trusting} if monitored.has_tls else {})}
        ready = {"prober": "grpc", "timeout": PROBE_TIMEOUT, "grpc": grpc}
    else:
        ready["http"] = {"preferred_ip_protocol": "ip4", "valid_status_codes": [200]}
    certificate = {
        "prober": "tcp",
        "timeout": PROBE_TIMEOUT,
        "tcp": {"tls": True, "preferred_ip_protocol": "ip4", "tls_config": trusting},
    }
    found = {"ready": (READY, ready), "certificate": (CERTIFICATE, certificate)}
    return {"modules": {name: row for job, (name, row) in found.items() if job in monitored.jobs}}
