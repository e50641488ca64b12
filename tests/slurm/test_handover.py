"""A service outlives its job: a successor takes over while clients are served."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.state import parse_time
from tests.slurm.conftest import MakeService
from tests.slurm.service import Clients, Service, ask, server, wait_until

# The lead is longer than the job: the successor is submitted as soon as the service is up.
AT_ONCE = {"limit_s": 60, "successor_lead_s": 60, "drain_s": 5}
NEVER = {"limit_s": 300, "successor_lead_s": 0}


def test_no_request_fails_while_a_successor_takes_over(make_service: MakeService) -> None:
    service = make_service(time={**NEVER, "drain_s": 5, "settle_s": 2})
    first = service.serving()
    with Clients(service.endpoint) as clients:
        clients.wait_for(500)
        service.lead(first)
        run = service.wait_for_end(first)
        clients.wait_for(500)
    second = service.owner()
    assert clients.failures == []
    assert len(clients.answers) >= 1000
    assert set(clients.answers) == {first, second}
    assert (run["outcome"], run["successor"]) == ("handed_over", second)
    assert service.slurm_state(first) == "COMPLETED"
    assert service.run(str(second))["predecessor"] == first
    assert service.run(str(second))["generation"] == 2


def test_the_successor_comes_before_the_time_limit(make_service: MakeService) -> None:
    service = make_service(time=AT_ONCE)
    first = service.serving()
    wait_until(lambda: service.owner() not in (first, None))
    assert service.wait_for_end(first)["outcome"] == "handed_over"


def test_there_is_one_successor_at_a_time(make_service: MakeService) -> None:
    service = make_service(time=NEVER)
    first = service.serving()
    lock = service.folder / "successor.lock"
    blocker = service.cluster.run(
        "sbatch", "--parsable", "-o/dev/null", "--wrap=sleep 60"
    ).stdout.strip()
    lock.write_text(json.dumps({"owner": "0", "successor": blocker, "since": ""}))
    service.lead(first)
    service.cluster.run("srun", "sleep", "1")
    assert service.run(first)["successors"] == []
    service.cluster.run("scancel", blocker)
    wait_until(lambda: service.owner() not in (first, None))


def test_a_failing_successor_is_tried_again_only_so_often(make_service: MakeService) -> None:
    service = make_service(time={**NEVER, "limit_s": 300})
    first = service.serving()
    (service.bundle / "slurm" / "service.json").write_text(
        json.dumps({**service.specification, "steps": [server("server0", "--fail")]})
    )
    service.lead(first)
    wait_until(lambda: "gave_up" in service.events(first), fault=lambda: service.explain(first))
    run = service.run(first)
    assert len(run["successors"]) == 2
    assert (run["state"], service.owner()) == ("serving", first)
    assert service.ask("/v1/completions", {})["job"] == first


def test_a_stop_file_ends_the_service_and_its_succession(make_service: MakeService) -> None:
    service = make_service([server("server0", "--answer-s=0.5")])
    job = service.serving()
    with Clients(service.endpoint, 1) as clients:
        clients.wait_for(1)
        (service.folder / "stop").touch()
        wait_until(lambda: service.endpoint() is None)
    assert service.wait_for_end(job)["outcome"] == "stopped"
    assert service.slurm_state(job) == "COMPLETED"
    assert service.run(job)["successors"] == []


def test_a_second_job_of_a_service_that_runs_is_refused(make_service: MakeService) -> None:
    service = make_service()
    first = service.serving()
    run = service.wait_for_end(service.submit())
    assert (run["outcome"], service.owner()) == ("not_admitted", first)
    assert f"job {first} serves test" in run["why"]


LIES = {
    "empty": "exit 0",
    "error as an answer": "echo 'slurm_load_jobs error: Socket timed out'; exit 0",
    "no such job": "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
    "the end of every job": 'echo COMPLETED "${3#*=}"; exit 0',
}
# A site's program before Slurm's own: it lies about jobs once it is told to, and not about steps.
WRAPPER = """#!/bin/sh
case "$*" in *--steps*) ;; *) if [ -e {folder}/lie ]; then {lie}; fi ;; esac
exec {squeue} "$@"
"""


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_scheduler_that_lies_about_jobs_lets_no_second_one_serve(
    make_service: MakeService, tmp_path: Path, lie: str
) -> None:
    """Neither one that starts later nor one that was starting beside the first."""
    service = make_service()
    path = service.cluster.environment["PATH"]
    squeue = shutil.which("squeue", path=path)
    (tmp_path / "squeue").write_text(WRAPPER.format(folder=tmp_path, lie=lie, squeue=squeue))
    (tmp_path / "squeue").chmod(0o755)
    behind = f"--export=ALL,PATH={tmp_path}:{path}"
    first = service.serving(behind)
    beside = service.submit(behind, SERVICE_CANARY="1", SERVICE_PREDECESSOR=first)
    service.wait_for(beside, "admitted")
    (tmp_path / "lie").touch()
    later = service.submit(behind)
    with Clients(service.endpoint) as clients:
        run = service.wait_for_end(later)
        (service.job_folder(beside) / "promote").touch()
        assert service.wait_for_end(first)["outcome"] == "handed_over"
        clients.wait_for(100)
    assert (run["outcome"], run["why"]) == (
        "not_admitted",
        f"job {first} serves test; stop or replace it",
    )
    assert clients.failures == []
    restored = (service.events(first) + service.events(beside)).count("endpoint_restored")
    assert restored <= (2 if "COMPLETED" in lie else 0), "each believes it once"
    assert service.owner() == beside


def test_the_endpoint_of_a_job_that_was_killed_is_taken_over(make_service: MakeService) -> None:
    service = make_service()
    first = service.serving()
    service.close()
    service.wait_for_end(first)
    assert service.owner() == first
    second = service.serving()
    assert service.owner() == second
    run = service.run(first)
    assert (run["outcome"], run["why"]) == ("killed", f"found dead by job {second}")


def test_a_canary_waits_for_its_promotion(make_service: MakeService) -> None:
    service = make_service()
    first = service.serving()
    canary = service.submit(SERVICE_CANARY="1", SERVICE_PREDECESSOR=first)
    service.wait_for(canary, "admitted")
    assert service.owner() == first
    assert (service.job_folder(canary) / "endpoint.json").exists()
    (service.job_folder(canary) / "promote").touch()
    assert service.wait_for_end(first)["outcome"] == "handed_over"
    assert service.owner() == canary


def test_no_request_fails_while_a_replacement_is_not_admitted(make_service: MakeService) -> None:
    service = make_service(time=NEVER)
    first = service.serving()
    refuses = {"argv": ["sh", "-c", "echo it does not answer; exit 3"], "timeout_s": 9}
    (service.bundle / "slurm" / "service.json").write_text(
        json.dumps({**service.specification, "smoke": refuses})
    )
    with Clients(service.endpoint) as clients:
        clients.wait_for(500)
        canary = service.submit(SERVICE_CANARY="1", SERVICE_PREDECESSOR=first)
        run = service.wait_for_end(canary)
        clients.wait_for(500)
    assert clients.failures == []
    assert set(clients.answers) == {first}
    assert (run["outcome"], run["why"]) == ("not_admitted", "smoke: it does not answer")
    assert service.owner() == first


def test_a_service_that_is_not_admitted_names_the_check(make_service: MakeService) -> None:
    """However much the smoke suite prints after it."""
    words = "echo error: check N10 over grpc: it still runs; seq 100; exit 6"
    service = make_service(smoke={"argv": ["sh", "-c", words], "timeout_s": 9})
    run = service.wait_for_end(service.submit())
    assert run["why"] == "smoke: error: check N10 over grpc: it still runs"


def test_a_job_serves_again_if_its_successor_dies_at_once(make_service: MakeService) -> None:
    service = make_service(time={**NEVER, "drain_s": 2, "settle_s": 2})
    first = service.serving()
    service.lead(first)
    service.wait_for(first, "draining")
    second = service.owner()
    assert second not in (first, None)
    service.cluster.run("scancel", str(second))
    wait_until(lambda: service.owner() == first)
    assert service.ask("/v1/completions", {})["job"] == first


def test_a_job_that_slurm_requeues_serves_again(make_service: MakeService) -> None:
    node = ["--nodelist=node3", "--exclusive", "--gres=gpu:4"]
    service = make_service()
    job = service.serving("--partition=again", "--requeue", *node)
    urgent = ["--partition=urgent", *node, "--output=/dev/null", "--wrap=true"]
    other = service.cluster.run("sbatch", "--parsable", *urgent).stdout.strip()
    wait_until(
        lambda: service.slurm_state(other) == "COMPLETED", fault=lambda: service.explain(job)
    )
    wait_until(lambda: service.slurm_state(job) == "PENDING", fault=lambda: service.explain(job))
    # A node refuses the credential of a job that was made in the second of that job's last end.
    second = int(time.time())
    wait_until(lambda: int(time.time()) > second, 5)
    earlier = service.job_folder(job) / "run-0.json"

    def hurried() -> bool:
        """Slurm lets a job that it requeues wait for two minutes; an operator need not."""
        update = ["scontrol", "update", f"jobid={job}", "starttime=now"]
        if service.slurm_state(job) == "PENDING":  # the two minutes may be set a little later
            service.cluster.run(*update, check=False)
        return earlier.exists()

    # Where Slurm is in no hurry, its two minutes are still enough.
    wait_until(hurried, 180, lambda: f"{service.slurm_state(job)} {service.explain(job)}")
    service.wait_for(job, "serving")
    assert json.loads(earlier.read_text())["outcome"] == "preempted"
    assert service.run(job)["restarts"] == 1


def test_a_service_that_fails_is_started_anew_only_so_often(make_service: MakeService) -> None:
    limits = {"attempts": 2, "crash_window_s": 60, "restart": True}
    service = make_service(limits=limits)
    first = service.serving()
    service_crashes(service)
    run = service.wait_for_end(first)
    second = run["successor"]
    assert (run["outcome"], run["exit_code"]) == ("server_exited_0", 71)
    service.wait_for(second, "serving")
    service_crashes(service)
    run = service.wait_for_end(second)
    assert (run["outcome"], run["successor"]) == ("server_exited_0", None)
    assert "gave_up" in service.events(second)


def service_crashes(service: Service) -> None:
    os.kill(service.ask("/status")["pid"], signal.SIGTERM)


def drained_s(service: Service, job: str) -> float:
    """How long the job's drain lasted."""
    rows = map(json.loads, (service.job_folder(job) / "events.jsonl").read_text().splitlines())
    return next(float(row["seconds"]) for row in rows if row["event"] == "drained")


