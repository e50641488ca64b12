"""A start on vLLM that leaves the KV cache no room for one request, and the cause named for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.cli.main import main
from tests.launch.conftest import Launch
from tests.vllm.conftest import LONG, START_TIMEOUT_S, render

LIMIT = ("--timeout", str(START_TIMEOUT_S))


def test_too_little_room_for_keys_and_values_is_the_cause(
    launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**LONG, "num_gpu_blocks_override": 4}
    bundle = render(tmp_path, "small", "llama-3.2-1b-instruct", engine_config=options)
    run = tmp_path / "run"
    launcher = launch("up", bundle.folder, "--engine", "vllm", "--run-dir", run, *LIMIT)
    assert launcher.end(2 * START_TIMEOUT_S) == 5
    assert "One request of max_model_len 2048 needs" in launcher.errors.read_text()
    main(["diagnose", "--json", str(run)])
    found = json.loads(capsys.readouterr().out)
    [cause] = found["causes"]
    assert cause["id"] == "vllm-one-request-needs-more-kv"
    assert "The plan gives" not in cause["cause"]  # which is for the model, not its miniature
    assert (found["verdict"], found["phase"]) == ("failed", "kv")
