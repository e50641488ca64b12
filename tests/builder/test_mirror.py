"""The mirror list: everything that an air gap needs, with digests or that they are not known."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder import pipeline
from builder.bundle import Bundle
from builder.documents import load_yaml
from builder.facts import engines
from builder.targets.components import PACKAGES
from tests.conftest import ROOT

PRESET = "deepseek-v3.2-nvfp4-gb200"
DOOR = "registry.example/haproxy:3.0"
EVERY_TARGET = (
    "targets.kubernetes.server=triton",
    f"targets.kubernetes.gateway={{image: '{DOOR}', tls_secret: door}}",
    "targets.compose.server=trtllm_serve",
)
URL = re.compile(r"[a-z]+://([^/\s\"'<>)\]]*)")
LOCAL = re.compile(r"(127\.0\.0\.1|localhost|\[::1\]|\$|\{|%)")
# What keeps the engine quiet.
TELEMETRY = {"TRTLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def render(folder: Path, *changes: str, preset: str = PRESET) -> Bundle:
    return pipeline.render(preset, folder, changes, more_targets=["monitoring", "handoff"])


def mirror_of(bundle: Bundle) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bundle.folder / "handoff" / "mirror.json").read_bytes())
    return found


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle with every target that runs without a site."""
    return render(tmp_path_factory.mktemp("mirror") / "bundle", *EVERY_TARGET)


def test_the_packages_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        **dict.fromkeys(project["dependencies"], "builder"),
        **dict.fromkeys(project["optional-dependencies"]["launch"], "launch"),
    }
    rows = load_yaml(PACKAGES.read_text())["packages"]
    assert {row["requirement"]: row["command"] for row in rows} == wanted


def test_every_image_that_a_file_names_is_listed(complete: Bundle) -> None:
    named = set()
    for path in complete.folder.rglob("*.yaml"):
        named |= set(re.findall(r'^\s*-?\s*image: "?([^"\s]+)', path.read_text(), re.MULTILINE))
    listed = {row["image"]: row for row in mirror_of(complete)["images"]}
    assert DOOR in named
    assert named <= set(listed)
    for row in listed.values():
        assert row["digest"] is None
        assert row["image"] in row["digest_by"]


def test_a_digest_that_the_deployment_gives_is_listed(tmp_path: Path) -> None:
    digest = "sha256:" + "ab" * 32
    image = f"registry.example:5000/tritonserver:26.07-trtllm-python-py3@{digest}"
    rows = mirror_of(render(tmp_path / "b", f"images.triton={image}"))["images"]
    (row,) = [row for row in rows if "triton" in row["for"]]
    assert (row["image"], row["digest"], row["digest_by"]) == (image, digest, None)
    assert row["size_gb"] == 14.2


def test_the_digests_of_a_checkpoint_can_be_checked_where_it_arrives(
    make_miniature: Callable[[str], Path], tmp_path: Path
) -> None:
    checkpoint = shutil.copytree(make_miniature("nvidia/DeepSeek-V3.2-NVFP4"), tmp_path / "mini")
    bundle = render(tmp_path / "b", f"checkpoint={checkpoint}")
    (row,) = mirror_of(bundle)["checkpoints"]
    assert row["digests_by"] is None
    assert row["bytes"] == sum(path.stat().st_size for path in checkpoint.iterdir())
    listing = bundle.folder / "handoff" / "checkpoint.sha256"
    command = ["sha256sum", "--check", "--strict", "--quiet", str(listing)]
    subprocess.run(command, cwd=checkpoint, check=True)
    (checkpoint / "tokenizer.json").write_text("{}")
    done = subprocess.run(command, cwd=checkpoint, check=False, capture_output=True)
    assert done.returncode == 1


def test_a_checkpoint_known_by_name_says_how_to_get_digests(complete: Bundle) -> None:
    (row,) = mirror_of(complete)["checkpoints"]
    assert row["files"] == []
    assert row["bytes"] == 415_000_000_000
    assert "render with the folder" in row["digests_by"]
    assert not (complete.folder / "handoff" / "checkpoint.sha256").exists()


