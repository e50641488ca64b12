"""Secrets: nothing that a machine or a file holds comes into a bundle, a log or a command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

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


@pytest.mark.parametrize("name", ["HF_TOKEN", "NGC_API_KEY", "db_password", "X_SECRET", "TOKEN"])
def test_a_variable_that_is_a_credential_is_refused_unsaid(name: str) -> None:
    with pytest.raises(BadInput) as caught:
        pipeline.plan("llama-tiny", [f"environment.{name}=correct-horse"])
    assert f"environment.{name}" in str(caught.value)
    assert "correct-horse" not in str(caught.value)


@pytest.mark.parametrize("name", ["TLLM_LOG_LEVEL", "MAX_TOKENS", "HF_TOKEN_PATH", "DETOKEN"])
def test_other_variables_pass(name: str) -> None:
    planned = pipeline.plan("llama-tiny", [f"environment.{name}=plain"])
    assert planned.plan.deployment.environment == {name: "plain"}


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
    found = [row for row in caught.value.diagnostics if "credential" in row.message]
    assert [row.path.partition(".0")[0] for row in found] == [path]
    assert all(text not in str(row) for row in found)


def test_a_credential_of_a_site_profile_is_refused(tmp_path: Path) -> None:
    site = yaml.safe_load((ROOT / "tests/golden/site.yaml").read_text())
    site["environment"]["HF_TOKEN"] = "x"
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(site))
    with pytest.raises(BadInput) as caught:
        pipeline.plan("llama-tiny", [f"targets.slurm.site={tmp_path / 'site.yaml'}"])
    assert "targets.slurm.site.environment.HF_TOKEN" in str(caught.value)
