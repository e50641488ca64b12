"""Site profiles: every fault with its field, its line and a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import site
from builder.errors import BadInput
from tests.tables import by_table

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
    required = {key: LEAST[key] for key in ("name", "gpu_request", "container")}
    shared = site.Site.of({**required, "cpus_per_node": 8})
    assert (shared.mpi, shared.exclusive) == ("none", False)


@by_table
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