def test_a_drain_without_clients_lasts_until_those_with_the_old_endpoint_have_come(
    make_service: MakeService,
) -> None:
    service = make_service(time={**NEVER, "drain_s": 60, "settle_s": 2})
    job = service.serving()
    (service.folder / "stop").touch()
    assert service.wait_for_end(job)["outcome"] == "stopped"
    assert 2 <= drained_s(service, job) < 30


def test_a_drain_waits_for_a_client_only_so_long(make_service: MakeService) -> None:
    service = make_service(time={**NEVER, "drain_s": 4, "settle_s": 0.5})
    job = service.serving()
    endpoint = service.endpoint() or {}
    with socket.create_connection((endpoint["host"], endpoint["ports"]["http"])):
        (service.folder / "stop").touch()
        assert service.wait_for_end(job)["outcome"] == "stopped"
    assert 4 <= drained_s(service, job) < 30


def test_clients_lose_the_endpoint_before_the_servers_end(make_service: MakeService) -> None:
    """A server that is not the cause still answers what it has when the job ends."""
    servers = [server(), server("slow", critical=False, stop_timeout_s=60)]
    service = make_service(servers, time=NEVER)
    job = service.serving()
    [slow] = [step for step in service.run(job)["steps"] if step["name"] == "slow"]
    where = (service.endpoint() or {})["host"], slow["ports"]["http"]
    ask(*where, "/fault", {"mute": True})
    later = http.client.HTTPConnection(*where)
    with ThreadPoolExecutor(1) as pool, closing(later):
        later.connect()  # there is no other way in once the server is told to end
        answer = pool.submit(ask, *where, "/v1/completions", {})
        wait_until(lambda: ask(*where, "/status")["generating"] == 1)
        os.kill(service.ask("/status")["pid"], signal.SIGKILL)
        wait_until(lambda: service.endpoint() is None, fault=lambda: service.explain(job))
        later.request("POST", "/fault", json.dumps({"mute": False}))
        assert answer.result()["job"] == job
    assert service.wait_for_end(job)["outcome"] == "server_failed"


