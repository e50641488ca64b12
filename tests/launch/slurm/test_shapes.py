"""Each shape that is rendered, served by the reference engine on nodes of their own: submitted,
ready, asked, measured and stopped."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import bundle as bundles
from builder import pipeline
from tests.launch.slurm.conftest import Slurm, with_service
from tests.slurm.cluster import Cluster, Shape, why_not

SITE = """\
name: test
gpu_request: gres
container: {{runtime: none}}
mpi: pmi2
exclusive: true
python: {python}
toolkit: {python}
"""
SMALL = ("--isl=16", "--osl=4", "--requests=4", "--warmup=0")
LLAMA = {"checkpoint": "ONE_LAYER", "hardware": {"gpu": "gb200", "num_gpus": 2}}
WIDE = {
    "checkpoint": "nvidia/Llama-3.3-70B-Instruct-FP8",
    "hardware": {"gpu": "gb200", "num_gpus": 8},
}
VLLM = {"name": "vllm", "release": "0.32.0"}
TRTLLM_SERVE: dict[str, Any] = {"trtllm_serve": {}}
TRITON: dict[str, Any] = {"triton": {}}


def prefill(**deployment: Any) -> dict[str, Any]:
    """The other side, as an option of the target."""
    given = {**ASKED, **deployment, "name": "prefill", "role": "prefill"}
    return {"prefill": {"deployment": {**given, "targets": ["trtllm_serve"]}}}


ASKED: dict[str, Any] = {
    "engine": {"name": "tensorrt_llm", "release": "1.2.1"},
    "workload": {"isl": 512, "osl": 128, "concurrency": 16},
}
# Deployment, its server, options of the target, and how many steps the job has.
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], int]] = {
    "trtllm-serve": (LLAMA, TRTLLM_SERVE, {"host": "node"}, 1),
    "triton": (LLAMA, TRITON, {}, 1),
    "instances": ({**LLAMA, "instances": 2}, TRITON, {}, 3),
    "several-nodes": (WIDE, TRTLLM_SERVE, {}, 1),
    "several-nodes-triton": (WIDE, TRITON, {}, 1),
    "several-nodes-vllm": ({**WIDE, "engine": VLLM}, {"vllm_serve": {}}, {}, 1),
    "disaggregated": ({**LLAMA, "role": "decode"}, TRTLLM_SERVE, prefill(**LLAMA), 3),
    "disaggregated-het": (
        {**WIDE, "role": "decode"},
        TRTLLM_SERVE,
        prefill(**{**WIDE, "hardware": {"gpu": "gb200", "num_gpus": 4}}),
        3,
    ),
}
# Served on ports that are free, of which one takes the place of the number in a file of the router.
ON_FREE_PORTS = "disaggregated"
# Those that the whole suite admits: what clients reach is in front of their servers. The
# supervisor's own question admits the others.
WITH_SUITE = ("instances", "disaggregated-het")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nodes with names and ports of their own, so that services listen where they say."""
    if reason := why_not() or (os.getuid() and "only root may give nodes networks of their own"):
        pytest.skip(str(reason))
    folder = tmp_path_factory.mktemp("shapes")
    with Cluster(folder / "c", Shape(nodes=3, own_network=True)) as running:
        yield running


@pytest.fixture
def slurm(slurm: Slurm) -> Slurm:
    del slurm.variables["SERVICE_FREE_PORTS"]
    return slurm


Render = Callable[..., bundles.Bundle]


@pytest.fixture
def render(tmp_path: Path, one_layer: Path) -> Render:
    return partial(_render, tmp_path, one_layer)


def _render(folder: Path, one_layer: Path, shape: str, concurrency: int = 16) -> bundles.Bundle:
    (folder / "site.yaml").write_text(SITE.format(python=sys.executable))
    asked, server, options, _ = SHAPES[shape]
    slurm = {**options, "site": str(folder / "site.yaml"), "drain_s": 3}
    request = {"name": shape, **ASKED, **asked, "targets": {**server, "slurm": slurm}}
    request["workload"] = {**ASKED["workload"], "concurrency": concurrency}
    text = yaml.safe_dump(request).replace("ONE_LAYER", str(one_layer))
    (folder / "request.yaml").write_text(text)
    return pipeline.render(str(folder / "request.yaml"), folder / "bundle", [], False)


