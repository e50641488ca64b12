"""Whatever happens to the files of a service that answers, it goes on, and the files come back."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from supervisor import state
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import MakeService
from tests.slurm.faults import small_disk
from tests.slurm.service import Clients, Service, wait_until

HEAL_S = 20.0
NEVER = {"limit_s": 300, "successor_lead_s": 0}

Harm = Callable[[Path, str], object]  # of the folder of a service, and its job


def made(name: str, make: Callable[[Path], object]) -> Harm:
    """Whatever that makes, in the place of a file, which its service may write at that moment."""

    def do(folder: Path, job: str) -> None:
        path = folder / name.format(job=job)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.harm")
        make(fresh)
        while fresh.is_symlink() or fresh.exists():
            path.unlink(missing_ok=True)
            with suppress(NotADirectoryError):  # a folder takes no file's place
                fresh.rename(path)

    return do


def put(name: str, content: str) -> Harm:
    return made(name, lambda path: path.write_text(content))


def folder_at(name: str) -> Harm:
    return made(name, lambda path: (path / "within").mkdir(parents=True))


def removed(name: str) -> Harm:
    def do(folder: Path, job: str) -> None:
        path = folder / name.format(job=job)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return do


def endpoint_with(**values: Any) -> Harm:
    def do(folder: Path, _: str) -> None:
        row = json.loads((folder / "endpoint.json").read_text())
        (folder / "endpoint.json").write_text(json.dumps({**row, **values}))

    return do


def linked(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 36)


def run_with(**values: Any) -> Harm:
    def do(folder: Path, job: str) -> None:
        path = folder / "jobs" / job / "run.json"
        row = json.loads(path.read_text())
        path.write_text(json.dumps({**row, **values}))

    return do


def cut(name: str) -> Harm:
    def do(folder: Path, job: str) -> None:
        path = folder / name.format(job=job)
        os.truncate(path, path.stat().st_size // 2)

    return do


def odd_jobs(folder: Path, _: str) -> None:
    for name in ("1", "x", "9" * 30, "²"):
        (folder / "jobs" / name).mkdir(parents=True, exist_ok=True)
        (folder / "jobs" / name / "run.json").write_text("{}")


HARMS: dict[str, Harm] = {
    "endpoint removed": removed("endpoint.json"),
    "endpoint empty": put("endpoint.json", ""),
    "endpoint without keys": put("endpoint.json", "{}"),
    "endpoint a list": put("endpoint.json", "[]"),
    "endpoint half": put("endpoint.json", '{"job_id": "'),
    "endpoint of zeros": put("endpoint.json", "\0" * 4096),
    "endpoint a folder": folder_at("endpoint.json"),
    "endpoint with a number for its job": endpoint_with(job_id=1),
    "endpoint without a job": endpoint_with(job_id=None),
    "endpoint with text for its urls": endpoint_with(urls="http"),
    "endpoint a pipe": made("endpoint.json", os.mkfifo),
    "endpoint a link to a device": made("endpoint.json", linked("/dev/zero")),
    "endpoint a link to itself": made("endpoint.json", linked("endpoint.json")),
    "endpoint of 64 GB": made("endpoint.json", huge),
    "endpoint deep": put("endpoint.json", "[" * 100_000),
    "endpoint with a number of 5,000 digits": put(
        "endpoint.json", f'{{"job_id": "1", "lease_s": {"9" * 5000}}}'
    ),
    "endpoint with escape sequences for its job": endpoint_with(job_id="\x1b[2J\u202e7\nok"),
    "endpoint of a clock that is behind": endpoint_with(until="1970-01-01T00:00:00Z"),
    "endpoint with a time of no zone": endpoint_with(until="2030-01-01T00:00:00"),
    "endpoint cut": cut("endpoint.json"),
    "run a pipe": made("jobs/{job}/run.json", os.mkfifo),
    "run a link to a device": made("jobs/{job}/run.json", linked("/dev/zero")),
    "run cut": cut("jobs/{job}/run.json"),
    "run of a clock that is behind": run_with(heartbeat="1970-01-01T00:00:00Z"),
    "run with a time beyond all": run_with(heartbeat="9999-12-31T23:59:59.999Z", until=10**400),
    "events a pipe": made("jobs/{job}/events.jsonl", os.mkfifo),
    "events a link to a device": made("jobs/{job}/events.jsonl", linked("/dev/full")),
    "the log of srun a pipe": made("jobs/{job}/server0.srun.log", os.mkfifo),
    "the log of srun without end": made("jobs/{job}/server0.srun.log", linked("/dev/zero")),
    "lock a pipe": made("successor.lock", os.mkfifo),
    "lock a link to itself": made("successor.lock", linked("successor.lock")),
    "run removed": removed("jobs/{job}/run.json"),
    "run without keys": put("jobs/{job}/run.json", "{}"),
    "run a folder": folder_at("jobs/{job}/run.json"),
    "run with a list for its state": put("jobs/{job}/run.json", '{"state": []}'),
    "events a folder": folder_at("jobs/{job}/events.jsonl"),
    "the job's folder removed": removed("jobs/{job}"),
    "all jobs removed": removed("jobs"),
    "the service's folder removed": removed("."),
    "jobs of odd names": odd_jobs,
    "lock empty": put("successor.lock", ""),
    "lock a folder": folder_at("successor.lock"),
}


@pytest.fixture(scope="module")
def running(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, str]]:
    """A service and its job, which serves through all that is done to its files."""
    service = Service(cluster, tmp_path_factory.mktemp("service"), time=NEVER)
    yield service, service.serving()
    service.close()


def is_whole(service: Service, job: str) -> bool:
    """Whether clients and operators find the job by its files."""
    folder = state.ServiceFolder(service.folder.parent, service.folder.name)
    endpoint, run = folder.live_endpoint(), folder.job(job).run
    owner = endpoint["job_id"] if endpoint else None
    return owner == job and run is not None and run["state"] == "serving"


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_service_goes_on_and_its_files_come_back(
    running: tuple[Service, str], harm: Harm
) -> None:
    service, job = running
    before = service.endpoint() or {}
    harm(service.folder, job)
    wait_until(lambda: is_whole(service, job), HEAL_S, lambda: service.explain(job))
    assert service.ask("/v1/completions", {})["job"] == job
    assert (service.endpoint() or {})["urls"] == before["urls"]


def test_it_hands_over_after_all_that(running: tuple[Service, str]) -> None:
    """With a lock of nothing in its way, and with one that its successor could not remove."""
    service, first = running
    (service.folder / "successor.lock").touch()
    second = handed_over(service, first)
    row = {"owner": first, "successor": second}
    (service.folder / "successor.lock").write_text(json.dumps(row))
    handed_over(service, second)


def handed_over(service: Service, job: str) -> str:
    """The job that has taken over."""
    service.lead(job)
    wait_until(lambda: service.owner() not in (job, None), fault=lambda: service.explain(job))
    assert service.wait_for_end(job)["outcome"] == "handed_over"
    return str(service.owner())


@pytest.fixture
def on_small_disk(cluster: Cluster, tmp_path: Path) -> Iterator[Service]:
    if os.getuid() != 0:
        pytest.skip("only root may mount a small disk")
    with small_disk(tmp_path / "state"):
        limits = {"attempts": 100, "crash_window_s": 60, "retry_s": 0.5}
        service = Service(cluster, tmp_path, time=NEVER, limits=limits)
        yield service
        service.close()


def test_a_service_outlives_a_full_disk(on_small_disk: Service) -> None:
    service, job = on_small_disk, on_small_disk.serving()
    filling = service.folder / "filling"
    subprocess.run(["dd", "if=/dev/zero", f"of={filling}"], check=False, capture_output=True)
    (service.folder / "endpoint.json").unlink()
    service.lead(job)  # its successor cannot write either
    wait_until(lambda: service.owner() == job, HEAL_S, lambda: service.explain(job))
    assert service.ask("/v1/completions", {})["job"] == job
    filling.unlink()
    wait_until(lambda: service.owner() not in (job, None), fault=lambda: service.explain(job))
    assert service.wait_for_end(job)["outcome"] == "handed_over"


def test_a_service_outlives_a_disk_that_takes_no_writes(on_small_disk: Service) -> None:
    """Another one is in its place for a while: empty, and read-only."""
    service, job = on_small_disk, on_small_disk.serving()
    endpoint, place = service.endpoint(), str(service.folder.parent)
    log = service.bundle.parent / f"job-{job}.log"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", place], check=True)
    try:
        service.lead(job)
        with Clients(lambda: endpoint, 2) as clients:
            wait_until(lambda: "Read-only file system; it is tried again" in log.read_text())
            clients.wait_for(50)
        assert clients.failures == []
    finally:
        subprocess.run(["umount", place], check=True)
    wait_until(lambda: "endpoint: works again" in log.read_text(), HEAL_S)
    wait_until(lambda: service.owner() not in (job, None), fault=lambda: service.explain(job))
    assert service.wait_for_end(job)["outcome"] == "handed_over"


def sbatch_that_fails(folder: Path, before: str) -> Path:
    """A folder for the front of the path: its sbatch fails while a file `away` is there."""
    program = folder / "bin" / "sbatch"
    program.parent.mkdir()
    away = shlex.quote(str(folder / "away"))
    real = shlex.quote(shutil.which("sbatch") or "sbatch")
    lines = ["#!/bin/sh", f"if [ -e {away} ]; then {before}", "exit 1; fi", f'exec {real} "$@"']
    program.write_text("\n".join(lines) + "\n")
    program.chmod(0o755)
    (folder / "away").touch()
    return program.parent


REFUSAL = "echo 'sbatch: error: Unable to contact slurm controller' >&2"


def test_a_submission_that_fails_is_tried_again(make_service: MakeService, tmp_path: Path) -> None:
    service = make_service(time=NEVER, limits={"attempts": 1, "crash_window_s": 60})
    path = f"{sbatch_that_fails(tmp_path, REFUSAL)}:{service.cluster.environment['PATH']}"
    job = service.serving(f"--export=ALL,PATH={path}")
    service.lead(job)
    wait_until(lambda: "submission_failed" in service.events(job))
    assert "gave_up" not in service.events(job)
    assert service.ask("/v1/completions", {})["job"] == job
    (tmp_path / "away").unlink()
    wait_until(lambda: service.owner() not in (job, None), fault=lambda: service.explain(job))
    run = service.wait_for_end(job)
    assert (run["outcome"], len(run["successors"])) == ("handed_over", 1)


def test_a_submission_that_went_through_all_the_same_is_not_made_twice(
    make_service: MakeService, tmp_path: Path
) -> None:
    """The controller took the job, and its answer was lost."""
    service = make_service(time=NEVER)
    real, lost = shutil.which("sbatch"), "sbatch: error: Socket timed out on send/recv operation"
    before = f'rm "$(dirname "$0")/../away"; {real} "$@"; echo "{lost}" >&2'
    path = f"{sbatch_that_fails(tmp_path, before)}:{service.cluster.environment['PATH']}"
    job = service.serving(f"--export=ALL,PATH={path}")
    service.lead(job)
    assert service.wait_for_end(job, 60)["outcome"] == "handed_over"
    assert service.events(job).count("submission_failed") == 1
    jobs = [path.name for path in (service.folder / "jobs").iterdir()]
    assert sorted(jobs, key=int) == [job, service.owner()]
    listed = service.cluster.run("squeue", "--noheader", "--states=PENDING", "--format=%i").stdout
    assert listed == ""


SHELL = {
    "SLURM_TIME_FORMAT": "relative",
    "SBATCH_PARTITION": "none",
    "SBATCH_WAIT": "1",
    "SQUEUE_STATES": "PENDING",
    "SQUEUE_PARTITION": "none",
    "SINFO_FORMAT": "%all",
    "SCANCEL_STATE": "PENDING",
}


def test_variables_of_a_shell_do_not_stop_a_hand_over(make_service: MakeService) -> None:
    service = make_service(time=NEVER)
    given = ",".join(f"{name}={value}" for name, value in SHELL.items())
    job = service.serving(f"--export=ALL,{given}")
    service.lead(job)
    wait_until(lambda: service.owner() not in (job, None), fault=lambda: service.explain(job))
    assert service.wait_for_end(job)["outcome"] == "handed_over"


def test_a_node_whose_clock_is_ahead_takes_no_endpoint_over(make_service: MakeService) -> None:
    """By its clock the job that serves has been silent for longer than its lease."""
    service = make_service(time=NEVER)
    first = service.serving()
    run = service.folder / "jobs" / first / "run.json"
    endpoint = json.loads((service.folder / "endpoint.json").read_text())
    past = {"until": "2020-01-01T00:00:00.000Z", "lease_s": 0}
    (service.folder / "endpoint.json").write_text(json.dumps({**endpoint, **past}))
    ended = service.wait_for_end(service.submit())
    assert (ended["outcome"], service.owner()) == ("not_admitted", first)
    assert f"job {first} serves test" in ended["why"]
    assert json.loads(run.read_text())["state"] == "serving"
