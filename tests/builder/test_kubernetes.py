"""Target `kubernetes`: what a deployment may say of it, and what is refused or warned of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import pipeline
from builder.deployment import PRESETS
from builder.errors import BadInput
from builder.targets.kubernetes.workload import object_name
from tests.tables import by_table

SITE = Path(__file__).parents[1] / "golden" / "site.yaml"
IMAGE = f"registry.example/server@sha256:{'0' * 64}"


def render(folder: Path, *overrides: str, preset: str = "llama-tiny") -> list[str]:
    """Renders, and returns the warnings."""
    bundle = pipeline.render(preset, folder / "bundle", overrides, more_targets=["kubernetes"])
    return [f"{row['where']}: {row['what']}" for row in bundle.manifest["warnings"]]


def refusals(folder: Path, *overrides: str, preset: str = "llama-tiny") -> list[str]:
    with pytest.raises(BadInput) as raised:
        render(folder, *overrides, preset=preset)
    return [str(problem) for problem in raised.value.diagnostics]


TRITON = "targets.kubernetes.server=triton"


@by_table
def test_what_cannot_run_is_refused(overrides: list[str], said: str, tmp_path: Path) -> None:
    found = refusals(tmp_path, *overrides)
    assert any(said in line for line in found), found
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(("server", "missing"), [("trtllm_serve", 2), ("triton", 0)])
def test_an_autoscaler_without_its_metrics_is_warned_of(
    server: str, missing: int, tmp_path: Path
) -> None:
    own = (
        f"targets.kubernetes.server={server}",
        "targets.kubernetes.autoscaling={max_replicas: 4}",
    )
    found = [line for line in render(tmp_path, *own) if ".autoscaling: " in line]
    assert len(found) == missing
    assert all("so the autoscaler never adds a server" in line for line in found)


def test_several_servers_on_several_nodes_are_replicas(tmp_path: Path) -> None:
    overrides = ("hardware.num_gpus=16", "instances=2", "targets.kubernetes.server=trtllm_serve")
    found = refusals(tmp_path, *overrides, preset="deepseek-v3.2-nvfp4-gb200")
    assert any("by targets.kubernetes.replicas" in line for line in found), found


def test_kserve_runs_servers_on_one_node_only(tmp_path: Path) -> None:
    overrides = ("hardware.num_gpus=16", TRITON, "targets.kubernetes.kserve=true")
    found = refusals(tmp_path, *overrides, preset="deepseek-v3.2-nvfp4-gb200")
    assert any("kserve: is there, and a server has 4 nodes" in line for line in found), found


@pytest.mark.parametrize(
    ("side", "remedy"),
    [("decode", "add prefill: {deployment"), ("prefill", "name it in its decode deployment")],
)
def test_one_side_of_disaggregated_serving_is_refused(
    side: str, remedy: str, tmp_path: Path
) -> None:
    found = refusals(tmp_path, preset=f"deepseek-v3.2-nvfp4-gb300-{side}")
    [said] = [line for line in found if "kubernetes.prefill" in line]
    assert f"kubernetes does not serve the {side} side alone" in said
    assert remedy in said


DECODE, OTHER = "deepseek-v3.2-nvfp4-gb300-decode", "deepseek-v3.2-nvfp4-gb300-prefill"
SIDES = f"targets.kubernetes.prefill={{deployment: {OTHER}, servers: 2}}"


@by_table
def test_sides_that_are_no_service_are_refused(
    overrides: list[str], said: str, tmp_path: Path
) -> None:
    preset = yaml.safe_load((PRESETS / f"{OTHER}.yaml").read_text())
    halves = {**preset, "hardware": {"gpu": "gb300", "num_gpus": 4}, "instances": 2}
    (tmp_path / "halves.yaml").write_text(yaml.safe_dump(halves))
    given = [row.replace("FILE", str(tmp_path / "halves.yaml")) for row in (SIDES, *overrides)]
    found = refusals(tmp_path, *given, preset=DECODE)
    assert any(said in line for line in found), found


def test_targets_that_name_different_prefill_servers_are_refused(tmp_path: Path) -> None:
    other = f"targets.kubernetes.prefill={{deployment: {OTHER}}}"
    found = refusals(tmp_path, other, preset="deepseek-v3.2-nvfp4-gb200x32")
    [said] = [line for line in found if "is not what" in line]
    assert "targets.kubernetes.prefill.deployment" in said
    assert "targets.slurm.prefill.deployment names; name the same" in said


def changed(preset: str, **changes: Any) -> str:
    """A preset as the text of a file, changed."""
    return yaml.safe_dump({**yaml.safe_load((PRESETS / f"{preset}.yaml").read_text()), **changes})


@by_table
def test_prefill_servers_are_the_same_where_their_files_are(
    there: str,
    here: str,
    override: str | None,
    same: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One name in the file and one on the command line are relative to different folders."""
    sides = {
        "trtllm_serve": {},
        "slurm": {"site": str(SITE), "prefill": {"deployment": there}},
        "kubernetes": {"prefill": {"deployment": here}},
    }
    (tmp_path / "there").mkdir()
    (tmp_path / "there/p.yaml").write_text(changed(OTHER))
    (tmp_path / "p.yaml").write_text(changed(OTHER, name="another"))
    (tmp_path / "there/d.yaml").write_text(changed(DECODE, targets=sides))
    monkeypatch.chdir(tmp_path)
    given = [f"targets.{override}"] if override else []
    found = pipeline.deployment_diagnostics(Path("there/d.yaml"), given)
    errors = [str(row) for row in found if row.severity == "error"]
    assert same == (not errors), errors
    assert same or "is not what targets.slurm.prefill.deployment names" in errors[0]


