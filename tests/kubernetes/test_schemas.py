"""Every object is what the three newest Kubernetes minors know, those of foreign kinds included."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ABSENT
from tests.kubernetes import cluster_files, schemas
from tests.kubernetes.cluster_files import ALL_PARTS, SEVERAL_NODES
from tests.kubernetes.schemas import MINORS

PREFILL = "targets.kubernetes.prefill={deployment: deepseek-v3.2-nvfp4-gb300-prefill, servers: 3}"
[GATEWAY, *_] = ALL_PARTS
SHAPES = {
    "everything": (
        "llama-3.3-70b-fp8-h100",
        "triton",
        (*ALL_PARTS, "targets.kubernetes.kserve=true"),
    ),
    "everything of trtllm-serve": (
        "deepseek-v3.2-nvfp4-gb200",
        "trtllm_serve",
        (*ALL_PARTS, "targets.kubernetes.kserve=true"),
    ),
    "several nodes": ("deepseek-v3.2-nvfp4-gb200", "triton", (*ALL_PARTS, *SEVERAL_NODES)),
    "folder of the nodes": (
        "llama-tiny",
        "triton",
        ("targets.kubernetes.model={host_path: /data, path: llama}",),
    ),
    "driver of volumes": (
        "llama-tiny",
        "triton",
        ("targets.kubernetes.model={csi: {driver: csi.example, attributes: {volume: a b}}}",),
    ),
    "gRPC alone, encrypted": (
        "llama-tiny",
        "triton",
        (
            "targets.triton={http: false, key_file: /k, "
            "grpc_tls: {certificate: /c, key: /k, client_ca: /a}}",
        ),
    ),
    "gRPC alone": ("llama-tiny", "triton", ("targets.triton.http=false",)),
    "prefill and decode servers": (
        "deepseek-v3.2-nvfp4-gb300-decode",
        "trtllm_serve",
        (PREFILL, "targets.kubernetes.topology_key=rack"),
    ),
    "prefill and decode servers on several nodes": (
        "deepseek-v3.2-nvfp4-gb200x32",
        "trtllm_serve",
        (
            GATEWAY,
            "targets.kubernetes.model={host_path: /data}",
        ),
    ),
    "a download": (
        "deepseek-v3.2-nvfp4-gb200",
        "trtllm_serve",
        ("targets.kubernetes.download={secret: hub, storage_class: shared}",),
    ),
    "a download from S3": (
        "deepseek-v3.2-nvfp4-gb200",
        "trtllm_serve",
        ("targets.kubernetes.download={s3: 's3://b/m', image: registry.example/aws-cli}",),
    ),
    "a draft model": ("llama-tiny", "triton", ("draft={checkpoint: /models/draft, tokens: 3}",)),
}


def assert_valid(folder: Path) -> None:
    found = cluster_files.objects(folder)
    assert found
    for item in found:
        if item["kind"] in schemas.FOREIGN and not schemas.definitions_are_here():
            pytest.skip(ABSENT)
        for minor in MINORS:
            assert schemas.faults(item, minor) == [], (minor, item["kind"])


@pytest.mark.parametrize(("preset", "server"), cluster_files.pairs())
def test_every_preset_is_valid_with_each_of_its_servers(
    preset: str, server: str, tmp_path: Path
) -> None:
    assert_valid(cluster_files.render(tmp_path / "bundle", preset, server))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_valid(shape: str, tmp_path: Path) -> None:
    preset, server, overrides = SHAPES[shape]
    assert_valid(cluster_files.render(tmp_path / "bundle", preset, server, *overrides))


def spots(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all mappings in an object."""
    inner = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    found = [spot for key, value in inner for spot in spots(value, (*path, key))]
    return [path, *found] if isinstance(node, dict) else found


# Mappings whose keys are the user's own.
FREE = frozenset(
    (
        *("labels", "matchLabels", "annotations", "data", "nodeSelector", "requests", "limits"),
        *("selector", "volumeAttributes", "capacity"),
    )
)


@pytest.mark.parametrize("shape", ["everything", "several nodes"])
def test_a_misspelt_field_is_found_wherever_it_stands(shape: str, tmp_path: Path) -> None:
    if not schemas.definitions_are_here():
        pytest.skip(ABSENT)
    preset, server, overrides = SHAPES[shape]
    folder = cluster_files.render(tmp_path / "bundle", preset, server, *overrides)
    tried = 0
    for item in cluster_files.objects(folder):
        for path in spots(item):
            if FREE & set(path) or path[:1] == ("metadata",):
                continue
            changed = copy.deepcopy(dict(item))
            place: Any = changed
            for key in path:
                place = place[key]
            place["sizze"] = 1
            assert schemas.faults(changed, MINORS[-1]), (item["kind"], path)
            tried += 1
    assert tried > 100
