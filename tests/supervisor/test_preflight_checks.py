"""What a short job finds out on a node before the long one: each check, as it passes and fails."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.facts import network_checks
from supervisor.preflight import bundle_error, preflight_checks
from supervisor.slurm import Cluster
from tests.supervisor.node import Node
from tests.supervisor.one_node import NODE, Job

Row = tuple[bool | None, str]
Check = Callable[..., dict[str, list[Row]]]


@pytest.fixture
def check(job: Job) -> Check:
    """All rows by the name of their check, where the spec wants this of a node."""
    fill(job, {})

    def found(**wanted: Any) -> dict[str, list[Row]]:
        job.document["preflight"] = wanted
        rows: dict[str, list[Row]] = {}
        for name, passed, what in preflight_checks(job.write(), Cluster()):
            rows.setdefault(name, []).append((passed, what))
        return rows

    return found


def fill(job: Job, files: dict[str, str]) -> None:
    """The bundle's manifest with the digests of these files, and the files."""
    rows = {}
    for name, text in files.items():
        (job.bundle / name).write_text(text)
        rows[name] = {"sha256": hashlib.sha256(text.encode()).hexdigest()}
    (job.bundle / "manifest.json").write_text(json.dumps({"files": rows}))


def test_without_wishes_versions_bundle_gpus_ports_and_steps_are_checked(check: Check) -> None:
    rows = check()
    assert list(rows) == ["versions", "bundle", "gpus", "ports", "step"]
    assert rows["bundle"] == [(True, "its files are those of the manifest")]
    assert rows["gpus"] == [(True, f"0 on {NODE}, 0 wanted")]
    assert rows["ports"] == [(True, "free: []")]


def test_slurm_and_python_of_the_node_are_named(check: Check, job: Job) -> None:
    job.command("srun", 'echo "slurm 24.05.2"')
    [(passed, what)] = check()["versions"]
    assert passed
    assert what.startswith("slurm 24.05.2, Python 3.")


def test_a_node_without_slurms_programs_fails(check: Check, job: Job) -> None:
    job.command("srun", "exit 1")
    [(passed, what)] = check()["versions"]
    assert not passed
    assert what.startswith("no srun, Python 3.")


def test_an_image_is_looked_for_if_it_is_a_file(check: Check, tmp_path: Path) -> None:
    there, missing = tmp_path / "there.sqsh", tmp_path / "missing.sqsh"
    there.touch()
    rows = check(images={"a": str(there), "b": str(missing), "c": "./c.sqsh", "d": "nvcr.io#d:1"})
    assert rows["image"] == [(True, str(there)), (False, str(missing)), (False, "./c.sqsh")]


def test_programs_come_from_the_images_where_there_are_any(check: Check) -> None:
    assert check(images={"a": "nvcr.io#a:1"}, programs=["no-such-program"]).get("program") is None
    rows = check(programs=["sh", "no-such-program"])["program"]
    assert [passed for passed, _ in rows] == [True, False]
    assert rows[1] == (False, "no-such-program: not on the path")


