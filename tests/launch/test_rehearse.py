"""`rehearse`: every target of a bundle, with the reference engine, from start to stop."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from builder import bundle as bundles
from builder import pipeline
from builder.bundle import Bundle
from launch.smoke import suite
from tests.conftest import of_release
from tests.launch.conftest import NAME, Rehearse, with_script

pytestmark = pytest.mark.usefixtures("nothing_left")

PUBLISHED = "llama-3.3-70b-fp8-h100"

# Checks whose outcome depends on the model and the server together; `rehearsed` passes all others.
OF_THE_MODEL = {"P2", "P3", "P6", "P8", "P14", "P17", "P19", "P22"}


def rehearse(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launch", "rehearse", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A rehearsal of both targets, and the bundle before it."""

    before: Bundle
    bundle: Path
    evidence: Path
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    """In folders whose names Triton's Python cannot take: with blanks and letters beyond ASCII."""
    folder = tmp_path_factory.mktemp("rehearsal") / "grün und blau"
    before = pipeline.render(PUBLISHED, folder / "my bundle", [f"name={NAME}"], False)
    done = rehearse(folder, "my bundle", "--run-dir", "läuft")
    return Rehearsed(before, folder / "my bundle", folder / "läuft", done)


def test_every_target_passes_and_is_listed(rehearsed: Rehearsed) -> None:
    assert rehearsed.done.returncode == 0, rehearsed.done.stderr
    lines = rehearsed.done.stdout.splitlines()
    header = ["TARGET", "READY", "TRANSPORT", "CHECKS", "FAILED", "WARNED", "SKIPPED", "RESULT"]
    assert lines[0].split() == header
    assert [line.split()[0] for line in lines[1:4]] == ["trtllm_serve", "triton", "http"]
    assert all(line.endswith("passed") for line in lines[1:4])
    assert max(map(len, lines[:4])) <= 80


@pytest.mark.parametrize("target", ["trtllm_serve", "triton"])
def test_every_target_leaves_its_evidence(rehearsed: Rehearsed, target: str) -> None:
    folder = rehearsed.evidence / target
    run = json.loads((folder / "run.json").read_text())
    assert run["engine"]["rehearsal"] is True
    assert run["outcome"] == "stopped"
    assert run["killed"] is False
    bench = json.loads((folder / "bench.json").read_text())
    assert bench["outcome"] == "complete"
    assert bench["subject"]["engine"]["rehearsal"] is True
    assert [one["requests"]["ok"] for one in bench["points"]] == [12, 12, 12]
    smoke = json.loads((folder / "smoke.json").read_text())
    assert run["smoke"]["checks"] + smoke["skipped"] == len(smoke["results"])
    assert smoke["seconds"] < 300  # 20 s on an idle machine
    assert smoke["engine"] == {"version": "1.2.1+reference", "rehearsal": True}
    wanted = {"P1", "P6", "P8", "P14", "P24", "P25", "N2", "N10"}
    assert wanted <= {one["id"] for one in smoke["results"] if one["outcome"] == "passed"}
    suites = ElementTree.parse(folder / "smoke.xml").getroot()
    assert {suite.attrib["failures"] for suite in suites} == {"0"}
    assert str(folder) in rehearsed.done.stdout
    assert "this is the reference engine" in (folder / "server.log").read_text()


def test_what_triton_counts_is_told_of_every_point(rehearsed: Rehearsed) -> None:
    bench = json.loads((rehearsed.evidence / "triton" / "bench.json").read_text())
    for point in bench["points"]:
        counted = {
            name.partition("{")[0]: value["after"] - value["before"]
            for name, value in point["server"].items()
            if (name.startswith("trtllm_model_") and 'outcome="' in name) or "_count{" in name
        }
        assert counted["trtllm_model_requests_total"] == 12
        assert counted["trtllm_model_request_latency_seconds_count"] == 12


def test_the_report_is_beside_the_evidence(rehearsed: Rehearsed) -> None:
    assert (rehearsed.evidence / "report.html").is_file()


def test_the_bundle_stays_as_it_was(rehearsed: Rehearsed) -> None:
    assert bundles.read(rehearsed.bundle).digest == rehearsed.before.digest


def test_a_published_deployment_with_drafts_passes_on_triton(
    tmp_path: Path, rehearse_quickly: Rehearse
) -> None:
    """Others pass on the engine's own server: tests/reference/test_presets.py."""
    preset = "deepseek-v3.2-nvfp4-gb200"
    rendered = pipeline.render(preset, tmp_path / "bundle", [f"name={NAME}"], False)
    row = rehearse_quickly(OF_THE_MODEL, rendered.folder, "--target", "triton")
    assert row["passed"]
    assert {result["id"] for result in row["smoke"]["results"]} == {*OF_THE_MODEL, suite.STOP_ID}
    assert {result["transport"] for result in row["smoke"]["results"]} == {"grpc", "http"}


def test_a_model_that_is_not_decoupled_passes_without_streaming(
    tmp_path: Path, rehearse_quickly: Rehearse
) -> None:
    settings = [f"name={NAME}", "targets.triton.decoupled=false", "targets.triton.model_name=other"]
    settings += of_release("1.1.0")
    rendered = pipeline.render("llama-tiny", tmp_path / "bundle", settings, False)
    checks = {"P6", "P8", "N5", "N14"}
    row = rehearse_quickly(checks, rendered.folder, "--target", "triton")
    outcomes = {result["id"]: result["outcome"] for result in row["smoke"]["results"]}
    assert outcomes["P6"] == outcomes["N14"] == "passed"
    assert outcomes["P8"] == outcomes["N5"] == "skipped"
    assert row["bench"] is None
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


def test_a_deployment_for_vllm_passes_with_the_same_reference_engine(
    tmp_path: Path, rehearse_quickly: Rehearse
) -> None:
    """Its server answers as vLLM does: the model's owner, the metrics and their names."""
    settings = [f"name={NAME}", "engine={name: vllm, release: 0.32.0}", "targets={vllm_serve: {}}"]
    rendered = pipeline.render("llama-tiny", tmp_path / "bundle", settings, False)
    row = rehearse_quickly(OF_THE_MODEL, rendered.folder, "--engine", "reference")
    assert row["passed"]
    found = {one["id"]: one for one in row["smoke"]["results"]}
    assert found["P3"]["evidence"] == "vllm serve 0.32.0+reference, model llama-tiny"
    assert found["P22"]["evidence"].startswith("vllm:request_success_total counted 4 of 4")
