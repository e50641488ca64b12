"""`rehearse`: every target of a bundle, with the reference engine, from start to stop."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from builder import bundle as bundles
from builder import pipeline
from builder.bundle import Bundle
from tests.launch.conftest import NAME, with_script

pytestmark = pytest.mark.usefixtures("nothing_left")


def rehearse(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launch", "rehearse", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_every_target_passes_and_leaves_its_evidence(bundle: Bundle, tmp_path: Path) -> None:
    done = rehearse(tmp_path, bundle.folder, "--run-dir", "evidence")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["TARGET", "READY", "CHECKS", "FAILED", "WARNED", "RESULT"]
    assert [line.split()[0] for line in lines[1:3]] == ["trtllm_serve", "triton"]
    assert all(line.endswith("passed") for line in lines[1:3])
    assert max(map(len, lines[:3])) <= 80
    for name in ("trtllm_serve", "triton"):
        folder = tmp_path / "evidence" / name
        run = json.loads((folder / "run.json").read_text())
        assert run["engine"]["rehearsal"] is True
        assert run["outcome"] == "stopped"
        assert run["killed"] is False
        smoke = json.loads((folder / "smoke.json").read_text())
        assert run["smoke"]["checks"] == len(smoke["results"]) > 10
        assert str(folder) in done.stdout
        assert "this is the reference engine" in (folder / "server.log").read_text()


def test_the_bundle_stays_as_it_was(bundle: Bundle, tmp_path: Path) -> None:
    rehearse(tmp_path, bundle.folder, "--target", "triton")
    assert bundles.read(bundle.folder).digest == bundle.digest


@pytest.mark.parametrize(
    "preset",
    [
        "deepseek-r1-0528-nvfp4-b200",
        "deepseek-v3.2-nvfp4-gb200",
        "gpt-oss-120b-b200",
        "llama-3.3-70b-fp8-h100",
        "minimax-m2.5-nvfp4-b300",
        "qwen3-235b-nvfp4-gb200",
        "qwen3.5-397b-nvfp4-b300",
    ],
)
def test_a_published_deployment_passes_on_triton(preset: str, tmp_path: Path) -> None:
    rendered = pipeline.render(preset, tmp_path / "bundle", [f"name={NAME}"], False)
    done = rehearse(tmp_path, rendered.folder, "--target", "triton", "--json")
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)
    assert row["passed"]
    assert {result["transport"] for result in row["smoke"]["results"]} == {"grpc", "http"}


def test_folders_of_any_name_are_served(bundle: Bundle, tmp_path: Path) -> None:
    """Triton's Python takes blanks for ends of arguments and knows no letter beyond ASCII."""
    folder = tmp_path / "grün und blau"
    shutil.copytree(bundle.folder, folder / "my bundle")
    done = rehearse(folder, "my bundle", "--target", "triton", "--run-dir", "läuft")
    assert done.returncode == 0, done.stderr
    assert (folder / "läuft" / "triton" / "smoke.json").is_file()


def test_a_model_that_is_not_decoupled_passes_without_streaming(tmp_path: Path) -> None:
    settings = [f"name={NAME}", "targets.triton.decoupled=false", "targets.triton.model_name=other"]
    settings.append("engine.release=1.1.0")
    rendered = pipeline.render("llama-tiny", tmp_path / "bundle", settings, False)
    done = rehearse(tmp_path, rendered.folder, "--target", "triton", "--json")
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)
    checks = {result["id"] for result in row["smoke"]["results"]}
    assert "generate" in checks
    assert "stream_text" not in checks
    assert "as release 1.1.0 does" in (Path(row["folder"]) / "server.log").read_text()


def test_a_failed_check_fails_the_rehearsal(bundle: Bundle, tmp_path: Path) -> None:
    """A bundle that is whole, but whose script starts a server that takes any temperature."""
    script = 'exec python3 -m tests.launch.faulty_server accepts "$SERVE_HTTP_PORT"\n'
    wrong = with_script(bundle, "trtllm_serve", script, tmp_path / "bundle")
    done = rehearse(tmp_path, wrong.folder, "--target", "trtllm_serve")
    assert done.returncode == 6, done.stderr
    assert done.stdout.splitlines()[1].endswith("failed")
    assert "FAIL  http  temperature -1" in done.stderr
    assert "error: target trtllm_serve: failed smoke checks; see " in done.stderr


def test_a_server_that_is_not_ready_fails_the_rehearsal(bundle: Bundle, tmp_path: Path) -> None:
    done = rehearse(tmp_path, bundle.folder, "--timeout", "0.3")
    assert done.returncode == 5
    assert [line.split()[-1] for line in done.stdout.splitlines()[1:3]] == ["ready", "ready"]
    assert "target triton: was not ready after" in done.stderr
    assert "Traceback" not in done.stderr
