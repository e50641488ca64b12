"""The overview of services, from folders as supervisors leave them and a real queue."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.launch.slurm.conftest import MakeBundle, Slurm
from tests.slurm.service import wait_until

SERVICES = 500


def moment(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def leave(root: Path, name: str, job_id: str, *, beat_s: float = 0, **run: Any) -> None:
    """What the supervisor of a job that serves has written, `beat_s` ago for the last time."""
    folder = root / name / "jobs" / job_id
    folder.mkdir(parents=True)
    facts = {"job_id": job_id, "generation": 1, "bundle_digest": "d", "outcome": None, "why": None}
    times = {"until": moment(3600), "heartbeat": moment(-beat_s)}
    facts |= {"state": "serving", "successor": None, **times, **run}
    (folder / "run.json").write_text(json.dumps(facts))
    endpoint = {"job_id": job_id, "model": "m", "until": times["until"], "lease_s": 60}
    endpoint |= {"urls": {"http": "http://n:1"}, "heartbeat": f"jobs/{job_id}/run.json"}
    (root / name / "endpoint.json").write_text(json.dumps(endpoint))


@pytest.fixture
def queued(slurm: Slurm) -> str:
    """A job that runs on the cluster and is of no service."""
    submit = ["sbatch", "--parsable", "--output=/dev/null", "--job-name=svc", "--wrap=sleep 60"]
    job_id = slurm.cluster.run(*submit).stdout.strip()
    wait_until(lambda: "RUNNING" in slurm.cluster.run("squeue", "-h", "-o%T").stdout)
    return job_id


def test_500_services_are_listed(slurm: Slurm) -> None:
    """Each with a job of its own in the queue."""
    submit = "sbatch --hold --output=/dev/null --wrap=true --job-name=svc{}"
    slurm.cluster.run("sh", "-c", f"seq {SERVICES} | xargs -P 4 -I{{}} {submit}")
    queue = slurm.cluster.run("squeue", "-h", "-o%j %i").stdout.splitlines()
    for name, job_id in map(str.split, queue):
        leave(slurm.state, name, job_id)
    rows = slurm.status()
    assert [row["state"] for row in rows] == ["pending"] * SERVICES


def test_a_supervisor_without_a_heartbeat_is_silent(slurm: Slurm, queued: str) -> None:
    leave(slurm.state, "svc", queued, beat_s=120)
    (row,) = slurm.status()
    assert (row["state"], row["url"]) == ("silent", None)


def test_a_job_that_was_renamed_is_still_that_of_its_supervisor(slurm: Slurm, queued: str) -> None:
    """Until its record falls silent: a number may come again on a cluster."""
    slurm.cluster.run("scontrol", "update", f"jobid={queued}", "name=another")
    leave(slurm.state, "svc", queued)
    leave(slurm.state, "gone", queued, beat_s=120)
    rows = {row["name"]: row for row in slurm.status()}
    assert (rows["svc"]["state"], rows["svc"]["job_id"]) == ("serving", queued)
    assert rows["gone"]["state"] == "dead"


def test_a_credential_in_an_address_or_a_reason_is_not_shown(slurm: Slurm, queued: str) -> None:
    leave(slurm.state, "svc", queued, successor=None, model="m")
    path = slurm.state / "svc" / "endpoint.json"
    address = "http://bob:Aa1word@n:1"
    path.write_text(path.read_text().replace("http://n:1", address))
    leave(slurm.state, "gone", "7", state="ended", outcome="rank_died", why=f"GET {address}")
    shown = slurm("status").stdout + slurm("status", "--json").stdout
    assert "Aa1word" not in shown and "gone" in shown


def test_an_endpoint_never_points_at_a_dead_job(slurm: Slurm) -> None:
    leave(slurm.state, "svc", "999999", beat_s=120)
    (row,) = slurm.status()
    assert (row["state"], row["url"], row["slurm"]) == ("dead", None, None)


def test_a_job_that_slurm_does_not_list_lives_while_it_says_so(
    slurm: Slurm, make_bundle: MakeBundle
) -> None:
    leave(slurm.state, "svc", "999999")
    (row,) = slurm.status()
    why = "unknown, squeue does not list it"
    assert (row["state"], row["url"], row["slurm"]) == ("serving", "http://n:1", why)
    refused = slurm("submit", make_bundle("bundle").folder, code=2)
    assert f"service svc: has job 999999 already, {why}" in refused.stderr


def test_the_reason_of_an_end_stands_under_its_service(slurm: Slurm) -> None:
    leave(slurm.state, "svc", "7", state="ended", outcome="rank_died", why="rank 3: killed")
    lines = slurm("status").stdout.splitlines()
    assert lines[1].split() == ["svc", "7", "1", "ended", "-", "-", "rank_died"]
    assert lines[2].strip() == "rank 3: killed"


def test_a_job_that_waits_says_why(slurm: Slurm, make_bundle: MakeBundle) -> None:
    bundle = make_bundle("bundle")
    slurm("submit", bundle.folder, "--sbatch=--begin=now+1hour")
    (row,) = slurm.status("svc")
    assert (row["state"], row["slurm"]) == ("pending", "pending, BeginTime")


def test_an_unknown_service_is_named_with_the_nearest(slurm: Slurm, queued: str) -> None:
    leave(slurm.state, "llama", queued)
    done = slurm("status", "lama", code=2)
    assert "service lama: has no state in" in done.stderr and "did you mean llama?" in done.stderr


ODD = ["", "{}", "[]", '{"state": 7}', '{"state": "serving", "heartbeat": "now"}', "\0" * 64]


def test_broken_records_fail_no_overview(slurm: Slurm, queued: str) -> None:
    leave(slurm.state, "svc", queued)
    for number, text in enumerate(ODD):
        leave(slurm.state, f"odd{number}", "7")
        (slurm.state / f"odd{number}" / "jobs" / "7" / "run.json").write_text(text)
        leave(slurm.state, f"nowhere{number}", "7")
        (slurm.state / f"nowhere{number}" / "endpoint.json").write_text(text)
    rows = {row["name"]: row for row in slurm.status()}
    assert (rows["svc"]["job_id"], rows["svc"]["state"]) == (queued, "serving")
    for number in range(len(ODD)):
        odd, nowhere = rows[f"odd{number}"], rows[f"nowhere{number}"]
        assert odd["why"].endswith("jobs/7/run.json is damaged")
        assert (nowhere["job_id"], nowhere["url"], nowhere["why"]) == ("7", None, None)
    assert "run.json is damaged" in slurm("status").stdout


def test_the_shell_of_an_operator_hides_no_job(slurm: Slurm, queued: str) -> None:
    """Variables with options of Slurm's commands, as people have them in their profiles."""
    leave(slurm.state, "svc", queued)
    variables: dict[str, Any] = {
        "SQUEUE_STATES": "PENDING",
        "SQUEUE_FORMAT": "%u",
        "SQUEUE_PARTITION": "none",
    }
    variables["SLURM_TIME_FORMAT"] = "relative"
    found = json.loads(slurm("status", "--json", **variables).stdout)
    assert [(row["job_id"], row["state"]) for row in found] == [(queued, "serving")]


def test_a_shell_with_options_for_jobs_submits_what_the_bundle_says(
    slurm: Slurm, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("bundle")
    variables: dict[str, Any] = {
        "SBATCH_PARTITION": "none",
        "SBATCH_WAIT": "1",
        "SBATCH_TIMELIMIT": "0:01",
    }
    done = slurm("submit", bundle.folder, "--sbatch=--begin=now+1hour", **variables)
    assert "SBATCH_PARTITION, SBATCH_TIMELIMIT, SBATCH_WAIT of this environment" in done.stderr
    (row,) = slurm.status("svc")
    assert (row["state"], row["slurm"]) == ("pending", "pending, BeginTime")