@dataclass(frozen=True)
class Job:
    """The newest job of a service, as its folder and Slurm tell."""

    slurm: Slurm
    name: str

    @property
    def folder(self) -> Path:
        jobs = (self.slurm.state / self.name / "jobs").iterdir()
        return max(jobs, key=lambda folder: int(folder.name))

    @property
    def run(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
        return found

    @property
    def smoke(self) -> dict[str, Any]:
        """What the suite found that admitted it."""
        said = (self.folder / "smoke.log").read_text()
        found: dict[str, Any] = json.JSONDecoder().raw_decode(said, said.index("{"))[0]
        return found

    @property
    def state(self) -> str:
        command = ("scontrol", "show", "job", "-o", self.folder.name)
        shown = self.slurm.cluster.run(*command).stdout
        return str(re.findall(r"JobState=(\w+)", shown)[0])


def is_heard_on_loopback(job: Job) -> bool:
    """Whether the front listens on every address of its node, or only on that of its name."""
    front = job.run["steps"][-1]
    ask = ["bash", "-c", f": </dev/tcp/127.0.0.1/{front['ports']['http']}"]
    command = job.slurm.cluster.inside(front["nodes"][0], ask)
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_admitted_measured_and_stopped(
    slurm: Slurm, render: Render, tmp_path: Path, shape: str
) -> None:
    bundle, job = render(shape), Job(slurm, shape)
    if shape not in WITH_SUITE:
        bundle = with_service(bundle, tmp_path / "quick", smoke=None)
    if shape == ON_FREE_PORTS:
        slurm.variables["SERVICE_FREE_PORTS"] = "1"
    slurm("submit", bundle.folder, "--engine", "reference", "--wait")
    assert (job.run["state"], job.run["bundle_digest"]) == ("serving", bundle.digest)
    if shape == ON_FREE_PORTS:
        rendered = yaml.safe_load((bundle.folder / "slurm/disaggregated.yaml").read_text())
        assert job.run["steps"][-1]["ports"]["http"] != rendered["port"]
    assert [step["state"] for step in job.run["steps"]] == ["ready"] * SHAPES[shape][-1]
    assert is_heard_on_loopback(job) == ("host" not in SHAPES[shape][2])
    if shape in WITH_SUITE:
        assert job.smoke["failed"] == 0
        assert job.smoke["passed"] >= 30
    results = tmp_path / "results"
    options = [f"--option={word}" for word in (*SMALL, "--concurrency=2")]
    slurm("bench", shape, "--here", "--run-dir", str(results), *options)
    (point,) = json.loads((results / "bench.json").read_text())["points"]
    assert (point["requests"]["ok"], point["requests"]["failed"]) == (4, 0)
    slurm("stop", shape)
    assert (job.run["outcome"], job.state) == ("stopped", "COMPLETED")


def test_a_bundle_is_measured_by_an_array_of_jobs(
    slurm: Slurm, render: Render, tmp_path: Path
) -> None:
    """It is served for that time; its points are in one report."""
    whole = render("trtllm-serve", concurrency=2)
    bundle = with_service(whole, tmp_path / "quick", smoke=None)  # a suite takes half a minute
    results = tmp_path / "results"
    options = [f"--option={word}" for word in SMALL]
    words = ("--engine", "reference", "--run-dir", str(results), *options)
    done = slurm("bench", bundle.folder, *words)
    assert done.stdout == f"{results}/report.html\n" and (results / "report.html").is_file()
    found = json.loads((results / "bench.json").read_text())
    assert [point["label"] for point in found["points"]] == ["c1", "c2"]
    counts = [(point["requests"]["ok"], point["requests"]["failed"]) for point in found["points"]]
    assert counts == [(4, 0), (4, 0)]
    assert found["outcome"] == "complete"
    assert found["subject"]["bundle"]["digest"] == bundle.digest
    assert len((results / "requests.jsonl").read_text().splitlines()) == 8
    assert [row["outcome"] for row in slurm.status("trtllm-serve")] == ["stopped"]
