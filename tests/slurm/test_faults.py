"""However a service fails, its job ends in time, releases its GPUs and says what happened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.faults import AT_ONCE, FAULTS, Ended, Fault, play, verdict

Plays = dict[str, Future[Ended]]


@pytest.fixture(scope="module")
def plays(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plays]:
    """All rows at work, several at the same time, as most of their time is waiting."""
    able = [fault for fault in FAULTS if fault.needs != "disk" or os.getuid() == 0]
    # The longest first.
    able.sort(key=lambda fault: -fault.within_s)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        folder = tmp_path_factory.mktemp
        yield {f.name: pool.submit(play, f, cluster, folder("fault")) for f in able}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_service_ends_as_the_table_says(plays: Plays, cluster: Cluster, fault: Fault) -> None:
    if fault.name not in plays:
        pytest.skip("only root may mount a small disk")
    ended = plays[fault.name].result()
    assert verdict(fault, ended) == [], ended.said
