"""Paths: no name of a user, a bundle or a bulletin leads out of the folder that it belongs into."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builder import bundle, pipeline
from builder.bundle import MANIFEST
from builder.errors import BadInput, DamagedBundle
from maintenance import update_advisories
from tests.conftest import ROOT, Run
from tests.security.attacks import survive
from tests.security.test_hostile_inputs import LLAMA, tensor

LEAVING = ("..", "../x", "a/../../x", "/etc/x", "a/b", "x/..", ".", "~x", "a\\..\\x", "x\x00y")


@pytest.mark.parametrize("name", LEAVING)
@pytest.mark.parametrize("path", ["name", "targets.triton.model_name"])
def test_a_name_that_becomes_a_folder_is_one_name(path: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        pipeline.render("llama-tiny", tmp_path / "b", [f"{path}={json.dumps(name)}"])
    assert path in str(caught.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["model", "draft_model"])
@pytest.mark.parametrize(
    "volume",
    ['{claim: m, path: "../x"}', '{claim: m, path: "/x"}', '{host_path: "/models/../etc"}'],
)
def test_a_volume_is_not_left(path: str, volume: str) -> None:
    settings = ["targets.kubernetes.server=trtllm_serve", f"targets.kubernetes.{path}={volume}"]
    with pytest.raises(BadInput) as caught:
        pipeline.plan("llama-tiny", settings)
    assert f"targets.kubernetes.{path}" in str(caught.value)


def listed(folder: Path, name: str, data: bytes) -> None:
    """Makes a bundle list one file more."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    digest = hashlib.sha256(data).hexdigest()
    manifest["files"][name] = {"sha256": digest, "bytes": len(data), "mode": "644"}
    path.write_bytes(bundle.to_json(manifest))


@pytest.mark.parametrize("name", ["../secret", "{outside}/secret", "link/secret", "link"])
def test_a_bundle_that_lists_what_is_not_its_own_is_damaged(name: str, tmp_path: Path) -> None:
    """With the right digest: else it would be found for that."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for place in (outside / "secret", tmp_path / "secret"):
        place.write_bytes(b"secret")
    folder = pipeline.render("llama-tiny", tmp_path / "b").folder
    (folder / "link").symlink_to(outside / "secret" if name == "link" else outside)
    listed(folder, name.format(outside=outside), b"secret")
    with pytest.raises(DamagedBundle):
        bundle.read(folder)


def test_a_link_in_a_bundles_place_is_not_written_through(tmp_path: Path, builder: Run) -> None:
    """What a link leads to is kept, as any folder of others is."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("mine")
    (tmp_path / "b").symlink_to(outside)
    done = builder("render", "llama-tiny", "-o", "b")
    assert done.returncode == 2
    assert [path.name for path in outside.iterdir()] == ["keep"]


