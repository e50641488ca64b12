"""The rendered files for Kubernetes: how they are made in tests, and what is in them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from builder import deployment, pipeline
from builder.facts import servers

DIGEST = f"sha256:{'1' * 64}"
Object = Mapping[str, Any]

# Everything that is only there when asked for.
ALL_PARTS = (
    f"targets.kubernetes.gateway={{image: 'registry.example/haproxy@{DIGEST}', tls_secret: door}}",
    "targets.kubernetes.autoscaling={max_replicas: 4}",
    "targets.kubernetes.priority_class=high",
    "targets.kubernetes.runtime_class=nvidia",
    "targets.kubernetes.image_pull_secrets=[registry]",
    "targets.kubernetes.resources={rdma/ib: 1}",
    "targets.kubernetes.resource_claims=[channel]",
)
SEVERAL_NODES = ("hardware.num_gpus=16", "targets.kubernetes.topology_key=nvidia.com/gpu.clique")


def pairs() -> list[tuple[str, str]]:
    """Every preset with each of its servers that runs alone."""
    return [
        (preset, server)
        for preset in deployment.preset_names()
        if (document := deployment.read(preset)).data.get("role", "agg") == "agg"
        for server in document.targets()
        if server in servers.names()
    ]


def render(folder: Path, preset: str, server: str, *overrides: str) -> Path:
    """A bundle of a preset; returns its folder for Kubernetes."""
    image = f"images.{server}=registry.example/{server}:1@{DIGEST}"
    own = [f"targets.kubernetes.server={server}", image, *overrides]
    pipeline.render(preset, folder, own, more_targets=["kubernetes"])
    return folder / "kubernetes"


def objects(folder: Path) -> list[Object]:
    """All objects in the files of a folder, but for what joins the files."""
    files = sorted(folder.rglob("*.yaml"))
    return [
        found
        for path in files
        if path.name != "kustomization.yaml"
        for found in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader)
    ]


def of_kind(folder: Path, kind: str) -> list[Object]:
    return [found for found in objects(folder) if found["kind"] == kind]


def pods(found: Object) -> Iterator[Object]:
    """The specification of every pod that an object makes."""
    spec = found.get("spec", {})
    match found["kind"]:
        case "Deployment" | "StatefulSet":
            yield spec["template"]["spec"]
        case "LeaderWorkerSet":
            group = spec["leaderWorkerTemplate"]
            yield from (group[f"{role}Template"]["spec"] for role in ("leader", "worker"))


def served_pods(folder: Path) -> list[Object]:
    """All pods; of KServe's objects, the one that KServe makes of both."""
    found = [pod for item in objects(folder) for pod in pods(item)]
    runtimes, services = of_kind(folder, "ServingRuntime"), of_kind(folder, "InferenceService")
    for runtime, service in zip(runtimes, services, strict=True):
        found.append({**runtime["spec"], **service["spec"]["predictor"]})
    return found


def config_maps(folder: Path) -> dict[str, Object]:
    """Those of a folder, by name."""
    return {row["metadata"]["name"]: row for row in of_kind(folder, "ConfigMap")}


def pod_files(maps: Mapping[str, Object], pod: Object) -> dict[str, tuple[bytes, int]]:
    """The bytes and mode of every file that a pod has of the bundle, by path."""
    [volume] = [row for row in pod["volumes"] if row["name"] == "bundle"]
    found = {}
    for source in volume["projected"]["sources"]:
        config = maps[source["configMap"]["name"]]
        assert config["immutable"] is True
        texts = {key: text.encode() for key, text in config.get("data", {}).items()}
        others = {key: base64.b64decode(v) for key, v in config.get("binaryData", {}).items()}
        for item in source["configMap"]["items"]:
            found[item["path"]] = ({**texts, **others}[item["key"]], item["mode"])
    return found
