"""A service from its submission to its end, on a real cluster."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.slurm.conftest import PREFLIGHT, MakeBundle, Slurm
from tests.slurm import service as stand_ins


def test_a_submitted_service_is_reached_at_its_endpoint_and_stopped(
    slurm: Slurm, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("bundle")
    done = slurm("submit", bundle.folder, "--wait")
    assert done.stdout.startswith("http: http://")
    (row,) = slurm.status()
    assert row["state"] == "serving" and row["slurm"] == "running"
    assert row["bundle_digest"] == bundle.digest
    assert f"http: {row['url']}" == done.stdout.strip()
    assert 0 < row["seconds_left"] <= 300
    stopped = slurm("stop", "svc")
    assert stopped.stdout == f"job {row['job_id']}: stopped\n"
    (row,) = slurm.status()
    assert (row["state"], row["outcome"], row["url"]) == ("ended", "stopped", None)
    assert row["slurm"] == "completed"


def test_submit_prints_the_job_and_does_not_wait(slurm: Slurm, make_bundle: MakeBundle) -> None:
    bundle = make_bundle("bundle", "--start-s", "60")
    facts = json.loads(slurm("submit", bundle.folder, "--json").stdout)
    assert facts["endpoint"] is None
    assert facts["job_id"] in slurm.cluster.run("squeue", "-h", "-o", "%i").stdout.split()
    assert slurm("stop", "svc", "--now").stdout.startswith(f"job {facts['job_id']}: ")


def test_submit_prints_the_next_command_that_finds_its_service(
    slurm: Slurm, make_bundle: MakeBundle
) -> None:
    """Typed in another folder, also where nothing can be remembered or another folder is set."""
    bundle = make_bundle("bundle", "--start-s", "60")
    slurm.state.mkdir()
    (blocked := slurm.state / "file").touch()
    for variables in ({}, {"XDG_STATE_HOME": str(blocked)}, {"SERVICE_STATE_FOLDER": "/other"}):
        words: list[str | Path] = [
            "submit",
            bundle.folder,
            "--state",
            slurm.state,
            "--sbatch=--begin=now+1hour",
        ]
        given: dict[str, Any] = {"SERVICE_STATE_FOLDER": "", **variables}
        said = slurm(*words, **given).stderr
        [line] = [row for row in said.splitlines() if row.startswith("see it with: python -m ")]
        command = shlex.split(line.removeprefix("see it with: python -m launch slurm "))
        assert command == ["status", "svc", *(["--state", str(slurm.state)] if variables else [])]
        assert " pending " in slurm(*command, **given).stdout
        logs = slurm("logs", *command[1:], **given)
        assert logs.stdout == "" and "has no log yet" in logs.stderr
        slurm("stop", *command[1:], **given)


def test_a_service_that_has_a_job_gets_no_second_one(slurm: Slurm, make_bundle: MakeBundle) -> None:
    bundle = make_bundle("bundle", "--start-s", "60")
    slurm("submit", bundle.folder)
    refused = slurm("submit", bundle.folder, code=2)
    assert "service svc: has job" in refused.stderr and "replace it" in refused.stderr


# A site's program in the place of Slurm's own, which shows steps and no jobs.
SQUEUE = """\
#!/bin/sh
case "$*" in *--steps*) exec {squeue} "$@" ;; esac
echo 'error: timed out' >&2
"""


def test_a_service_is_operated_where_slurm_shows_no_jobs(
    slurm: Slurm, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    """By the records of its jobs. test_odd_answers.py has more that it may say in their place."""
    path = slurm.cluster.environment["PATH"]
    squeue = shutil.which("squeue", path=path)
    (tmp_path / "squeue").write_text(SQUEUE.format(squeue=squeue))
    (tmp_path / "squeue").chmod(0o755)
    slurm.variables["PATH"] = f"{tmp_path}:{path}"
    bundle = make_bundle("bundle")
    assert slurm("submit", bundle.folder, "--wait").stdout.startswith("http: http://")
    (row,) = slurm.status()
    assert (row["state"], row["slurm"]) == ("serving", "unknown, squeue does not list it")
    assert "has job" in slurm("submit", bundle.folder, code=2).stderr
    assert "published" in slurm("logs", "svc").stdout
    assert slurm("stop", "svc").stdout == f"job {row['job_id']}: stopped\n"
    (row,) = slurm.status()
    assert (row["state"], row["outcome"], row["url"]) == ("ended", "stopped", None)


def test_a_stopped_service_starts_again(slurm: Slurm, make_bundle: MakeBundle) -> None:
    bundle = make_bundle("bundle")
    for generation in (1, 2):
        slurm("submit", bundle.folder, "--wait")
        assert slurm.endpoint()["generation"] == generation
        slurm("stop", "svc")


def test_a_server_that_fails_is_named_with_its_reason(
    slurm: Slurm, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("bundle", "--fail")
    done = slurm("submit", bundle.folder, "--wait", code=5)
    assert "ended as server_failed: server0: " in done.stderr and "exit code 7" in done.stderr


ABSENT_MPI = "ImportError: libmpi.so.40: cannot open shared object file: No such file"


@pytest.mark.parametrize(
    ("step", "cause", "sentence"),
    [
        (
            {"argv": ["sh", "-c", f"echo '{ABSENT_MPI}' >&2; exit 3"]},
            "open-mpi-is-missing",
            "cause: Open MPI is not installed",
        ),
        (
            {"argv": ["sleep", "60"], "start_timeout_s": 1},
            "supervisor-start-timeout",
            "cause: The server was not ready in the time that a start may take: server0:",
        ),
    ],
)
def test_the_cause_of_a_failed_job_is_shown_by_submit_status_and_diagnose(
    slurm: Slurm, make_bundle: MakeBundle, step: dict[str, Any], cause: str, sentence: str
) -> None:
    bundle = make_bundle("bundle", steps=[stand_ins.server("server0") | step])
    assert sentence in slurm("submit", bundle.folder, "--wait", code=5).stderr
    assert sentence in slurm("status").stdout
    (row,) = slurm.status()
    assert row["diagnosis"]["causes"][0]["id"] == cause
    words = [sys.executable, "-m", "launch", "diagnose", row["job_id"]]
    shown = slurm.cluster.run(*words, check=False, cwd=None, **slurm.variables)
    assert shown.returncode == 5
    assert f"source: {cause}, confirmed" in shown.stdout


def test_a_job_that_slurm_refuses_is_not_submitted(slurm: Slurm, make_bundle: MakeBundle) -> None:
    bundle = make_bundle("bundle")
    done = slurm("submit", bundle.folder, "--sbatch=--gres=gpu:9", code=2)
    assert "is refused by Slurm: " in done.stderr and "sinfo" in done.stderr
    done = slurm("submit", bundle.folder, "--sbatch=--no-such-option", code=2)
    assert "profile of this site" in done.stderr
    assert slurm.status() == []


def test_a_damaged_bundle_is_not_submitted(slurm: Slurm, make_bundle: MakeBundle) -> None:
    bundle = make_bundle("bundle")
    (bundle.folder / "slurm" / "serve.sbatch").write_text("#!/bin/sh\n")
    assert "slurm/serve.sbatch: differs" in slurm("submit", bundle.folder, code=4).stderr


def test_without_slurm_the_missing_command_is_named(slurm: Slurm, make_bundle: MakeBundle) -> None:
    bundle = make_bundle("bundle")
    for words in (("submit", bundle.folder), ("status",), ("probe",)):
        done = slurm(*words, code=5, PATH="/nowhere")
        assert "is not on the path; run this where Slurm's commands are" in done.stderr


def test_logs_are_those_of_the_supervisor_or_of_a_step(
    slurm: Slurm, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("bundle")
    slurm("submit", bundle.folder, "--wait")
    assert "published" in slurm("logs", "svc").stdout
    slurm("logs", "svc", "--step", "server0")
    wrong = slurm("logs", "svc", "--step", "server9", code=2)
    assert "steps with a log: " in wrong.stderr and "server0" in wrong.stderr


def test_followed_logs_end_with_the_job(slurm: Slurm, make_bundle: MakeBundle) -> None:
    bundle = make_bundle("bundle", "--fail", "--start-s", "1")
    slurm("submit", bundle.folder, "--wait", code=5)
    assert slurm("logs", "svc", "-f").stdout == slurm("logs", "svc").stdout


def test_preflight_looks_before_the_service_starts(slurm: Slurm, make_bundle: MakeBundle) -> None:
    bundle = make_bundle("bundle")
    done = slurm("submit", bundle.folder, "--preflight", "--wait")
    assert done.stderr.index("ok   bundle: ") < done.stderr.index("submitted")


def test_a_failed_preflight_is_the_end(slurm: Slurm, make_bundle: MakeBundle) -> None:
    bundle = make_bundle("bundle", preflight={**PREFLIGHT, "programs": ["no-such-command"]})
    done = slurm("submit", bundle.folder, "--preflight", code=6)
    assert "preflight on node1: " in done.stderr and "no-such-command" in done.stderr
    assert slurm.status() == []
