"""`up`: a target of a rendered bundle served by its own script, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from builder.bundle import Bundle
from launch import diagnose, serving, target
from launch.cli.main import main
from launch.run import Run
from launch.start import Start
from tests.launch.conftest import NAME, Launch, checked, marked_processes, with_script

pytestmark = pytest.mark.usefixtures("nothing_left")


def summary(folder: Path) -> dict[str, Any]:
    [path] = folder.glob("runs/*/run.json")
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def wait_for_server() -> set[int]:
    """The processes of the server that a launcher just started."""
    deadline = time.monotonic() + 120
    while not (found := marked_processes()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@pytest.mark.parametrize(
    ("target", "number"), [("triton", signal.SIGINT), ("trtllm_serve", signal.SIGTERM)]
)
def test_a_target_serves_until_it_is_interrupted(
    local_bundle: Bundle, launch: Launch, tmp_path: Path, target: str, number: signal.Signals
) -> None:
    launcher = launch("up", local_bundle.folder, "--target", target)
    port = local_bundle.launch["targets"][target]["ports"]["http"]
    assert launcher.line("http") == f"http: http://127.0.0.1:{port}"
    assert {one.outcome for one in checked(local_bundle, target, "P6", "P8")} == {"passed"}
    launcher.signal(number)
    assert launcher.end() == 0
    found = summary(tmp_path)
    assert found["outcome"] == "stopped"
    assert found["killed"] is False
    assert found["target"] == target
    assert found["bundle"]["digest"] == local_bundle.digest
    assert found["engine"] == {
        "name": "tensorrt_llm",
        "release": "1.2.1",
        "used": "reference",
        "rehearsal": True,
    }
    assert found["started"] < found["ready"] < found["stopped"]
    errors = launcher.errors.read_text()
    assert f"{target}: starts with engine reference" in errors
    assert f"{target}: llama-tiny is not a folder of this machine; using a miniature with" in errors
    assert f"{target}: stopping after {number.name}, within 330 s; again to stop at once" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("target", "number"), [("triton", signal.SIGTERM), ("trtllm_serve", signal.SIGINT)]
)
def test_an_interruption_of_the_start_leaves_nothing(
    local_bundle: Bundle, launch: Launch, tmp_path: Path, target: str, number: signal.Signals
) -> None:
    launcher = launch("up", local_bundle.folder, "--target", target)
    wait_for_server()
    launcher.signal(number)
    assert launcher.end() == 128 + number
    assert summary(tmp_path)["outcome"] == "interrupted"
    assert "Traceback" not in launcher.errors.read_text()


def test_a_server_that_dies_while_it_serves_is_reported(
    local_bundle: Bundle, launch: Launch, tmp_path: Path
) -> None:
    launcher = launch("up", local_bundle.folder, "--target", "triton")
    launcher.line("http")
    for pid in marked_processes():
        with suppress(FileNotFoundError, ProcessLookupError):  # another one that has just ended
            if b"tritonserver" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                os.kill(pid, signal.SIGKILL)
    assert launcher.end() == 5
    assert "target triton: died with exit status 137 while it served" in launcher.errors.read_text()
    assert summary(tmp_path)["outcome"] == "died"


@pytest.mark.parametrize("target", ["triton", "trtllm_serve"])
def test_an_engine_that_cannot_start_is_reported_with_its_own_words(
    local_bundle: Bundle, launch: Launch, tmp_path: Path, target: str
) -> None:
    (tmp_path / "empty").mkdir()
    launcher = launch("up", local_bundle.folder, "--target", target, CHECKPOINT="empty")
    assert launcher.end() == 5
    errors = launcher.errors.read_text()
    assert f"error: target {target}: died with exit status" in errors
    assert re.search(r"^    .*config\.json", errors, re.MULTILINE)  # a line of its own
    assert summary(tmp_path)["outcome"] == "died"
    assert summary(tmp_path)["checkpoint"] == str(tmp_path / "empty")


def test_up_smoke_bench_and_the_report_show_why_a_server_failed(
    local_bundle: Bundle, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    said = "ImportError: libmpi.so.40: cannot open shared object file: No such file"
    bundle = with_script(local_bundle, "triton", f"echo '{said}'\nexit 3\n", tmp_path / "bundle")
    launcher = launch("up", bundle.folder, "--target", "triton")
    assert launcher.end() == 5
    lines = launcher.errors.read_text().splitlines()
    start = lines.index("    failed in phase import")
    assert lines[start + 1 :] == [
        "    cause: Open MPI is not installed; mpi4py finds no libmpi.so.40.",
        f"      server.log:1: {said.removesuffix(' No such file')}",
        "        No such file",
        "    fix: Install libopenmpi-dev, or use the release's image.",
        "    source: open-mpi-is-missing, confirmed; TensorRT-LLM documentation,",
        "      installation on Linux",
    ]
    assert summary(tmp_path)["diagnosis"]["causes"][0]["id"] == "open-mpi-is-missing"
    monkeypatch.chdir(tmp_path)
    for verb in ("smoke", "bench"):
        assert main([verb, str(bundle.folder), "--target", "triton"]) == 5
        assert "    cause: Open MPI is not installed" in capsys.readouterr().err
    [run] = tmp_path.glob("runs/*")
    assert main(["report", str(run)]) == 0
    assert "Open MPI is not installed" in (run / "report.html").read_text()


def test_options_that_differ_are_warned_of_and_measured_memory_is_kept(
    local_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path, {"engine": {"rehearsal": False}})
    run.log.write_text(
        "[TensorRT-LLM][INFO] max_seq_len=8192, max_num_requests=64, max_num_tokens=8192, max_batch_size=64\n"  # noqa: E501
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 9.00 GiB for max tokens in paged KV cache (8224).\n"  # noqa: E501
        "INFO:     Application startup complete.\n"
    )
    served = target.read_one(local_bundle, "triton")
    serving.compare_options(served, run, Start.of_run(run, diagnose.planned(local_bundle.folder)))
    said = capsys.readouterr().err
    assert (
        "warning: triton: max_batch_size: planned 16, in force 64 requests (server.log:1)" in said
    )
    assert "max_num_tokens" not in said
    options = json.loads((tmp_path / "run.json").read_text())["options"]
    assert {row["name"]: row["difference"] for row in options}["max_batch_size"] == "+48"
    assert "kv_cache_gib: 9.0" in (tmp_path / "memory.facts.yaml").read_text()


def test_shared_memory_that_a_server_leaves_is_removed(
    local_bundle: Bundle, launch: Launch, tmp_path: Path
) -> None:
    script = 'touch "/dev/shm/${SERVE_SHM_PREFIX}left"\nexit 3\n'
    bundle = with_script(local_bundle, "triton", script, tmp_path / "bundle")
    assert launch("up", bundle.folder, "--target", "triton").end() == 5
    [left] = summary(tmp_path)["swept_shared_memory"]
    assert left.startswith(NAME)
    assert left.endswith("left")


def test_a_server_that_takes_too_long_is_stopped(
    local_bundle: Bundle, launch: Launch, tmp_path: Path
) -> None:
    arguments = ("--target", "triton", "--timeout", "0.3", "--run-dir", "run")
    launcher = launch("up", local_bundle.folder, *arguments)
    assert launcher.end() == 5
    assert "was not ready after" in launcher.errors.read_text()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["outcome"] == "timed_out"


def test_a_server_that_is_not_ready_is_not_waited_for_as_one_that_answers(
    local_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serving, "UNREADY_GRACE_S", 0.3)
    script = "trap '' TERM\nwhile true; do sleep 0.1; done\n"
    bundle = with_script(local_bundle, "triton", script, tmp_path / "bundle")
    begun_s = time.monotonic()
    folder = str(bundle.folder)
    assert main(["up", folder, "--target", "triton", "--timeout", "0.3", "--run-dir", "run"]) == 5
    assert time.monotonic() - begun_s < 60
    assert json.loads(Path("run/run.json").read_text())["killed"] is True


def test_a_launcher_that_is_killed_is_the_cause(
    local_bundle: Bundle, launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = launch("up", local_bundle.folder, "--target", "trtllm_serve")
    launcher.line("http")
    launcher.signal(signal.SIGKILL)
    launcher.end()
    deadline = time.monotonic() + 120
    while marked_processes():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    [run] = tmp_path.glob("runs/*")
    capsys.readouterr()
    assert main(["diagnose", "--json", str(run)]) == 5
    found = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in found["causes"]] == ["launcher-was-killed"]
    assert found["verdict"] == "failed"
