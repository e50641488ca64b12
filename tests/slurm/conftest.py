"""A real Slurm cluster: one for all tests, and others of any shape."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.slurm import cluster as clusters
from tests.slurm.cluster import Cluster, Shape
from tests.slurm.service import Service

MakeCluster = Callable[..., Cluster]
MakeService = Callable[..., Service]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses these fixtures is marked, and skipped where Slurm is missing."""
    why = clusters.why_not()
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if names & {"cluster", "make_cluster"} and "slurm" in item.path.parts:
            item.add_marker(pytest.mark.slurm)
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def make_cluster() -> Iterator[MakeCluster]:
    """A running cluster of that shape, until the tests end."""
    with ExitStack() as stack:

        def make(**shape: Any) -> Cluster:
            if shape.get("own_network") and os.getuid() != 0:
                pytest.skip("only root may give each node a network of its own")
            # Not below pytest's folder: a socket's path has little more than 100 letters.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-"))
            return stack.enter_context(Cluster(Path(folder), Shape(**shape)))

        yield make


@pytest.fixture(scope="session")
def cluster(make_cluster: MakeCluster) -> Cluster:
    """4 nodes of 4 GPUs each."""
    return make_cluster()


@pytest.fixture
def make_service(cluster: Cluster, tmp_path: Path) -> Iterator[MakeService]:
    """A service on the shared cluster; its jobs end with the test."""
    made: list[Service] = []

    def make(*arguments: Any, **changes: Any) -> Service:
        made.append(Service(cluster, tmp_path / str(len(made)), *arguments, **changes))
        return made[-1]

    yield make
    for service in made:
        service.close()
