"""Target `compose`: one machine, a file that Docker Compose takes, and nothing more than needed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import deployment, pipeline
from builder.errors import BadInput
from builder.facts import hardware
from tests.kubernetes import cluster_files
from tests.kubernetes.cluster_files import DIGEST
from tests.kubernetes.conftest import docker_compose as docker_compose


def fits_a_machine(preset: str) -> bool:
    asked = deployment.read(preset).data["hardware"]
    return bool(asked["num_gpus"] <= hardware.load(asked["gpu"]).gpus_per_node.value)


def shape(preset: str, server: str) -> tuple[object, ...]:
    """What the file of a preset may differ in from that of another one."""
    data = deployment.read(preset).data
    return server, data.get("instances", 1), "draft" in data, data["engine"].get("name")


PAIRS = [pair for pair in cluster_files.pairs() if fits_a_machine(pair[0])]
SHAPES = [*{shape(*pair): pair for pair in PAIRS}.values()]
FOLDERS = {"CHECKPOINT_FOLDER": "/models/a", "DRAFT_CHECKPOINT_FOLDER": "/models/b"}
FILES = {
    name: f"/secrets/{name}"
    for name in ("SERVER_KEY_FILE", "SERVER_CERTIFICATE_FILE", "SERVER_CERTIFICATE_KEY_FILE")
}


def render(
    folder: Path, *overrides: str, preset: str = "llama-tiny", server: str = "triton"
) -> Path:
    image = f"images.{server}=registry.example/{server}:1@{DIGEST}"
    own = [f"targets.compose.server={server}", image, *overrides]
    pipeline.render(preset, folder / "bundle", own, more_targets=["compose"])
    return folder / "bundle/compose/compose.yaml"


def services(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())["services"]
    return found


def read_by_compose(program: Path, file: Path, **variables: str) -> Any:
    """The file as Docker Compose understands it. Raises what it has against it."""
    done = subprocess.run(
        [program, "-f", file, "config", "--format", "json"],
        env={"PATH": os.environ["PATH"], "HOME": str(file.parent), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr.lower(), done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("preset", "server"), SHAPES)
def test_compose_takes_a_preset_of_every_shape(
    preset: str, server: str, tmp_path: Path, docker_compose: Path
) -> None:
    file = render(tmp_path, preset=preset, server=server)
    found = read_by_compose(docker_compose, file, **FOLDERS)
    for name, service in services(file).items():
        read = found["services"][name]
        assert read["entrypoint"] == service["entrypoint"]
        assert read["image"] == service["image"]


def test_a_misspelt_key_is_refused(tmp_path: Path, docker_compose: Path) -> None:
    file = render(tmp_path)
    file.write_text(file.read_text().replace("read_only: true", "readonly: true", 1))
    with pytest.raises(AssertionError, match="readonly"):
        read_by_compose(docker_compose, file, **FOLDERS)


def test_a_folder_that_is_not_named_is_asked_for(tmp_path: Path, docker_compose: Path) -> None:
    with pytest.raises(AssertionError, match="CHECKPOINT_FOLDER is missing a value"):
        read_by_compose(docker_compose, render(tmp_path))


def test_the_server_may_do_nothing_but_serve(tmp_path: Path) -> None:
    [service] = services(render(tmp_path)).values()
    assert service["user"] == "1000:1000"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges=true"]
    assert service["ipc"] == "private"
    assert not {"privileged", "network_mode", "pid", "cap_add"} & set(service)
    assert all(row["read_only"] for row in service["volumes"])


def test_only_this_machine_reaches_it(tmp_path: Path) -> None:
    [service] = services(render(tmp_path)).values()
    assert {row["host_ip"] for row in service["ports"]} == {"127.0.0.1"}
    assert service["environment"]["SERVE_HOST"] == "0.0.0.0"


def test_it_may_take_as_long_to_stop_as_the_server_says(tmp_path: Path) -> None:
    file = render(tmp_path, "targets.triton.drain_timeout_s=500")
    [service] = services(file).values()
    launch = json.loads((tmp_path / "bundle/launch.json").read_text())
    assert service["stop_grace_period"] == f"{launch['targets']['triton']['stop_timeout_s']}s"


def test_instances_have_gpus_and_ports_of_their_own(tmp_path: Path, docker_compose: Path) -> None:
    file = render(tmp_path, "hardware.num_gpus=4", "instances=2")
    read_by_compose(docker_compose, file, **FOLDERS)
    found = services(file)
    assert list(found) == ["server0", "server1"]
    devices = [row["deploy"]["resources"]["reservations"]["devices"] for row in found.values()]
    assert [row[0]["device_ids"] for row in devices] == [["0", "1"], ["2", "3"]]
    published = [port["published"] for row in found.values() for port in row["ports"]]
    assert len(set(published)) == len(published) == 6


@pytest.mark.parametrize("images", [[], [f"images.triton=registry.example/triton:1@{DIGEST}"]])
def test_an_image_that_a_tag_alone_names_is_warned_of(images: list[str]) -> None:
    own = ["targets.compose.server=triton", *images]
    planned = pipeline.plan("llama-tiny", own, more_targets=["compose"])
    found = [row.where for row in planned.warnings if "has no digest" in row.message]
    assert found == ([] if images else ["images.triton"])


def test_secrets_come_as_files(tmp_path: Path, docker_compose: Path) -> None:
    tls = "targets.triton={http: false, key_file: /k, grpc_tls: {certificate: /c, key: /k}}"
    file = render(tmp_path, tls)
    found = read_by_compose(docker_compose, file, **FOLDERS, **FILES)
    [service] = found["services"].values()
    targets = {row["target"] for row in service["secrets"]}
    told = {value for name, value in service["environment"].items() if name.startswith("SERVE_")}
    assert targets <= told
    assert {row["file"] for row in found["secrets"].values()} == set(FILES.values())


def test_more_gpus_than_a_machine_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="are more than the 4 of a machine with gb200"):
        render(tmp_path, "hardware.num_gpus=16", preset="deepseek-v3.2-nvfp4-gb200")
