"""Secrets: nothing that a machine or a file holds comes into a bundle, a log or a command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder import pipeline
from builder.errors import BadInput
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


@pytest.mark.parametrize(
    "text",
    [
        *(token for name, token in TOKENS.items() if name.endswith(("TOKEN", "API_KEY"))),
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "https://user:word@registry.example/x",
        "AKIA" + "A1" * 8,
    ],
)
@pytest.mark.parametrize("path", ["notes", "environment.PLAIN", "checkpoint", "draft.checkpoint"])
def test_a_text_that_is_a_credential_is_refused_unsaid_wherever_it_stands(
    path: str, text: str
) -> None:
    given = json.dumps([text] if path == "notes" else text)
    with pytest.raises(BadInput) as caught:
        pipeline.plan("llama-tiny", [f"{path}={given}"])
    found = [row for row in caught.value.diagnostics if "holds a credential" in row.message]
    assert [row.path.partition(".0")[0] for row in found] == [path]
    assert all(text not in str(row) for row in found)
