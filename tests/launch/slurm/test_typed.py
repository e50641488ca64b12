"""The commands of the pages about Slurm, typed as printed, on a real cluster.

The engine's programs are stand-ins, and the state folder of the profile is one that this machine
has; all else is as a reader has it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.docs.pages import Block, blocks
from tests.slurm.cluster import Cluster
from tests.slurm.service import LAUNCHER, SERVER, wait_until

PAGES = ("README.md", "docs/slurm.md")
NAME = "deepseek-v3.2-nvfp4-gb200"
PROGRAMS = {
    "trtllm-llmapi-launch": f'exec {sys.executable} {LAUNCHER} "$@"',
    "tritonserver": f"""
while [ $# -gt 0 ]; do
  [ "$1" = --http-port ] && exec {sys.executable} {SERVER} "$2"
  shift
done
""",
}

Type = Callable[..., subprocess.CompletedProcess[str]]


def block(page: str, words: str, kind: str) -> Block:
    (found,) = (one for one in blocks(ROOT / page, kind) if words in one.text)
    return found


@pytest.fixture
def type_in(cluster: Cluster, tmp_path: Path) -> Iterator[Type]:
    """A reader's shell, in a folder of theirs or in another one."""
    programs, own = tmp_path / "programs", tmp_path / "own"
    programs.mkdir()
    own.mkdir()
    for name, script in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/bash\n{script}\n")
        (programs / name).chmod(0o755)
    path = f"{programs}:{Path(sys.executable).parent}:{cluster.environment['PATH']}"
    # Ports that are free: the nodes of the cluster are this machine.
    variables = {"PATH": path, "PYTHONPATH": str(ROOT), "SERVICE_FREE_PORTS": "1"}

    def type_in(command: str, folder: str = "own") -> subprocess.CompletedProcess[str]:
        done = cluster.run(
            *("bash", "-euo", "pipefail", "-c", command),
            check=False,
            cwd=tmp_path / folder,
            HOME=str(tmp_path),
            XDG_STATE_HOME="",
            **variables,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done

    yield type_in
    for state in ("PENDING", "RUNNING"):
        cluster.run("scancel", "--quiet", f"--state={state}", check=False)
    cluster.wait_idle()


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_work_as_printed(page: str, type_in: Type, tmp_path: Path) -> None:
    profile = yaml.safe_load(block(page, "partition:", "yaml").text)
    assert profile["state_folder"] == "/shared/services"
    # What this machine lacks: the folder that all nodes see, and images.
    profile |= {"state_folder": str(tmp_path / "shared"), "container": {"runtime": "none"}}
    (tmp_path / "own" / "my-cluster.yaml").write_text(yaml.safe_dump(profile))
    said = {}
    for command in block(page, "launch slurm submit", "bash").commands:
        done = type_in(command)
        words = command.split()
        said[words[4] if words[3] == "slurm" else words[3]] = done
    job = said["submit"].stdout.strip()
    assert f"its state in {tmp_path}/shared/{NAME}" in said["submit"].stderr
    assert f"see it with: python -m launch slurm status {NAME}\n" in said["submit"].stderr
    assert said["status"].stdout.splitlines()[1].split()[:2] == [NAME, job]
    if "stop" in said:
        ended = ("stopped", "cancelled before it started")
        # A job that has failed on its own before it is stopped is found all the same.
        gone = said["stop"].stderr == f"{NAME}: has no job\n"
        assert gone or said["stop"].stdout in [f"job {job}: {how}\n" for how in ended]


def test_every_later_command_finds_what_submit_used_until_the_service_is_stopped(
    type_in: Type, tmp_path: Path
) -> None:
    """By the service's name from any folder, and by the bundle."""
    profile = yaml.safe_load(block("README.md", "partition:", "yaml").text)
    profile["state_folder"] = str(tmp_path / "shared")
    (tmp_path / "own" / "my-cluster.yaml").write_text(yaml.safe_dump(profile))
    render, submit, status = block("README.md", "launch slurm submit", "bash").commands
    type_in(render)
    job = type_in(f"{submit} --wait --json").stdout
    assert f'"state": "{tmp_path}/shared/{NAME}"' in job
    for folder in ("own", "shared", "."):
        for named in ("", f" {NAME}"):
            assert " serving " in type_in(status + named, folder).stdout
    assert " serving " in type_in(f"{status} service").stdout
    for named in (NAME, "service"):
        assert "published" in type_in(f"python -m launch slurm logs {named}").stdout
    stopped = type_in(f"python -m launch slurm stop {NAME}", "programs").stdout
    assert stopped.endswith(": stopped\n")
    wait_until(lambda: " ended " in type_in(status).stdout)
