"""What kubectl makes of the rendered objects, with a server behind it that checks them strictly."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from builder.bundle import File
from builder.targets.kubernetes import workload
from tests.conftest import ABSENT
from tests.kubernetes import cluster_files, schemas
from tests.kubernetes.api_server import KINDS, serving
from tests.kubernetes.cluster_files import ALL_PARTS, SEVERAL_NODES
from tests.kubernetes.object_store import Objects
from tests.kubernetes.test_schemas import SHAPES

Kubectl = Callable[..., subprocess.CompletedProcess[str]]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
PLURALS = {kind: plural for kinds in KINDS.values() for plural, kind in kinds.items()}
# Bundles that take each other's place: almost every list of an object changes.
CHANGES = {
    "of a server": ("llama-tiny", "triton", ()),
    "of a server on several nodes": ("deepseek-v3.2-nvfp4-gb200", "trtllm_serve", SEVERAL_NODES),
}
# Of the shapes, those that differ in the kinds of their objects.
KINDS_OF = ("everything", "several nodes", "driver of volumes", "prefill and decode servers")
OTHER = (
    "draft={checkpoint: /models/draft, tokens: 3}",
    "targets.triton.key_file=/any",
    "targets.kubernetes.deregistration_s=3",
    "targets.kubernetes.replicas=3",
    "targets.kubernetes.update={max_surge: 1, max_unavailable: 0}",
    "targets.kubernetes.node_selector={zone: a}",
    "targets.kubernetes.model={csi: {driver: csi.example}}",
)


@pytest.fixture
def objects() -> Objects:
    return Objects()


@pytest.fixture
def type_kubectl(objects: Objects, kubectl: Path, tmp_path: Path) -> Iterator[Kubectl]:
    """kubectl with a server that keeps these objects."""
    with serving(objects, {}) as config:
        (tmp_path / "kubeconfig").write_text(config)
        own = {"KUBECONFIG": str(tmp_path / "kubeconfig"), "KUBECACHEDIR": str(tmp_path / "cache")}

        def run(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
            command = [str(kubectl), *map(str, arguments)]
            environment = {**os.environ, **own}
            return subprocess.run(
                command, env=environment, input=stdin, capture_output=True, text=True, check=False
            )

        yield run


def assert_done(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr


def assert_holds(objects: Objects, folder: Path) -> None:
    """The server has every object of a folder, each with nothing more than it says."""
    for meant in cluster_files.objects(folder):
        found = objects.get(f"{PLURALS[meant['kind']]}/{meant['metadata']['name']}")
        assert found is not None, meant["metadata"]
        assert {**found, "metadata": None} == {**meant, "metadata": None}
        own = found["metadata"]
        assert own["labels"] == meant["metadata"]["labels"]
        annotations = {k: v for k, v in own["annotations"].items() if k != LAST_APPLIED}
        assert annotations == meant["metadata"].get("annotations", {})


@pytest.mark.parametrize("shape", KINDS_OF)
def test_every_kind_is_taken_as_it_is_and_given_back(
    shape: str, type_kubectl: Kubectl, objects: Objects, tmp_path: Path
) -> None:
    preset, server, overrides = SHAPES[shape]
    folder = cluster_files.render(tmp_path / "bundle", preset, server, *overrides)
    if any(row["kind"] in schemas.FOREIGN for row in cluster_files.objects(folder)):
        need_definitions()
    parts = [folder, *(path for path in [folder / "kserve"] if path.exists())]
    for part in parts:
        assert_done(type_kubectl("apply", "--kustomize", part))
    assert_holds(objects, folder)
    for part in parts:  # what two have in common is gone with the first
        type_kubectl("delete", "--kustomize", part)
    assert objects.places() == []


@pytest.mark.parametrize("change", CHANGES)
def test_a_bundle_takes_the_place_of_another_without_a_trace_of_it(
    change: str, type_kubectl: Kubectl, objects: Objects, tmp_path: Path
) -> None:
    preset, server, own = CHANGES[change]
    if own:
        need_definitions()
    overrides = {"plain": own, "all": (*own, *ALL_PARTS), "other": (*own, *ALL_PARTS, *OTHER)}
    folders = {
        name: cluster_files.render(tmp_path / name, preset, server, *more)
        for name, more in overrides.items()
    }
    for name in ("plain", "all", "other", "plain", "other"):
        assert_done(type_kubectl("apply", "--kustomize", folders[name]))
        assert_holds(objects, folders[name])


def test_a_bundle_with_another_server_needs_the_place_to_be_free(
    type_kubectl: Kubectl, tmp_path: Path
) -> None:
    """The runbook says so: a Deployment keeps the labels that it finds its pods by."""
    first, second = (
        cluster_files.render(tmp_path / server, "llama-tiny", server)
        for server in ("triton", "trtllm_serve")
    )
    assert_done(type_kubectl("apply", "--kustomize", first))
    assert "spec.selector" in type_kubectl("apply", "--kustomize", second).stderr
    assert_done(type_kubectl("delete", "--kustomize", first))
    assert_done(type_kubectl("apply", "--kustomize", second))


def need_definitions() -> None:
    if not schemas.definitions_are_here():
        pytest.skip(ABSENT)


def test_a_misspelt_field_is_refused(type_kubectl: Kubectl, tmp_path: Path) -> None:
    """When it is made, and when it is changed."""
    folder = cluster_files.render(tmp_path / "bundle", "llama-tiny", "triton")
    workload = (folder / "base" / "workload.yaml").read_text()
    misspelt = workload.replace("nodeSelector:", "nodeSelektor:")
    assert misspelt != workload
    for text, refused in ((misspelt, True), (workload, False), (misspelt, True)):
        done = type_kubectl("apply", "--filename=-", stdin=text)
        assert ("nodeSelektor" in done.stderr) is refused
        assert bool(done.returncode) is refused


@pytest.mark.parametrize("letter", ["x", "<", "é", "\0"])
def test_kubectl_can_apply_the_largest_map_of_files(letter: str, type_kubectl: Kubectl) -> None:
    """It keeps a copy in an annotation, where some letters take more room."""
    data = (letter * 1000).encode()
    maps = workload.config_maps("x", {f"f{index}": File(data) for index in range(300)})
    assert len(maps) > 1
    for name, files in maps.items():
        head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        text = yaml.safe_dump({**head, **workload.map_data(files)})
        done = type_kubectl("apply", "--filename=-", stdin=text)
        assert_done(done)