def test_a_link_inside_a_bundle_is_not_followed_when_it_is_replaced(
    tmp_path: Path, builder: Run
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("mine")
    folder = pipeline.render("llama-tiny", tmp_path / "b").folder
    (folder / "link").symlink_to(outside)
    assert builder("render", "llama-tiny", "-o", "b").returncode == 2
    assert builder("render", "llama-tiny", "-o", "b", "--force").returncode == 0
    assert (outside / "keep").read_text() == "mine" and not (folder / "link").exists()


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_bundle_takes_the_place_of_no_device(
    kind: str, force: tuple[str, ...], tmp_path: Path
) -> None:
    """Whoever may write to /dev would else leave the machine without its /dev/null."""
    place = tmp_path / "b"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place.symlink_to(os.ttyname(pty.openpty()[1]))
    else:
        os.mknod(place, stat.S_IFSOCK | 0o600)
    mode = place.stat().st_mode
    done = survive("render", "llama-tiny", "-o", "b", *force, cwd=tmp_path)
    assert "device, pipe or socket" in done.stderr and place.stat().st_mode == mode
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_file_that_a_bundle_replaces_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("x")
    survive("render", "llama-tiny", "-o", "b", cwd=tmp_path)
    survive("render", "llama-tiny", "-o", "b", "--force", cwd=tmp_path, codes=(0,))
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_pipe_in_a_reports_place_is_no_report_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = ROOT / "tests/launch/bench/sample_bench.json"
    done = survive("report", result, "-o", "pipe", cwd=tmp_path, module="launch")
    assert "is not a report" in done.stderr


def test_half_of_a_miniature_is_none(tmp_path: Path) -> None:
    """As on a full disk."""
    command = f"ulimit -f 8; exec {sys.executable} -m builder miniature llama-tiny -o m"
    # The interpreter would keep half of what it compiles, too.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2 and "cannot be written" in done.stderr
    assert not list((tmp_path / "m").iterdir())


def test_a_lock_that_somebody_holds_is_no_hang(tmp_path: Path) -> None:
    """Whoever can read a folder can lock it, as each user can /tmp."""
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    started_s = time.monotonic()
    try:
        done = survive("render", "llama-tiny", "-o", "b", cwd=tmp_path)
    finally:
        os.close(held)
    assert "lock" in done.stderr and time.monotonic() - started_s < 60


def test_an_interrupt_while_a_command_is_imported_leaves_no_traceback(tmp_path: Path) -> None:
    for room in ("builder", "launch"):
        (tmp_path / "stop").mkdir(exist_ok=True)
        (tmp_path / "stop/argparse.py").write_text("raise KeyboardInterrupt\n")
        done = subprocess.run(
            [sys.executable, "-m", room, "--help"],
            env={**os.environ, "PYTHONPATH": f"{tmp_path / 'stop'}:{ROOT}"},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# What no file can be called, each beside an option or an argument that wants one.
NO_NAMES = ("x" * 300, "x" * 5_000, "x/" * 5_000, "", "a\nok: fine\x1b[2J", "na\u200bme", "\udce9")
WANTS_A_FILE = (
    *(("builder", verb, "{}") for verb in ("plan", "check", "inspect", "verify", "estimate")),
    ("builder", "plan", "llama-tiny", "--site={}"),
    ("builder", "plan", "llama-tiny", "--advisories={}"),
    ("builder", "estimate", "llama-tiny", "--rows={}"),
    ("builder", "estimate", "--batch={}"),
    ("builder", "choose", "llama-tiny", "--html={}"),
    ("builder", "check", "bundle", "--sarif={}"),
    ("builder", "render", "llama-tiny", "-o", "{}"),
    ("builder", "miniature", "llama-tiny", "-o", "{}"),
    ("builder", "diff", "bundle", "{}"),
    ("builder", "verify", "bundle", "--signers={}"),
    ("builder", "sign", "bundle", "--key={}"),
    ("launch", "up", "{}"),
    ("launch", "up", "bundle", "--target=triton", "--signers={}"),
    ("launch", "smoke", "http://127.0.0.1:9", "--key-file={}"),
    ("launch", "report", "{}"),
    ("launch", "attach", "bundle", "{}"),
    ("launch", "bench", "diff", "{}", "{}"),
)
MAY_HAVE_ANY_NAME = ("--html", "--sarif", "-o", "check")  # it is written, or folders are read


@pytest.mark.parametrize("words", WANTS_A_FILE, ids=lambda words: " ".join(words))
def test_a_name_that_no_file_can_have_is_refused_in_words(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    pipeline.render("llama-tiny", tmp_path / "bundle")
    program, *rest = words
    may_be_fine = any(option in word for option in MAY_HAVE_ANY_NAME for word in rest)
    for name in (*NO_NAMES, "itself"):
        (tmp_path / "itself").unlink(missing_ok=True)
        (tmp_path / "itself").symlink_to("itself")
        given = [word.format(name) for word in rest]
        codes = (0, 2, 3, 4) if may_be_fine else (2, 3, 4, 5)
        survive(*given, cwd=tmp_path, codes=codes, lines=False, module=program)


@pytest.mark.parametrize("option", ["--signers", "--identity"])
def test_two_dashes_are_no_value_without_which_a_signature_would_not_be_asked_for(
    option: str, tmp_path: Path
) -> None:
    pipeline.render("llama-tiny", tmp_path / "bundle")
    for program, verb in (("builder", "verify"), ("launch", "up"), ("launch", "rehearse")):
        given = (verb, "bundle", f"{option}=--")
        done = survive(*given, cwd=tmp_path, codes=(2,), lines=False, module=program)
        assert f"{option}: -- is no value" in done.stderr


@pytest.mark.parametrize("name", ["../llama-tiny", "./llama-tiny", "/llama-tiny", "presets/x"])
def test_a_preset_is_a_name(name: str, builder: Run) -> None:
    done = builder("plan", name)
    assert done.returncode == 2 and "is neither a file nor a preset" in done.stderr


def test_a_shard_outside_of_its_checkpoint_is_not_read(tmp_path: Path, builder: Run) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (tmp_path / "secret").write_text("secret")
    weights = {"weight_map": {"w": "model.safetensors", "x": "../secret"}}
    (folder / "model.safetensors").write_bytes(tensor([1]))
    (folder / "model.safetensors.index.json").write_text(json.dumps(weights))
    (folder / "config.json").write_text(json.dumps(LLAMA))
    done = builder("inspect", "checkpoint")
    assert done.returncode == 3 and "../secret" in done.stderr


def test_a_release_table_is_one_file(tmp_path: Path) -> None:
    for name in ("../1.2.1", "..", "/etc/passwd", "1.2.1/../1.2.1", "1.2.1;x", "1.3.0rc17 x"):
        with pytest.raises(BadInput):
            pipeline.plan("llama-tiny", [f"engine.release={name}"])


def test_an_advisory_file_is_written_under_its_own_name_only(tmp_path: Path) -> None:
    """A bulletin gives no names: what it is about decides."""
    (tmp_path / "new").mkdir()
    (tmp_path / "new/triton.yaml").symlink_to(tmp_path / "outside")
    document = {
        "document": {
            "csaf_version": "2.0",
            "tracking": {
                "id": "1",
                "initial_release_date": "2026-11-01T00:00:00Z",
                "current_release_date": "2026-11-01T00:00:00Z",
            },
        },
        "product_tree": {
            "branches": [
                {"name": "TensorRT-LLM", "product": {"name": "9.9", "product_id": "../../x"}}
            ]
        },
        "vulnerabilities": [{"cve": "CVE-2026-1234", "product_status": {"fixed": ["../../x"]}}],
    }
    (tmp_path / "c.json").write_text(json.dumps(document))
    assert update_advisories.main([str(tmp_path / "c.json"), "-o", str(tmp_path / "new")]) == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "tensorrt_llm.yaml",
        "triton.yaml",
        "vllm.yaml",
    ]
    assert not (tmp_path / "outside").exists()