@by_table
def test_prefill_servers_run_in_the_containers_of_the_decode_servers(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "p.yaml").write_text(changed(OTHER, **changes))
    given = SIDES.replace(OTHER, str(tmp_path / "p.yaml"))
    found = refusals(tmp_path, given, preset=DECODE)
    assert any(said in line for line in found), found


def test_prefill_servers_are_warned_of_where_they_are_named(tmp_path: Path) -> None:
    preset = yaml.safe_load((PRESETS / "deepseek-v3.2-gb200x32-prefill.yaml").read_text())
    del preset["accepted_warnings"]
    (tmp_path / "prefill.yaml").write_text(yaml.safe_dump(preset))
    found = render(
        tmp_path,
        "targets={trtllm_serve: {}, kubernetes: {prefill: {deployment: P}}}".replace(
            "P", str(tmp_path / "prefill.yaml")
        ),
        preset="deepseek-v3.2-nvfp4-gb200x32",
    )
    where = "targets.kubernetes.prefill.deployment.engine_config.cuda_graph_config"
    assert any(line.startswith(where) for line in found), found


def test_a_release_without_an_image_needs_one(tmp_path: Path) -> None:
    found = refusals(tmp_path, TRITON, preset="qwen3.5-397b-nvfp4-b300")
    assert any("images.triton: REFERENCE@sha256:DIGEST" in line for line in found), found


def test_what_stops_several_targets_is_said_once_where_the_user_wrote_it(tmp_path: Path) -> None:
    """The line of the release, which every file has; not that of images, which few have."""
    given = "targets={triton: {}, compose: {}, kubernetes: {}}"
    (found,) = refusals(tmp_path, given, preset="qwen3.5-397b-nvfp4-b300")
    assert found.startswith("preset qwen3.5-397b-nvfp4-b300:6: engine.release: no image of triton")
    assert "(targets compose and kubernetes)" in found
    assert "(the newest, 26.07, has 1.2.1)" in found and "tritonrelease_build" in found


def test_an_image_without_a_digest_is_warned_of(tmp_path: Path) -> None:
    assert any("has no digest" in line for line in render(tmp_path / "a", TRITON))
    given = f"images.triton={IMAGE}"
    assert not any("digest" in line for line in render(tmp_path / "b", TRITON, given))
    assert IMAGE in (tmp_path / "b/bundle/kubernetes/base/workload.yaml").read_text()


