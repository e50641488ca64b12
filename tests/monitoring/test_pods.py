"""Prometheus finds pods under Kubernetes: its configuration, rights and the operator's objects."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import pipeline
from builder.errors import BadInput
from tests.kubernetes import cluster_files, schemas
from tests.monitoring.programs import program

SIDES = "deepseek-v3.2-nvfp4-gb200x32"
SHAPES = {
    "llama-tiny": ("metrics", {"server": ("llama-tiny", "server")}),
    SIDES: ("http", {"server": (SIDES, "decode"), "prefill": (f"{SIDES}-prefill", "prefill")}),
}
COMPONENT, INDEX = "app.kubernetes.io/component", "leaderworkerset.sigs.k8s.io/worker-index"
OPERATOR = "targets.monitoring.operator=true"


def render(folder: Path, preset: str, *overrides: str) -> Path:
    own = ["targets.kubernetes.server=triton"] if preset == "llama-tiny" else []
    targets = ["kubernetes", "monitoring"]
    return pipeline.render(preset, folder, [*own, *overrides], more_targets=targets).folder


@pytest.fixture(scope="module", params=SHAPES)
def shape(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("pods") / "bundle"
    return request.param, render(folder, request.param, OPERATOR)


def templates(folder: Path) -> Iterator[tuple[dict[str, str], Any]]:
    """The labels and containers of every pod, those that LeaderWorkerSet adds too."""
    for item in cluster_files.objects(folder / "kubernetes"):
        spec = item.get("spec", {})
        found = [spec["template"]] if "template" in spec else []
        group = spec.get("leaderWorkerTemplate")
        if group:
            found = [group["leaderTemplate"], group["workerTemplate"]]
        for index, row in enumerate(found):
            added = {INDEX: str(index)} if group else {}
            yield {**row["metadata"]["labels"], **added}, row["spec"]["containers"]


def discovered(folder: Path, selector: dict[str, str]) -> list[dict[str, Any]]:
    """What Kubernetes tells of the selected pods, one that failed included."""
    rows = []
    for labels, containers in templates(folder):
        if not selector.items() <= labels.items():
            continue
        for port in containers[0]["ports"]:
            for phase in ("Running", "Failed"):
                told = {"name": f"{labels[COMPONENT]}-{labels.get(INDEX, 0)}", "phase": phase}
                told["container_port_name"] = port["name"]
                meta = {f"__meta_kubernetes_pod_{name}": value for name, value in told.items()}
                rows.append({"targets": [f"10.0.0.1:{port['containerPort']}"], "labels": meta})
    return rows


def test_every_server_is_asked_once_by_its_own_name(
    shape: tuple[str, Path], tmp_path: Path
) -> None:
    """Debian builds Prometheus without Kubernetes: the rest of a job runs on what that tells."""
    preset, folder = shape
    port, expected = SHAPES[preset]
    document = yaml.safe_load((folder / "monitoring/prometheus.yml").read_text())
    for job in document["scrape_configs"]:
        [found] = job.pop("kubernetes_sd_configs")
        assert found["role"] == "pod" and found["namespaces"] == {"names": ["default"]}
        [selector] = found["selectors"]
        wanted = dict(row.split("=") for row in selector["label"].split(","))
        job["static_configs"] = discovered(folder, wanted)
    del document["rule_files"]
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(document))
    assert {job["job_name"] for job in document["scrape_configs"]} == set(expected)
    for job, (deployment, component) in expected.items():
        command = [program("promtool"), "check", "service-discovery", str(path), job]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        told = done.stdout + done.stderr
        results = json.loads(told[told.index("[\n") :])
        [labels] = [row["labels"] for row in results if row.get("labels")]
        assert labels["deployment"] == deployment
        assert (labels["instance"], labels["job"]) == (f"{component}-0", job)
        [container] = [rows[0] for own, rows in templates(folder) if own[COMPONENT] == component][
            :1
        ]
        [number] = [row["containerPort"] for row in container["ports"] if row["name"] == port]
        assert labels["__address__"] == f"10.0.0.1:{number}"


def test_rights_and_objects_are_valid_and_the_network_lets_monitoring_in(
    shape: tuple[str, Path],
) -> None:
    preset, folder = shape
    _, expected = SHAPES[preset]
    objects = cluster_files.objects(folder / "monitoring/kubernetes")
    for item in objects:
        assert schemas.faults(item, schemas.MINORS[-1]) == [], item["kind"]
    role, binding = (row for row in objects if row["kind"].startswith("Role"))
    assert role["rules"][0]["resources"] == ["pods"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    [subject] = binding["subjects"]
    peer = {"kubernetes.io/metadata.name": subject["namespace"]}
    policies = cluster_files.of_kind(folder / "kubernetes", "NetworkPolicy")
    assert any(peer in json_values(row) for row in policies)
    monitors = [row for row in objects if row["kind"] == "PodMonitor"]
    document = yaml.safe_load((folder / "monitoring/prometheus.yml").read_text())
    for monitor, job in zip(monitors, document["scrape_configs"], strict=True):
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        labels = monitor["spec"]["selector"]["matchLabels"].items()
        text = ",".join(f"{key}={value}" for key, value in labels)
        assert text == job["kubernetes_sd_configs"][0]["selectors"][0]["label"]
        replaced = {row["targetLabel"]: row.get("replacement") for row in endpoint["relabelings"]}
        name = job["job_name"]
        assert replaced == {"instance": None, "job": name, "deployment": expected[name][0]}
    [rule] = [row for row in objects if row["kind"] == "PrometheusRule"]
    kinds = ("recording", "alerts")
    rules = [yaml.safe_load((folder / f"monitoring/rules/{row}.yml").read_text()) for row in kinds]
    assert rule["spec"]["groups"] == [group for row in rules for group in row["groups"]]


def json_values(node: Any) -> list[Any]:
    """Every mapping inside an object."""
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
    return [node, *(found for row in inner for found in json_values(row))]


def test_hosts_are_asked_where_they_are_given(tmp_path: Path) -> None:
    folder = render(tmp_path / "bundle", "llama-tiny", "targets.monitoring.hosts=[n1]")
    text = (folder / "monitoring/prometheus.yml").read_text()
    assert "kubernetes_sd_configs" not in text and "n1:8002" in text
    assert not (folder / "monitoring/kubernetes").exists()


def test_pods_without_metrics_are_warned_of(tmp_path: Path) -> None:
    own = ["targets.kubernetes.server=trtllm_serve", "engine_config.return_perf_metrics=false"]
    found = pipeline.plan("llama-tiny", own, more_targets=["kubernetes", "monitoring"]).warnings
    [said] = [row for row in found if row.where == "targets.monitoring"]
    assert "has nothing to ask: return_perf_metrics is not set" in said.message
    with pytest.raises(BadInput, match="service_account"):
        render(tmp_path / "bundle", "llama-tiny", "targets.monitoring.service_account='a b'")
