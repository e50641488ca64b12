"""The launcher's command line: help, exit codes and errors that people can read."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from builder.bundle import Bundle
from tests import prefork
from tests.conftest import ROOT


def run(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return prefork.shared().run([*map(str, arguments)], cwd, "launch").done


@pytest.mark.parametrize("verb", ["up", "smoke", "rehearse", "bench"])
def test_every_verb_has_help(verb: str) -> None:
    done = run(verb, "--help")
    assert done.returncode == 0
    assert f"usage: python -m launch {verb}" in done.stdout


@pytest.mark.parametrize("verb", ["up", "smoke", "rehearse"])
def test_a_folder_that_is_no_bundle_is_bad_input(verb: str, tmp_path: Path) -> None:
    done = run(verb, tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path}: is not a bundle")


@pytest.mark.parametrize("verb", ["up", "smoke", "rehearse"])
def test_a_damaged_bundle_is_not_started(verb: str, bundle: Bundle, tmp_path: Path) -> None:
    shutil.copytree(bundle.folder, tmp_path / "damaged")
    (tmp_path / "damaged" / "triton" / "serve.sh").write_text("echo owned\n")
    done = run(verb, tmp_path / "damaged")
    assert done.returncode == 4
    assert done.stderr.startswith("error: triton/serve.sh: differs from the manifest")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("up",), "error: --target: is needed: the bundle has 2 targets"),
        (("up", "--target", "slurm"), "error: target slurm: is not in the bundle"),
        (("smoke",), "error: --target: is needed"),
        (("rehearse", "--target", "tritn"), "did you mean triton?"),
        (("up", "--target", "triton", "--timeout", "0"), "0 must be a number of seconds > 0"),
    ],
)
def test_wrong_arguments_are_bad_input(
    bundle: Bundle, arguments: tuple[str, ...], message: str
) -> None:
    done = run(arguments[0], bundle.folder, *arguments[1:])
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["up", "rehearse", "bench"])
@pytest.mark.parametrize("path", ["/no/such/folder", "./nosuch", "~/nosuch", "README"])
def test_a_checkpoint_that_is_no_folder_is_refused_before_anything_is_made(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, path: str
) -> None:
    home, here, file = tmp_path / "home", tmp_path / "here", tmp_path / "README"
    file.touch()
    for folder in (home, here):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("CHECKPOINT", path if path != "README" else str(file))
    monkeypatch.setenv("DRAFT_CHECKPOINT", "/absent")
    done = run(verb, bundle.folder, "--target", "triton", cwd=here)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    said = {
        "/no/such/folder": "no such folder; the nearest parent that exists is /",
        "./nosuch": f"no such folder; the nearest parent that exists is {here}",
        "~/nosuch": f"no such folder; the nearest parent that exists is {home}",
        "README": f"is a file; give its folder: {tmp_path}",
    }
    assert first.startswith("error: CHECKPOINT: ")
    assert first.endswith(said[path])
    assert second.startswith("error: DRAFT_CHECKPOINT: /absent: there is no such folder")
    assert list(here.iterdir()) == []


def test_a_target_with_a_url_is_bad_input() -> None:
    done = run("smoke", "http://127.0.0.1:9", "--target", "triton")
    assert done.returncode == 2
    assert "is for bundles" in done.stderr


def test_a_taken_port_is_named_before_anything_is_made(
    local_bundle: Bundle, tmp_path: Path
) -> None:
    port = local_bundle.launch["targets"]["triton"]["ports"]["grpc"]
    with socket.create_server(("127.0.0.1", port)):
        done = run("up", local_bundle.folder, "--target", "triton", cwd=tmp_path)
    assert done.returncode == 5
    assert done.stderr.startswith(f"error: triton: grpc port {port}: cannot be used on 127.0.0.1")
    assert list(tmp_path.iterdir()) == []


def test_http_is_imported_without_the_command_line_of_its_library() -> None:
    code = "import sys, launch.smoke.http; sys.exit('click' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