def test_the_deployment_wins_over_the_pod(tmp_path: Path) -> None:
    """The script sets the deployment's variables where the pod has none."""
    render(tmp_path, TRITON, "environment={HF_HUB_OFFLINE: '0'}")
    assert "HF_HUB_OFFLINE" not in (tmp_path / "bundle/kubernetes/base/workload.yaml").read_text()
    assert "HF_HUB_OFFLINE-0" in (tmp_path / "bundle/triton/serve.sh").read_text()


def test_a_server_on_several_nodes_needs_a_secret_that_the_bundle_makes(tmp_path: Path) -> None:
    overrides = ("hardware.num_gpus=16", "targets.kubernetes.server=trtllm_serve")
    found = render(tmp_path, *overrides, preset="deepseek-v3.2-nvfp4-gb200")
    assert any("know each other by the Secret server-group" in line for line in found), found
    script = tmp_path / "bundle/kubernetes/secret.sh"
    assert "kubectl create secret tls" in script.read_text()


def test_an_update_that_a_group_of_pods_may_refuse_is_warned_of(tmp_path: Path) -> None:
    overrides = ("hardware.num_gpus=16", "targets.kubernetes.server=trtllm_serve")
    surge = "targets.kubernetes.update={max_surge: 1, max_unavailable: 0}"
    preset = "deepseek-v3.2-nvfp4-gb200"
    for more, warned in (((), False), ((surge,), True)):
        found = render(tmp_path / str(warned), *overrides, *more, preset=preset)
        assert any("update.max_unavailable: is 0" in line for line in found) == warned


def test_a_domain_of_nvlink_that_is_left_out_is_warned_of(tmp_path: Path) -> None:
    overrides = ("hardware.num_gpus=16", "targets.kubernetes.server=trtllm_serve")
    off = "targets.kubernetes.compute_domain=false"
    found = render(tmp_path, *overrides, off, preset="deepseek-v3.2-nvfp4-gb200")
    assert any("compute_domain: is off" in line for line in found)
    assert not (tmp_path / "bundle/kubernetes/shared/compute-domain.yaml").exists()


def test_pods_on_several_nodes_share_a_domain_of_nvlink(tmp_path: Path) -> None:
    """Every pod of the group claims a channel by the template that the domain makes."""
    overrides = ("hardware.num_gpus=16", "targets.kubernetes.server=trtllm_serve")
    found = render(tmp_path / "with", *overrides, preset="deepseek-v3.2-nvfp4-gb200")
    assert not any("compute_domain" in line for line in found)
    folder = tmp_path / "with/bundle/kubernetes"
    domain = yaml.safe_load((folder / "shared/compute-domain.yaml").read_text())
    assert (domain["kind"], domain["spec"]["numNodes"]) == ("ComputeDomain", 0)
    template = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    assert "compute-domain.yaml" in (folder / "shared/kustomization.yaml").read_text()
    [group] = yaml.safe_load_all((folder / "base/workload.yaml").read_text())
    near = group["metadata"]["annotations"]["leaderworkerset.sigs.k8s.io/exclusive-topology"]
    assert near == "nvidia.com/gpu.clique"
    pods = group["spec"]["leaderWorkerTemplate"]
    for name in ("leaderTemplate", "workerTemplate"):
        pod = pods[name]["spec"]
        (claim,) = pod["resourceClaims"]
        assert claim["resourceClaimTemplateName"] == template
        assert pod["containers"][0]["resources"]["claims"] == [{"name": claim["name"]}]


@pytest.mark.parametrize(
    "name", ["chat-prefill", "chat-decode-0", "chat-router", "chat.pods", "chat-group"]
)
def test_a_service_has_the_name_of_no_part_of_another(name: str) -> None:
    assert re.fullmatch(rf"{name.replace('.', '-')}-[0-9a-f]{{8}}", object_name(name))
    assert object_name("chat-routers") == "chat-routers"
