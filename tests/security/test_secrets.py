"""Secrets: nothing that a machine or a file holds comes into a bundle, a log or a command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.security import hostile

# None of them is real.
TOKENS = {
    "HF_TOKEN": "hf_" + "a1" * 17,
    "NGC_API_KEY": "nvapi-" + "b2" * 20,
    "GITHUB_TOKEN": "ghp_" + "c3" * 18,
    "AWS_SECRET_ACCESS_KEY": "d4" * 20,
    "MY_PASSWORD": "correct-horse",
}


@pytest.mark.parametrize("targets", ["servers only", "every target"])
def test_nothing_of_the_environment_comes_into_a_bundle(targets: str, tmp_path: Path) -> None:
    document = hostile.request("plain", "plain")
    if targets == "servers only":
        document["targets"] = {"trtllm_serve": {}, "triton": {}}
    (tmp_path / "d.json").write_text(json.dumps(document))
    command = [sys.executable, "-m", "builder", "render", "d.json", "-o", "bundle"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **TOKENS, "PYTHONPATH": str(ROOT), "TRTLLM_TOOLKIT_DEBUG": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    held = [path.read_bytes() for path in (tmp_path / "bundle").rglob("*") if path.is_file()]
    for token in TOKENS.values():
        assert token not in done.stdout + done.stderr
        assert not [data for data in held if token.encode() in data]
