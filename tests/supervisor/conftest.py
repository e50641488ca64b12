"""Slurm's commands as programs that print what real ones print."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.slurm import Cluster

Commands = Callable[..., Cluster]
HOSTS = "echo node1; echo node2"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Job 7 on two nodes, whose Slurm commands are these shell scripts."""

    def make(**scripts: str) -> Cluster:
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
        monkeypatch.setenv("SLURM_JOB_NAME", "svc")
        monkeypatch.delenv("SLURM_HET_SIZE", raising=False)
        folder = tmp_path / "bin"
        folder.mkdir()
        shown = scripts.get("scontrol", "")
        scripts["scontrol"] = f'if [ "$2" = hostnames ]; then {HOSTS}; exit; fi; {shown}'
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        return Cluster()

    return make
