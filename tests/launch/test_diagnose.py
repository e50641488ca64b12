"""`launch diagnose`: what it reads, how it answers, and its exit codes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from builder import pipeline
from launch.cli.main import main
from tests.conftest import ABSENT

SHARED = Path(__file__).parents[3] / "shared" / "failures"
OUT_OF_MEMORY = """\
[TensorRT-LLM] TensorRT LLM version: 1.2.1
[09/14/2026-12:10:08] [TRT-LLM] [I] max_seq_len=8192, max_num_requests=64, max_num_tokens=8192, max_batch_size=64
[09/14/2026-12:10:42] [TRT-LLM] [E] Failed to initialize executor on rank 0: Executor creation failed due to insufficient GPU memory.

The following component could not be created: KV cache
Free GPU memory before component creation attempt (GiB): 11.52
"""  # noqa: E501
READY = "[TensorRT-LLM] TensorRT LLM version: 1.2.1\nINFO:     Application startup complete.\n"


TRITON_WITHOUT_GPU = """\
I1128 08:04:14.717714 6602 model_lifecycle.cc:472] "loading: tensorrt_llm:1"
Error: Failed to initialize NVML
W1128 08:04:14.719050 6602 metrics.cc:798] "DCGM unable to start: DCGM initialization error"
I1128 08:04:14.727772 6602 http_server.cc:4713] "Started HTTPService at 127.0.0.1:29975"
"""


def diagnosed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["diagnose", "--json", *words])
    return code, json.loads(capsys.readouterr().out or "{}")


def test_a_cause_ends_with_5_and_a_healthy_log_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed, ready = tmp_path / "a.log", tmp_path / "b.log"
    failed.write_text(OUT_OF_MEMORY)
    ready.write_text(READY)
    (tmp_path / "c.log").write_text(TRITON_WITHOUT_GPU)
    code, found = diagnosed(capsys, str(failed))
    assert (code, found["verdict"], found["phase"]) == (5, "failed", "kv")
    [cause] = found["causes"]
    assert cause["id"] == "trtllm-kv-cache-does-not-fit"
    assert [row["line"] for row in cause["evidence"]] == [3, 5, 6]
    assert cause["edit"] == {"kv_cache_config": {"free_gpu_memory_fraction": 0.8}}
    for log in (ready, tmp_path / "c.log"):
        code, found = diagnosed(capsys, str(log))
        assert (code, found["verdict"], found["causes"]) == (0, "healthy", [])


@pytest.mark.parametrize("version", ["1.4.0rc9", "9.9.9.dev2026", "main"])
def test_a_release_that_nobody_knows_has_its_causes(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    log.write_text(OUT_OF_MEMORY.replace("1.2.1", version))
    code, found = diagnosed(capsys, str(log))
    assert (code, found["causes"][0]["id"]) == (5, "trtllm-kv-cache-does-not-fit")
    assert found["known_defects"] == []


def test_an_unknown_failure_ends_with_3_and_tells_its_first_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    log.write_text("Traceback (most recent call last):\n  File 'x'\nOddError: nobody knows\n")
    code, found = diagnosed(capsys, str(log))
    assert (code, found["verdict"], found["causes"]) == (3, "failed", [])
    assert found["first_error"] == {
        "file": str(log),
        "line": 3,
        "text": "OddError: nobody knows",
    }


def test_a_state_file_proves_causes_and_has_no_first_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.log").write_text("error: x9 is odd\n")
    state = tmp_path / "a.state.yaml"
    state.write_text("why: |\n  error: a word of the state\n")
    _, found = diagnosed(capsys, str(tmp_path / "a.log"))
    assert found["first_error"]["file"] == str(tmp_path / "a.log")
    state.write_text("dmesg: |\n  NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus\n")
    _, found = diagnosed(capsys, str(tmp_path / "a.log"))
    assert found["causes"][0]["evidence"][0]["file"] == str(state)


def test_a_wrong_path_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(tmp_path / "none.log")]) == 2
    assert "there is no such file, folder or job" in capsys.readouterr().err
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "no log in" in capsys.readouterr().err


def test_a_folder_is_read_with_rotated_logs_and_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "server.log").write_text("INFO:     Shutting down\n")
    with gzip.open(tmp_path / "server.log.1.gz", "wt") as file:
        file.write("[1.2] [n:1:0] ucp_device.c:415  UCX  ERROR failed to select lane for local device GPU0\n")  # fmt: skip  # noqa: E501
    code, found = diagnosed(capsys, str(tmp_path))
    [cause] = found["causes"]
    assert (code, cause["id"], cause["confidence"]) == (5, "ucx-lacks-cuda-ipc", "assumed")
    (tmp_path / "node.state.yaml").write_text("env: {UCX_TLS: ^cuda_ipc}\n")
    _, found = diagnosed(capsys, str(tmp_path))
    assert found["causes"][0]["confidence"] == "confirmed"
    (tmp_path / "node.state.yaml").write_text("env: {UCX_TLS: 'rc,tcp'}\n")
    code, found = diagnosed(capsys, str(tmp_path))
    assert (code, found["causes"]) == (3, [])


@pytest.mark.parametrize(("planned", "edited"), [(0.9, 0.8), (0.8, None), (0.6, None)])
def test_an_edit_lowers_what_the_plan_has(
    planned: float, edited: float | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    share = f"engine_config.kv_cache_config.free_gpu_memory_fraction={planned}"
    bundle = pipeline.render("llama-tiny", tmp_path / "bundle", [share])
    log = tmp_path / "a.log"
    log.write_text(OUT_OF_MEMORY)
    _, found = diagnosed(capsys, str(log), "--bundle", str(bundle.folder))
    edit = {"kv_cache_config": {"free_gpu_memory_fraction": edited}} if edited else {}
    assert found["causes"][0]["edit"] == edit


def test_what_the_engine_tells_is_held_against_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = pipeline.render("llama-tiny", tmp_path / "bundle")
    log = tmp_path / "a.log"
    log.write_text(OUT_OF_MEMORY)
    words = [str(log), "--bundle", str(bundle.folder)]
    main(["diagnose", *words])
    lines = capsys.readouterr().out.splitlines()
    assert (
        "max_batch_size                  16            64           +48 requests  warning" in lines
    )
    assert max(map(len, lines)) <= 80 + len(str(log))
    _, found = diagnosed(capsys, *words)
    rows = {row["name"]: row for row in found["options"]}
    assert rows["max_batch_size"] == {
        "name": "max_batch_size",
        "planned": "16",
        "in_force": "64",
        "difference": "+48",
        "unit": "requests",
        "differs": True,
    }
    assert rows["max_num_tokens"]["differs"] is False


def test_a_credential_in_a_log_is_masked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    log.write_text("error: cannot log in with token hf_abcdefghijklmnopqrstuvwxyzABCDEFGH\n")
    _, found = diagnosed(capsys, str(log))
    assert "hf_abcdef" not in json.dumps(found)


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_collected_logs_have_their_causes() -> None:
    from benchmarks import diagnosis

    assert diagnosis.measure(SHARED).missed == []
