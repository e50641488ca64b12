"""What would fail is known after a minute's job on a compute node."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from tests.slurm.conftest import MakeService
from tests.slurm.service import Service, server

Rows = dict[str, tuple[bool, str]]


WEIGHTS = "model.safetensors"


def checkpoint(folder: Path) -> Path:
    """One file of 4 bytes of weights, by its header."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + b"0000")
    return folder


def preflight(service: Service) -> tuple[int, Rows]:
    """Its exit code and its rows."""
    bundle = service.bundle
    command = f"python3 -B {bundle}/slurm/supervisor preflight"
    options = ["--parsable", "--wait", "--gres=gpu:2", "--output=preflight.log"]
    wrap = ["--nodes=2", "--ntasks-per-node=1", f"--wrap={command}"]
    done = service.cluster.run("sbatch", *options, *wrap, cwd=bundle.parent, check=False)
    job = done.stdout.split()[0]
    result = json.loads((service.job_folder(job) / "preflight.json").read_text())
    return done.returncode, {row["check"]: (row["ok"], row["what"]) for row in result["checks"]}


def test_a_sound_service_passes(make_service: MakeService, tmp_path: Path) -> None:
    wanted = {
        "gpus": 2,
        "checkpoints": {"CHECKPOINT": str(checkpoint(tmp_path / "checkpoint"))},
        "programs": ["python3"],
        "mounts": [str(tmp_path)],
        "ports": [0],
    }
    code, rows = preflight(make_service([server(srun=["--mpi=pmix"])], preflight=wanted))
    assert [row for row in rows.items() if not row[1][0]] == []
    assert code == 0
    assert set(rows) >= {"versions", "bundle", "checkpoint", "program", "gpus", "ports", "step"}


def test_every_fault_is_found_at_once(make_service: MakeService, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        wanted = {
            "gpus": 4,
            "images": {"server": str(tmp_path / "no.sqsh")},
            "mounts": [str(tmp_path / "none")],
            "checkpoints": {"CHECKPOINT": str(tmp_path / "none")},
            "ports": [other.getsockname()[1]],
        }
        service = make_service([server(srun=["--mpi=none-such"])], preflight=wanted)
        changed = {"files": {"slurm/service.json": {"sha256": "0"}}}
        (service.bundle / "manifest.json").write_text(json.dumps(changed))
        code, rows = preflight(service)
    failed = {name for name, (ok, _) in rows.items() if not ok}
    assert failed == {"bundle", "image", "mount", "checkpoint", "gpus", "ports", "step"}
    assert code == 6
    assert rows["gpus"][1].startswith("2 on node")
    assert "none-such" in rows["step"][1]
