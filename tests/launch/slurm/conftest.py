"""A real cluster, bundles of small servers for it, and `launch slurm` as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builder import bundle as bundles
from builder import pipeline
from builder.bundle import File
from tests import prefork
from tests.slurm import service as stand_ins
from tests.slurm.cluster import Cluster, Shape, why_not

SITE = """\
name: test
gpu_request: gres
container: {{runtime: none}}
mpi: pmi2
exclusive: false
cpus_per_node: 4
python: {python}
toolkit: {python}
"""
TIMES = {"limit_s": 300, "successor_lead_s": 60, "drain_s": 3, "settle_s": 0.5}
PREFLIGHT = {
    "timeout_s": 60,
    "gpus": 1,
    "mpi": "pmi2",
    "images": {},
    "mounts": [],
    "checkpoints": {},
    "programs": ["bash"],
    "ports": [],
}
HEALTH = {"period_s": 0.3, "timeout_s": 0.5, "failures": 3}

MakeBundle = Callable[..., bundles.Bundle]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := why_not():
        pytest.skip(f"no Slurm cluster on this machine: {reason}")
    with Cluster(tmp_path_factory.mktemp("cluster") / "c", Shape(nodes=2)) as running:
        yield running


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> bundles.Bundle:
    """A bundle for the cluster, as it is rendered."""
    folder = tmp_path_factory.mktemp("rendered")
    site = folder / "site.yaml"
    site.write_text(SITE.format(python=sys.executable))
    settings = [f"targets.slurm.site={site}", "targets.slurm.server=trtllm_serve"]
    return pipeline.render("llama-tiny", folder / "bundle", settings, False)


def with_service(bundle: bundles.Bundle, folder: Path, **changes: Any) -> bundles.Bundle:
    """A whole bundle whose service is another one in these respects."""
    files = {
        name: File((bundle.folder / name).read_bytes(), entry["mode"] == "755")
        for name, entry in bundle.manifest["files"].items()
    }
    document = {**json.loads(files["slurm/service.json"].data), **changes}
    files["slurm/service.json"] = File(bundles.to_json(document))
    facts = {key: bundle.manifest[key] for key in bundles.REQUIRED}
    return bundles.write(folder, files, facts, force=False)


@pytest.fixture
def make_bundle(rendered: bundles.Bundle, tmp_path: Path) -> MakeBundle:
    """The rendered bundle with a small server in the place of the engine's."""

    def make(folder: str, *server_options: str, **changes: Any) -> bundles.Bundle:
        small = {
            "name": "svc",
            "steps": [stand_ins.server("server0", *server_options)],
            "health": HEALTH,
            "smoke": None,  # the supervisor's own question: the small server fails a whole suite
            "time": TIMES,
            "preflight": PREFLIGHT,
        }
        return with_service(rendered, tmp_path / folder, **{**small, **changes})

    return make


class Slurm:
    """`launch slurm` on the cluster, with a state folder of its own."""

    def __init__(self, cluster: Cluster, state: Path) -> None:
        self.cluster = cluster
        self.state = state
        self.variables = {
            "SERVICE_STATE_FOLDER": str(state),
            "SERVICE_FREE_PORTS": "1",
            "XDG_STATE_HOME": str(state.with_name("home")),
        }

    def __call__(
        self, *arguments: str | Path, code: int = 0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        words = ["slurm", *map(str, arguments)]
        command = [sys.executable, "-m", "launch", *words]
        given = {**self.variables, **variables}
        if self.cluster.inside("controller", command) == command:
            environment = {**self.cluster.environment, **given}
            done = prefork.shared().run(words, Path.cwd(), "launch", environment).done
        else:
            done = self.cluster.run(*command, check=False, cwd=None, **given)
        assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
        return done

    def status(self, *names: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self("status", "--json", *names).stdout)
        return rows

    def endpoint(self, name: str = "svc") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / name / "endpoint.json").read_text())
        return found


@pytest.fixture
def slurm(cluster: Cluster, tmp_path: Path) -> Iterator[Slurm]:
    """All jobs that a test leaves are cancelled, and their nodes free again."""
    yield Slurm(cluster, tmp_path / "state")
    for state in ("PENDING", "RUNNING"):
        cluster.run("scancel", "--quiet", f"--state={state}", check=False)
    cluster.wait_idle()
