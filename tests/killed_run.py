"""Holds servers of every kind until the run is killed, which `test_killed_runs.py` does."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

from tests import watcher
from tests.handoff import docker_engine
from tests.model_repository.conftest import Serve
from tests.model_repository.conftest import programs as programs
from tests.model_repository.conftest import start as start
from tests.slurm import cluster as clusters
from tests.slurm.cluster import Cluster, Shape
from tests.slurm.service import Service

# The file that says that all of them run.
READY = "KILLED_RUN_READY"


def test_servers_run(start: Serve, tmp_path: Path) -> None:
    expected = [start().server.pid]
    if not clusters.why_not():
        folder = Path("/tmp", watcher.unique("slurm"))
        folder.mkdir()
        cluster = Cluster(folder, Shape(nodes=2, own_network=os.getuid() == 0))
        cluster.__enter__()
        service = Service(cluster, tmp_path)
        service.wait_for(service.submit(), "serving", 60)
    if not docker_engine.why_not():
        folder = Path("/var/tmp", watcher.unique("docker"))
        folder.mkdir()
        docker_engine.Engine(folder, []).__enter__()
    assert expected and shutil.which("bash")
    Path(os.environ[READY]).write_text(os.environ[watcher.VARIABLE])
    threading.Event().wait()