def test_unread_weights_are_said_to_be_unknown(
    make_miniature: Callable[[str], Path], tmp_path: Path
) -> None:
    checkpoint = shutil.copytree(make_miniature("nvidia/DeepSeek-V3.2-NVFP4"), tmp_path / "mini")
    with (checkpoint / "original.bin").open("wb") as file:
        file.truncate(1 << 30)
    (checkpoint / "a|b`c\nd <script>").write_text("")
    bundle = render(tmp_path / "b", f"checkpoint={checkpoint}")
    (row,) = mirror_of(bundle)["checkpoints"]
    assert [one["name"] for one in row["files"] if one["sha256"] is None] == ["original.bin"]
    assert "sha256sum" in row["digests_by"]
    text = (bundle.folder / "handoff" / "mirror.md").read_text()
    assert f"| `original.bin` | {1 << 30} | not known |" in text
    digest = hashlib.sha256(b"").hexdigest()
    assert f"| `a\\|b'c d <script>` | 0 | `{digest}` |" in text, "names stay in their cell"


def test_the_readable_list_says_the_same(complete: Bundle) -> None:
    text = (complete.folder / "handoff" / "mirror.md").read_text()
    found = mirror_of(complete)
    for row in found["images"]:
        assert f"| `{row['image']}` | not known: " in text
    for row in found["python"]["requirements"]:
        assert f"| `{row['requirement']}` | {row['for']} |" in text
    assert found["python"]["engine"]["requirement"] in text


def test_a_folder_asks_no_host_and_a_name_may(
    complete: Bundle, make_miniature: Callable[[str], Path], tmp_path: Path
) -> None:
    (host,) = mirror_of(complete)["hosts"]
    assert host["host"] == "huggingface.co"
    assert host["asked"].startswith("unless CHECKPOINT is set to a folder")
    folder = make_miniature("nvidia/DeepSeek-V3.2-NVFP4")
    assert mirror_of(render(tmp_path / "b", f"checkpoint={folder}"))["hosts"] == []


def test_no_file_of_a_bundle_names_a_host_outside(complete: Bundle) -> None:
    """But for the manifest and the documents for people, which name sources and load nothing."""
    read_only = {"manifest.json", "handoff/mirror.json", "handoff/sbom.cdx.json"}
    outside = {}
    for path in complete.manifest["files"]:
        if path in read_only or path.endswith((".md", ".html")):
            continue
        text = (complete.folder / path).read_text()
        hosts = [host for host in URL.findall(text) if not LOCAL.match(host)]
        if hosts:
            outside[path] = hosts
    assert outside == {}


def test_pages_for_people_load_nothing(complete: Bundle) -> None:
    for path in complete.folder.rglob("*.html"):
        text = path.read_text()
        assert not re.search(r"(src|@import|url\()\s*=?\s*[\"']?(https?:)?//", text), path
        assert not re.search(r"<link[^>]*href=[\"']?(https?:)?//", text), path


@pytest.mark.parametrize("preset", ["llama-tiny", "llama-3.3-70b-fp8-h100-vllm", PRESET])
def test_usage_data_is_off_in_every_start_script(preset: str, tmp_path: Path) -> None:
    bundle = pipeline.render(preset, tmp_path / "b")
    engine = engines.load(bundle.manifest["engine"]["name"])
    off = dict.fromkeys(engine.telemetry_variables, "1")
    assert off and bundle.launch["environment"].items() >= off.items()
    for script in bundle.folder.glob("*/serve.sh"):
        names = "|".join(off)
        command = f'eval "$(grep -E "^export ({names})=" "{script}")"; export -p'
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, check=True, env={}
        )
        assert off.items() <= dict(re.findall(r'-x (\w+)="(.*)"', done.stdout)).items()


def test_usage_data_that_was_turned_on_is_said(tmp_path: Path) -> None:
    on = [f"environment.{name}='0'" for name in TELEMETRY]
    bundle = render(tmp_path / "b", *on)
    assert mirror_of(bundle)["telemetry"]["off"] is False
    assert "of the engine is ON" in (bundle.folder / "handoff" / "mirror.md").read_text()
