"""`rehearse`: every target of a bundle, with the reference engine, from start to stop."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

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
    header = ["TARGET", "READY", "TRANSPORT", "CHECKS", "FAILED", "WARNED", "SKIPPED", "RESULT"]
    assert lines[0].split() == header
    assert [line.split()[0] for line in lines[1:4]] == ["trtllm_serve", "triton", "http"]
    assert all(line.endswith("passed") for line in lines[1:4])
    assert max(map(len, lines[:4])) <= 80
    for name in ("trtllm_serve", "triton"):
        folder = tmp_path / "evidence" / name
        run = json.loads((folder / "run.json").read_text())
        assert run["engine"]["rehearsal"] is True
        assert run["outcome"] == "stopped"
        assert run["killed"] is False
        smoke = json.loads((folder / "smoke.json").read_text())
        assert run["smoke"]["checks"] + smoke["skipped"] == len(smoke["results"])
        assert smoke["seconds"] < 60
        wanted = {"P1", "P6", "P8", "P14", "P24", "P25", "N2", "N10"}
        assert wanted <= {one["id"] for one in smoke["results"] if one["outcome"] == "passed"}
        suites = ElementTree.parse(folder / "smoke.xml").getroot()
        assert {suite.attrib["failures"] for suite in suites} == {"0"}
        assert str(folder) in done.stdout
        assert "this is the reference engine" in (folder / "server.log").read_text()


def test_the_bundle_stays_as_it_was(bundle: Bundle, tmp_path: Path) -> None:
    rehearse(tmp_path, bundle.folder, "--target", "triton")
    assert bundles.read(bundle.folder).digest == bundle.digest


@pytest.mark.parametrize(
    ("preset", "target"),
    [
        ("deepseek-r1-0528-nvfp4-b200", "trtllm_serve"),
        ("deepseek-v3.2-nvfp4-gb200", "triton"),
        ("gpt-oss-120b-b200", "trtllm_serve"),
        ("llama-3.3-70b-fp8-h100", "trtllm_serve"),
        ("minimax-m2.5-nvfp4-b300", "trtllm_serve"),
        ("qwen3-235b-nvfp4-gb200", "trtllm_serve"),
        ("qwen3.5-397b-nvfp4-b300", "trtllm_serve"),
    ],
)
def test_a_published_deployment_passes(preset: str, target: str, tmp_path: Path) -> None:
    rendered = pipeline.render(preset, tmp_path / "bundle", [f"name={NAME}"], False)
    done = rehearse(tmp_path, rendered.folder, "--target", target, "--json")
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)
    assert row["passed"]
    transports = {result["transport"] for result in row["smoke"]["results"]}
    assert transports == ({"grpc", "http"} if target == "triton" else {"http"})


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
    outcomes = {result["id"]: result["outcome"] for result in row["smoke"]["results"]}
    assert outcomes["P6"] == outcomes["N14"] == "passed"
    assert outcomes["P8"] == outcomes["N5"] == "skipped"
    assert "as release 1.1.0 does" in (Path(row["folder"]) / "server.log").read_text()


def test_a_failed_check_fails_the_rehearsal(bundle: Bundle, tmp_path: Path) -> None:
    """A bundle that is whole, but whose script starts a server that takes any temperature."""
    script = 'exec python3 -m tests.launch.faulty_server accepts_temperature "$SERVE_HTTP_PORT"\n'
    wrong = with_script(bundle, "trtllm_serve", script, tmp_path / "bundle")
    done = rehearse(tmp_path, wrong.folder, "--target", "trtllm_serve")
    assert done.returncode == 6, done.stderr
    assert done.stdout.splitlines()[1].endswith("failed")
    assert "FAIL  http  N9.heat    temperature -1" in done.stderr
    assert "FAIL  http  P25        Graceful stop" in done.stderr
    assert "error: target trtllm_serve: failed smoke checks; see " in done.stderr


def test_a_server_that_is_not_ready_fails_the_rehearsal(bundle: Bundle, tmp_path: Path) -> None:
    done = rehearse(tmp_path, bundle.folder, "--timeout", "0.3")
    assert done.returncode == 5
    assert [line.split()[-1] for line in done.stdout.splitlines()[1:3]] == ["ready", "ready"]
    assert "target triton: was not ready after" in done.stderr
    assert "Traceback" not in done.stderr