def test_of_two_jobs_that_start_at_once_one_serves(make_service: MakeService) -> None:
    """Neither found an endpoint when it began; the second finds one when it is to publish."""
    service = make_service([server("server0", "--start-s=3")])
    jobs = [service.submit(), service.submit()]
    wait_until(lambda: service.owner() in jobs)
    first = str(service.owner())
    [second] = [job for job in jobs if job != first]
    ended = service.wait_for_end(second)
    assert (ended["outcome"], service.owner()) == ("not_admitted", first)
    assert ended["why"] == f"job {first} serves test; stop or replace it"
    assert service.run(first)["state"] == "serving"


def test_tasks_of_an_array_keep_to_their_own_steps(make_service: MakeService) -> None:
    """By the number of the last one, Slurm's commands show the others as well."""
    services = [make_service(time=NEVER), make_service(time=NEVER)]
    script = services[0].bundle.parent / "array.sbatch"
    tasks = " ".join(str(service.bundle) for service in services)
    lines = ["#!/bin/bash", "#SBATCH --gres=gpu:2", "#SBATCH --no-requeue", "#SBATCH --array=0-1"]
    lines += [f"bundles=({tasks})", "export BUNDLE=${bundles[$SLURM_ARRAY_TASK_ID]}"]
    serve = '"$BUNDLE/slurm/supervisor" serve'
    script.write_text("\n".join([*lines, f"exec {sys.executable} -B {serve}\n"]))
    output = f"--output={script.parent}/job-%j.log"
    array = services[0].cluster.run("sbatch", "--parsable", output, script).stdout.strip()
    wait_until(lambda: all(service.owner() for service in services), 30)
    last, other = sorted(services, key=lambda service: service.owner() != array)
    job, steps = str(last.owner()), [last.run(str(last.owner()))["steps"][0]["step_id"]]
    steps.append(other.run(str(other.owner()))["steps"][0]["step_id"])
    assert (job, sorted(steps)) == (array, [f"{array}_0.0", f"{array}_1.0"])
    (last.folder / "stop").touch()
    wait_until(lambda: last.run(job)["state"] == "ended", 30, lambda: last.explain(job))
    assert last.run(job)["outcome"] == "stopped"
    assert other.ask("/v1/completions", {})["job"] == other.owner()
    other.cluster.run("scancel", "--quiet", array)


def test_a_job_knows_its_end_in_any_zone(make_service: MakeService) -> None:
    service = make_service(time={**NEVER, "limit_s": 3000})
    job = service.serving("--time=10", "--export=ALL,TZ=Asia/Tokyo")
    run = service.run(job)
    left_s = parse_time(run["until"]) - parse_time(run["started"])
    assert 500 < left_s <= 600
