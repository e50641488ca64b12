"""Every rendered job script is accepted by a Slurm of the right shape, and lint foresees the rest.

Two racks of 18 nodes with 4 GPUs, and 20 nodes with 8.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import deployment, pipeline
from builder.facts import engines, hardware, servers
from builder.lint import CheckOptions, check
from tests.slurm import cluster as clusters
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import MakeCluster

SITE: dict[str, Any] = {
    "name": "test",
    "gpu_request": "gpus_per_node",
    "container": {"runtime": "none"},
    "mpi": "pmi2",
    "exclusive": True,
    "partition": "batch",
    "toolkit": "python3",
}
GPUS_PER_NODE = {name: hardware.load(name).gpus_per_node.value for name in hardware.known()}
HAS_SEGMENTS = not clusters.why_not() and clusters.version() >= (24, 5)
RACK = 18
DISAGGREGATED = {
    "prefill": {"deployment": "deepseek-v3.2-nvfp4-gb300-prefill", "servers": 5},
    "servers": 3,
}


@pytest.fixture(scope="module")
def shapes(make_cluster: MakeCluster) -> dict[int, Cluster]:
    """A cluster by the GPUs of its nodes. An older Slurm knows no blocks."""
    racks = make_cluster(nodes=2 * RACK, gpus=4, block=RACK if HAS_SEGMENTS else 0)
    return {4: racks, 8: make_cluster(nodes=20, gpus=8)}


def accepted(cluster: Cluster, script: Path) -> tuple[bool, str]:
    """Whether Slurm would take a script, and what it says."""
    done = cluster.run("sbatch", "--test-only", script, check=False)
    return done.returncode == 0, done.stderr


# Each way to ask for GPUs with each server, and scripts of each container runtime. What pyxis adds
# stands on srun only, so that a cluster without the plugin judges these scripts as well.
IMAGES = {name: f"/images/{name}.sqsh" for name in ("trtllm_serve", "triton", "vllm_serve")}
VARIANTS = [
    ("gpus_per_node", "trtllm_serve", "pyxis"),
    ("gpus_per_node", "triton", "none"),
    ("gres", "trtllm_serve", "none"),
    ("gres", "triton", "apptainer"),
    ("none", "trtllm_serve", "apptainer"),
    ("none", "triton", "pyxis"),
    ("gpus_per_node", "vllm_serve", "pyxis"),
    ("gres", "vllm_serve", "none"),
]
FIRST = [("gpus_per_node", "trtllm_serve"), ("gpus_per_node", "vllm_serve")]


def container(runtime: str) -> dict[str, Any]:
    return {"runtime": runtime, **({"images": IMAGES} if runtime != "none" else {})}


def rendered(folder: Path, request: str, site: dict[str, Any], *changes: str) -> list[Path]:
    (folder / "site.yaml").write_text(yaml.safe_dump({**SITE, **site}))
    site_file = f"targets.slurm.site={folder}/site.yaml"
    bundle = pipeline.render(request, folder / "bundle", [site_file, *changes], force=True)
    scripts = sorted(bundle.folder.glob("slurm/*.sbatch"))
    assert [path.stem for path in scripts] == ["bench", "preflight", "serve"]
    return scripts


def _directives(script: Path) -> tuple[str, ...]:
    """All that Slurm judges of a script, apart from names."""
    lines = script.read_text().splitlines()
    names = ("#SBATCH --job-name=", "#SBATCH --output=")
    return tuple(x for x in lines if x.startswith("#SBATCH") and not x.startswith(names))


def _engine(asked: deployment.Document) -> str:
    return asked.get("engine.name") or engines.default().name


@pytest.mark.parametrize(("gpu_request", "server", "runtime"), VARIANTS)
def test_every_preset_is_accepted(
    shapes: dict[int, Cluster], tmp_path: Path, gpu_request: str, server: str, runtime: str
) -> None:
    """In the first way to ask for GPUs; in others one preset for each number of GPUs and nodes."""
    refused, asked_of, seen = [], set(), set()
    read = {name: deployment.read(name) for name in deployment.preset_names()}
    served = {name: asked for name, asked in read.items() if server in asked.get("targets")}
    known = servers.load(server).engines
    same_engine = [name for name, asked in read.items() if _engine(asked) in known]
    # One side of disaggregated serving is trtllm-serve alone.
    assert served and len(served) >= len(same_engine) - 5
    for name, asked in served.items():
        size = (GPUS_PER_NODE[asked.get("hardware.gpu")], asked.get("hardware.num_gpus"))
        if size in seen and (gpu_request, server) not in FIRST:
            continue
        seen.add(size)
        site = {"gpu_request": gpu_request, "container": container(runtime)}
        for script in rendered(tmp_path, name, site, f"targets.slurm.server={server}"):
            cluster = shapes[size[0]]
            if (question := (cluster, _directives(script))) not in asked_of:
                asked_of.add(question)
                taken, said = accepted(cluster, script)
                refused += [] if taken else [(name, script.name, said)]
    assert refused == []


@pytest.mark.parametrize("server", ["trtllm_serve", "triton"])
def test_a_server_over_four_nodes_is_accepted(
    shapes: dict[int, Cluster], tmp_path: Path, server: str
) -> None:
    changes = ["hardware.num_gpus=16", f"targets.slurm.server={server}"]
    for script in rendered(tmp_path, "deepseek-r1-0528-nvfp4-gb200", {}, *changes):
        taken, said = accepted(shapes[4], script)
        assert taken, said


@pytest.mark.parametrize("nodes", [2, 4, 9, 16, 18, 36])
def test_several_nodes_are_accepted(shapes: dict[int, Cluster], tmp_path: Path, nodes: int) -> None:
    """So many prefill servers of a whole node, and none in two racks where blocks are known."""
    half = {**yaml.safe_load((deployment.PRESETS / "gpt-oss-120b-b200.yaml").read_text())}
    half |= {"hardware": {"gpu": "gb200", "num_gpus": 4}, "role": "decode"}
    prefill = {**half, "name": "prefill", "role": "prefill", "targets": ["trtllm_serve"]}
    options = {"prefill": {"deployment": prefill, "servers": nodes - 1}}
    request = tmp_path / "request.yaml"
    request.write_text(yaml.safe_dump({**half, "targets": {"trtllm_serve": {}, "slurm": options}}))
    site = {"block_size": RACK} if HAS_SEGMENTS else {}
    for script in rendered(tmp_path, str(request), site):
        taken, said = accepted(shapes[4], script)
        assert taken, said


def test_both_sides_in_one_job_are_accepted(shapes: dict[int, Cluster], tmp_path: Path) -> None:
    request = deployment.PRESETS / "deepseek-v3.2-nvfp4-gb300-decode.yaml"
    data = yaml.safe_load(request.read_text())
    file = tmp_path / "request.yaml"
    file.write_text(
        yaml.safe_dump({**data, "targets": {"trtllm_serve": {}, "slurm": DISAGGREGATED}})
    )
    for script in rendered(tmp_path, str(file), {}):
        taken, said = accepted(shapes[4], script)
        assert taken, said


def test_a_heterogeneous_job_is_accepted(shapes: dict[int, Cluster], tmp_path: Path) -> None:
    base = yaml.safe_load((deployment.PRESETS / "deepseek-r1-0528-nvfp4-gb200.yaml").read_text())
    prefill = {**base, "name": "prefill", "role": "prefill", "targets": ["trtllm_serve"]}
    decode = {**base, "role": "decode", "hardware": {"gpu": "gb200", "num_gpus": 16}}
    options = {"prefill": {"deployment": prefill, "servers": 3}, "servers": 2}
    file = tmp_path / "request.yaml"
    file.write_text(yaml.safe_dump({**decode, "targets": {"trtllm_serve": {}, "slurm": options}}))
    scripts = rendered(tmp_path, str(file), {})
    assert "#SBATCH hetjob" in scripts[-1].read_text()
    for script in scripts:
        taken, said = accepted(shapes[4], script)
        assert taken, said


REFUSED = {
    "job-shebang": "#SBATCH --nodes=1\nsrun -n1 true\n",
    "job-unknown-option": "#!/bin/bash\n#SBATCH --ntask-per-nod=4\nsrun -n1 true\n",
    "job-time": "#!/bin/bash\n#SBATCH --time=1h\nsrun -n1 true\n",
}
if HAS_SEGMENTS:
    REFUSED |= {"job-segment": "#!/bin/bash\n#SBATCH --nodes=6 --segment=4\nsrun -n6 true\n"}


@pytest.mark.parametrize("rule", REFUSED)
def test_what_slurm_refuses_check_refuses_first(
    shapes: dict[int, Cluster], tmp_path: Path, rule: str
) -> None:
    script = tmp_path / "job.sbatch"
    script.write_text(REFUSED[rule])
    report = check([script], CheckOptions(), pipeline.deployment_diagnostics)
    assert [(row.rule, row.severity) for row in report.findings] == [(rule, "error")]
    taken, said = accepted(shapes[4], script)
    assert not taken, said
