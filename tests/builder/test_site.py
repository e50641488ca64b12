"""Site profiles: every fault with its field, its line and a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import site
from builder.errors import BadInput

LEAST: dict[str, Any] = {
    "name": "here",
    "gpu_request": "gres",
    "container": {"runtime": "none"},
    "mpi": "pmix",
    "exclusive": True,
}


def faults(tmp_path: Path, **changes: Any) -> list[str]:
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump({**LEAST, **changes}, sort_keys=False))
    with pytest.raises(BadInput) as caught:
        site.read(path)
    return [str(row).removeprefix(f"{path}:") for row in caught.value.diagnostics]


def test_the_least_profile_asks_for_nothing_else() -> None:
    profile = site.Site.of(LEAST).data(exclude_none=True)
    others = {key: value for key, value in profile.items() if key not in LEAST and value}
    assert others == {"python": "python3"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"partiton": "a"}, "7: partiton: unknown key; did you mean partition?"),
        (
            {"gpu_request": "gpus"},
            "2: gpu_request: gpus is not allowed; did you mean gpus_per_node?",
        ),
        ({"mpi": "openmpi"}, "5: mpi: openmpi is not allowed; it must match"),
        ({"partition": "a b"}, "7: partition: a b is not allowed"),
        ({"account": "x\n#SBATCH --uid=0"}, "account: x"),
        ({"state_folder": "runs"}, "state_folder: runs is not allowed; it must match ^(/"),
        ({"sbatch": ["--nodes=2"]}, "sbatch has --nodes=2, which the scripts set; remove it"),
        ({"srun": ["--mpi=none"]}, "srun has --mpi=none, which the scripts set; remove it"),
        ({"sbatch": ["-N2"]}, "sbatch.0: -N2 is not allowed"),
        ({"gpu_request": "none", "exclusive": False}, "set exclusive: true"),
        ({"gpu_request": "none", "gpu_type": "h100"}, "gpu_type is not used"),
        ({"container": {"runtime": "none", "mounts": ["/a"]}}, "runtime none uses no mounts"),
        (
            {"container": {"runtime": "apptainer", "remap_root": True}},
            "remap_root is of pyxis only",
        ),
        ({"container": {"runtime": "pyxis", "mounts": ["a:b"]}}, "mounts.0: a:b is not allowed"),
        ({"environment": {"A": "x\ny"}}, "environment.A: x"),
        *(
            ({"environment": {name: "/x"}}, f"environment: {name} decides which programs and")
            for name in ("PATH", "LD_PRELOAD", "BASH_ENV")
        ),
        ({"exclusive": False}, "name cpus_per_node"),
    ],
)
def test_faults_name_the_field_and_the_remedy(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    found = faults(tmp_path, **changes)
    assert len(found) == 1
    assert expected in found[0]


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    assert len(faults(tmp_path, mpi="x", qos="a b", exclusive="yes")) == 3


def test_a_profile_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read: no such file"):
        site.read(tmp_path / "none.yaml")
