"""Every node of a disaggregated service is looked at before its servers load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.facts import network_checks
from tests.slurm.conftest import MakeService
from tests.slurm.service import Json, Service, server
from tests.supervisor.node import Node

NOT_ONE_DOMAIN = "nvlink-domain"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


def service_on(make_service: MakeService, node: Node, **environment: str | None) -> Service:
    """Two servers on nodes of their own; nodes read the stand-ins."""
    network = {"root": str(node.root), "environment": environment}
    checks = [row for row in network_checks.load() if row["id"] != "locked-memory"]
    steps = [server(), server("server1", first_node=1)]
    return make_service(steps, directives=("--nodes=2",), network={**network, "checks": checks})


def written(service: Service, job: str) -> Json:
    found: Json = json.loads((service.job_folder(job) / "network.json").read_text())
    return found


def failed(service: Service, job: str) -> set[tuple[str, str]]:
    rows = written(service, job)["checks"]
    return {(row["check"], row["severity"]) for row in rows if row["state"] == "failed"}


def test_sound_nodes_are_served_and_their_facts_are_kept(
    make_service: MakeService, node: Node
) -> None:
    service = service_on(make_service, node)
    job = service.serving(PATH=node.path)
    found = written(service, job)
    assert [row["facts"]["near_hcas"] for row in found["nodes"]] == ["GPU0:mlx5_0,GPU1:mlx5_1"] * 2
    assert len({row["node"] for row in found["nodes"]}) == 2
    assert failed(service, job) == set()
    assert service.events(job).index("network") < service.events(job).index("step_started")


def test_an_error_ends_the_job_before_a_server_starts(
    make_service: MakeService, node: Node
) -> None:
    """The variables are those of the servers."""
    node.gpus(state="In Progress", uuid="N/A")
    service = service_on(make_service, node, UCX_TLS="rc,sm")
    run = service.wait_for_end(service.submit(PATH=node.path, UCX_TLS="tcp"))
    assert run["outcome"] == "not_admitted" and run["exit_code"] == 77
    assert "fabric_state is In Progress, and needs Completed on every GPU; otherwise" in run["why"]
    rows = [row["what"] for row in written(service, run["job_id"])["checks"]]
    assert any("UCX_TLS is rc,sm, and needs cuda" in what for what in rows)
    assert "step_started" not in service.events(run["job_id"])


def test_a_warning_is_recorded_and_serves(make_service: MakeService, node: Node) -> None:
    """Each node has a domain of its own: its tool prints what no other does. None shares memory."""
    node.script(
        "nvidia-smi", f'sed "s/9c6f5af3/$(printf %08d ${{SLURM_NODEID}})/" {node.tools}/query'
    )
    node.tool("nvidia-imex-ctl", "INITIALIZING")
    service = service_on(make_service, node, UCX_TLS=None)
    job = service.serving(PATH=node.path, UCX_TLS="tcp")
    assert failed(service, job) == {(NOT_ONE_DOMAIN, "warning"), ("imex-ready", "warning")}
    rows = written(service, job)["checks"]
    unread = {row["check"] for row in rows if row["state"] == "not read"}
    assert unread == {"near-hca"}  # the tool shows no topology
