"""A site profile from a real cluster, and a bundle that this cluster then takes."""

from __future__ import annotations

import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from builder import pipeline, site
from tests.conftest import NEWER_SLURM
from tests.launch.slurm.conftest import Slurm
from tests.slurm.cluster import Cluster, Shape, version, why_not


@pytest.fixture(scope="module")
def profile(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe")
    Slurm(cluster, folder / "state")("probe", "-o", folder / "site.yaml")
    return folder / "site.yaml"


def test_a_profile_holds_what_the_cluster_took(profile: Path, cluster: Cluster) -> None:
    found = site.read(profile)
    assert found["name"] == "test" and found["partition"] == "batch"
    assert found["gpu_request"] == "gpus_per_node"
    assert found["cpus_per_node"] == cluster.shape.cpus
    assert found["mpi"] == "pmix"
    assert found["container"]["runtime"] == "none"
    assert found["toolkit"] == sys.executable
    assert found["state_folder"] == str(profile.parent / "state")


def test_each_line_says_how_it_was_found(profile: Path, cluster: Cluster) -> None:
    lines = profile.read_text().splitlines()
    end = lines.index("# Left out:")
    for above, line in pairwise(lines[:end]):
        if line and not line.startswith(("#", " ")):
            assert above.startswith("# ")
    gpus = cluster.shape.gpus
    assert f"# tried: --gpus-per-node={gpus} is accepted, {gpus + 1} is not" in lines
    assert "# tried: srun --mpi=pmix ran on 2 nodes" in lines


def test_what_does_not_work_is_left_out_and_named(profile: Path) -> None:
    left = profile.read_text().partition("# Left out:\n")[2]
    assert "container.runtime pyxis: tried: srun does not know it" in left
    if version() < (23, 11):
        assert "block_size: tried: this Slurm does not know --segment" in left
    if not shutil.which("apptainer"):
        assert "container.runtime apptainer: tried: not on the nodes" in left


def test_the_network_of_each_node_is_shown_and_what_it_lacks_is_not_read(profile: Path) -> None:
    lines = profile.read_text().partition("# Network of the nodes")[2].splitlines()
    for node in ("node1", "node2"):
        assert f"# - {node}: ok: ucx-tls-cuda: UCX_TLS is empty" in lines
        if not Path("/sys/class/infiniband").is_dir():
            why = f"# - {node}: not read: no InfiniBand or RoCE device: "
            (unread,) = [line for line in lines if line.startswith(why)]
            assert "hca-active, hca-numa" in unread


def test_a_bundle_for_the_profile_is_accepted(profile: Path, slurm: Slurm, tmp_path: Path) -> None:
    settings = [f"targets.slurm.site={profile}", "targets.slurm.server=trtllm_serve"]
    pipeline.render("llama-tiny", tmp_path / "bundle", settings, False)
    scripts = sorted((tmp_path / "bundle" / "slurm").glob("*.sbatch"))
    assert scripts
    for script in scripts:
        done = slurm.cluster.run("sbatch", "--test-only", script, check=False)
        assert done.returncode == 0, done.stderr


def test_the_probe_leaves_nothing_behind(profile: Path, cluster: Cluster) -> None:
    assert list((profile.parent / "state").iterdir()) == []
    assert cluster.run("squeue", "-h").stdout == ""


def test_an_image_that_no_runtime_runs_is_named(slurm: Slurm) -> None:
    done = slurm("probe", "--image", "trtllm_serve=/images/none.sqsh")
    assert "container:\n  runtime: none\n" in done.stdout
    assert "# - container.runtime pyxis: tried: " in done.stdout


def test_a_partition_that_is_not_there_ends_the_probe(slurm: Slurm) -> None:
    done = slurm("probe", "--partition", "gpu9", code=5)
    assert "Slurm: has no partition gpu9; name --partition, --account or --qos" in done.stderr


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.skipif(
    why_not() is None and version() < (23, 11), reason=f"{NEWER_SLURM}: topologies of blocks"
)
def test_the_size_of_a_block_is_found(tmp_path: Path) -> None:
    with Cluster(tmp_path / "c", Shape(nodes=8, block=4)) as blocks:
        Slurm(blocks, tmp_path / "state")("probe", "-o", tmp_path / "site.yaml")
    assert site.read(tmp_path / "site.yaml")["block_size"] == 4
