"""Services of several steps: behind a router, on nodes of their own, in heterogeneous jobs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.conftest import MakeCluster, MakeService
from tests.slurm.faults import FOUR_TASKS, signal_rank
from tests.slurm.service import Service, ask, hasty_ranks, ranks, server, wait_until

ROUTER = """\
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 60s
frontend http
  bind :{port:router:http}
  default_backend servers
backend servers
  server server0 {host:server0}:{port:server0:http}
  server server1 {host:server1}:{port:server1:http}
"""


def router(**changes: object) -> dict[str, object]:
    start_after = ["server0", "server1"]
    argv = ["haproxy", "-W", "-db", "-f", "{job}/router.cfg"]
    row = {
        "role": "router",
        "srun": ["--gres=none"],
        "argv": argv,
        "files": {"router.cfg": "slurm/router.cfg"},
        "start_after": start_after,
    }
    return server("router", **{**row, **changes})


def stop_server(service: Service, job: str, index: int) -> None:
    """It hangs, and does not die."""
    endpoint, step = service.endpoint(), service.run(job)["steps"][index]
    assert endpoint  # its host is that of all nodes here
    pid = ask(endpoint["host"], step["ports"]["http"], "/status")["pid"]
    os.kill(pid, signal.SIGSTOP)


def gpu(index: int) -> list[str]:
    """An instance's share of its node; Slurm itself would show it all GPUs of the job."""
    return ["env", f"CUDA_VISIBLE_DEVICES={index}"]


def test_two_instances_share_a_node_behind_a_router(make_service: MakeService) -> None:
    steps = [server(launcher=gpu(1)), server("server1", launcher=gpu(0)), router()]
    service = make_service(steps, front="router", files={"router.cfg": ROUTER})
    job = service.serving()
    seen = {service.ask("/status")["gpus"] for _ in range(4)}
    assert seen == {"0", "1"}
    started, ready = ["step_started"], ["step_ready"]
    assert service.events(job)[:7] == [*started * 2, *ready * 2, *started, *ready, "admitting"]


def test_an_instance_that_dies_ends_the_service_of_all(make_service: MakeService) -> None:
    steps = [server(), server("server1"), router()]
    service = make_service(steps, front="router", files={"router.cfg": ROUTER})
    job = service.serving()
    service.cluster.run("scancel", "--signal=KILL", service.run(job)["steps"][0]["step_id"])
    run = service.wait_for_end(job)
    assert run["outcome"] in ("server_failed", "health_lost")
    assert run["why"].startswith("server0")


def test_a_service_that_lost_a_rank_ends_though_its_server_answers(
    make_service: MakeService,
) -> None:
    steps = [hasty_ranks(4, environment={"ORPHANS": "1"})]
    service = make_service(steps, directives=FOUR_TASKS)
    job = service.serving()
    signal_rank(signal.SIGKILL)(service, job)
    wait_until(lambda: service.endpoint() is None)
    assert service.run(job)["outcome"] == "rank_died"


def test_an_instance_that_is_not_critical_may_hang(make_service: MakeService) -> None:
    service = make_service([server(), server("server1", critical=False)])
    job = service.serving()
    stop_server(service, job, 1)
    wait_until(lambda: "step_ended" in service.events(job), fault=lambda: service.explain(job))
    assert "step_lost" in service.events(job)
    assert service.ask("/v1/completions", {})["job"] == job
    assert [step["state"] for step in service.run(job)["steps"]] == ["ready", "ended"]


def test_a_job_with_gpus_per_node_runs_steps_without_any(make_service: MakeService) -> None:
    steps = [server(), router(start_after=["server0"])]
    one = ROUTER.replace("  server server1 {host:server1}:{port:server1:http}\n", "")
    service = make_service(steps, front="router", files={"router.cfg": one})
    service.serving("--gres=none", "--gpus-per-node=2", "--ntasks-per-node=1")
    assert len(set(service.ask("/status")["gpus"].split(","))) == 2


def test_a_heterogeneous_job_has_steps_in_each_of_its_groups(make_service: MakeService) -> None:
    steps = [server(het_group=0), server("server1", het_group=1, nodes=1, first_node=1)]
    directives = ("--nodes=1", "hetjob", "--nodes=2", "--gres=gpu:1")
    service = make_service(steps, directives=directives)
    job = service.serving()
    nodes = [step["nodes"] for step in service.run(job)["steps"]]
    assert nodes[0] != nodes[1]
    (service.folder / "stop").touch()
    assert service.wait_for_end(job)["outcome"] == "stopped"


@pytest.fixture(scope="module")
def networked(make_cluster: MakeCluster) -> Cluster:
    """Each node has its own name and ports."""
    return make_cluster(nodes=3, own_network=True)


def test_nodes_are_reached_by_name_and_each_has_its_own_ports(
    networked: Cluster, tmp_path: Path
) -> None:
    port = {"http": 8000}
    steps = [
        server(ports=port),
        server("server1", ports=port, first_node=1),
        router(ports=port, first_node=2),
    ]
    directives = ("--nodes=3", "--ntasks-per-node=1")
    service = Service(
        *(networked, tmp_path, steps),
        directives=directives,
        front="router",
        files={"router.cfg": ROUTER},
    )
    job = service.serving()
    endpoint = service.endpoint()
    assert endpoint
    assert endpoint["urls"] == {"http": "http://node3:8000"}
    (service.folder / "stop").touch()
    run = service.wait_for_end(job)
    assert run["outcome"] == "stopped"
    assert (service.job_folder(job) / "idle.log").exists()  # asked on the router's node


def test_a_server_of_several_nodes_is_reached_at_its_first(
    networked: Cluster, tmp_path: Path
) -> None:
    steps = [ranks(4, nodes=2, ports={"http": 8000}, srun=["--mpi=pmix"])]
    directives = ("--nodes=2", "--ntasks-per-node=2")
    service = Service(networked, tmp_path, steps, directives=directives)
    job = service.serving()
    endpoint = service.endpoint()
    assert endpoint
    assert endpoint["host"] == service.run(job)["nodes"][0]
    (service.folder / "stop").touch()
    assert service.wait_for_end(job)["outcome"] == "stopped"