def test_each_mounted_folder_is_there(check: Check, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    assert check(mounts=[str(tmp_path), gone])["mount"] == [(True, str(tmp_path)), (False, gone)]


@pytest.mark.parametrize(
    ("visible", "wanted", "passed", "count"),
    [("0,1,2,3", 4, True, 4), ("0,1,2", 4, False, 3), ("", 1, False, 0), ("0,1", 1, True, 2)],
)
def test_the_gpus_that_the_job_sees_are_counted(
    check: Check,
    monkeypatch: pytest.MonkeyPatch,
    visible: str,
    wanted: int,
    passed: bool,
    count: int,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert check(gpus=wanted)["gpus"] == [(passed, f"{count} on {NODE}, {wanted} wanted")]


def test_ports_in_use_are_named(check: Check, job: Job) -> None:
    assert check(ports=[job.port])["ports"] == [(True, f"free: [{job.port}]")]
    with socket.create_server(("", job.port)):
        assert check(ports=[job.port])["ports"] == [(False, f"in use: {job.port}")]


@pytest.mark.parametrize(("missing", "more"), [(5, ""), (7, "; and 2 more")])
def test_the_first_faults_of_a_checkpoint_are_shown(
    check: Check, tmp_path: Path, missing: int, more: str
) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    names = {f"w{number}": f"part{number}.safetensors" for number in range(missing)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    [(passed, what)] = check(checkpoints={"model": str(folder)})["checkpoint"]
    shown = "; ".join(f"{folder / f'part{number}.safetensors'} is missing" for number in range(5))
    assert (passed, what) == (False, f"{shown}{more}")


def test_a_checkpoint_without_faults_is_complete(check: Check, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    rows = check(checkpoints={"model": str(tmp_path)})["checkpoint"]
    assert rows == [(True, f"{tmp_path} is complete")]


def test_each_kind_of_step_is_tried_once_on_all_nodes(check: Check, job: Job) -> None:
    options = ["--mpi=pmix", "--container-mounts={bundle},{job}"]
    job.document["steps"] = [job.server(srun=options), job.server("server1", srun=options)]
    job.document["steps"].append(job.server("server2", srun=["--mpi=pmi9"]))
    refuse = 'case "$*" in *pmi9*) echo "info" >&2; echo "srun: error: pmi9" >&2; exit 1;; esac'
    job.command("srun", f'echo "$*" >>"$FOLDER/srun"; {refuse}')
    refused, accepted = sorted(check()["step"])
    assert refused == (False, "--mpi=pmi9: srun: error: pmi9")
    assert accepted == (True, f"{' '.join(options)}: it runs")
    tried = [row for row in job.given("srun") if "--job-name=try" in row]
    assert len(tried) == 2
    [pmix] = [row for row in tried if "pmix" in row]
    assert "--ntasks=1 --ntasks-per-node=1" in pmix
    assert pmix.endswith(f"--container-mounts={job.bundle},{job.path} true")


def test_files_that_are_missing_or_changed_are_named(job: Job) -> None:
    fill(job, {"a": "1", "b": "2", "c": "3"})
    assert bundle_error(job.write()) is None
    (job.bundle / "a").write_text("other")
    (job.bundle / "c").unlink()
    assert bundle_error(job.write()) == "missing or changed: a, c"


def test_a_manifest_is_the_one_that_was_submitted(job: Job) -> None:
    fill(job, {})
    manifest = job.bundle / "manifest.json"
    digest = hashlib.sha256(manifest.read_bytes()).hexdigest()
    assert bundle_error(job.write(), digest) is None
    other = bundle_error(job.write(), "0" * 64)
    assert other == f"{manifest} is of another bundle than was submitted"
    manifest.unlink()
    assert bundle_error(job.write()) == f"{manifest} is missing or damaged"


def test_what_a_node_lacks_for_transfers_is_no_pass(
    job: Job, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path / "node")
    monkeypatch.setenv("PATH", node.path)
    node.tool("nvidia-imex-ctl", "INITIALIZING")
    (node.tools / "nvidia-smi").unlink()
    wanted = {"UCX_TLS": "rc", "UCX_NET_DEVICES": None}
    checks = [row for row in network_checks.load() if row["id"] != "locked-memory"]
    job.document["network"] = {"root": str(node.root), "environment": wanted, "checks": checks}
    found = check()
    assert found["network hca-active"] == [(True, "hcas_active is mlx5_0,mlx5_1")]
    ((passed, what),) = found["network ucx-tls-cuda"]
    assert passed is False and what.startswith("error: UCX_TLS is rc, and needs cuda")
    ((passed, what),) = found["network imex-ready"]
    assert passed is None and what.startswith("not read: cluster_uuid: nvidia-smi: ")
    assert "network nvlink-domain" not in found  # one node says nothing of the others
