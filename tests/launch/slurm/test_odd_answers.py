"""What Slurm's commands, logs and records may hold on a bad day, and what a person is then told."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from builder import command
from builder.errors import NotReady
from launch.cli.main import main
from launch.slurm import jobs, scheduler
from supervisor import state
from supervisor.state import ServiceFolder


def test_a_log_reaches_the_terminal_as_printable_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "job-7.log"
    log.write_bytes(b"a prompt: \x1b[2J\x00\xff\nmore " + b"x" * 100_000)
    assert command.run(lambda: jobs.print_log(log)) == 0
    said = capsys.readouterr().out
    assert said == "a prompt: \\u001b[2J\\u0000\\xff\nmore " + "x" * 100_000


def test_of_a_log_of_gigabytes_the_end_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ServiceFolder(tmp_path, "svc").job("7")
    job.path.mkdir(parents=True)
    with job.log.open("wb") as file:
        file.truncate(1 << 36)
        file.seek(0, 2)
        file.write(b"\nthe reason\n")
    monkeypatch.setattr(scheduler, "jobs", lambda _: {})
    (found,) = jobs.failure(job).diagnostics
    assert found.log[-1] == "the reason"
    assert str(found).endswith(f"Slurm says nothing of it; its log {job.log} ends:")


def test_a_job_that_failed_tells_the_cause_in_the_log_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ServiceFolder(tmp_path, "svc").job("7")
    job.path.mkdir(parents=True)
    log = job.step_log("server0")
    log.write_text("ImportError: libmpi.so.40: cannot open shared object file: No such file\n")
    monkeypatch.setattr(scheduler, "jobs", lambda _: {})
    (found,) = jobs.failure(job).diagnostics
    assert found.log[1].startswith("cause: Open MPI is not installed")
    assert "fix: Install libopenmpi-dev, or use the release's image." in found.log
    assert f"  {log}:1:" in found.log, "a long path is not broken"
    assert max(len(line) for line in found.log if str(log) not in line) <= 76


def test_a_job_is_diagnosed_by_its_number_with_the_exit_codes_that_slurm_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ServiceFolder(tmp_path, "svc").job("7")
    job.path.mkdir(parents=True)
    (job.path / "submission.json").write_text("{}")
    job.step_log("server0").write_text("[TensorRT-LLM] TensorRT LLM version: 1.2.1\n")
    program(tmp_path, "sacct", "printf '7|FAILED|1:0|0:125\\n7.1|OUT_OF_MEMORY|0:125|\\n'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv(state.STATE_FOLDER, str(tmp_path))
    assert main(["diagnose", "7", "--json"]) == 5
    [cause] = json.loads(capsys.readouterr().out)["causes"]
    assert cause["id"] == "step-ended-by-lack-of-memory"
    assert cause["evidence"] == [{"file": "sacct", "line": 2, "text": "7.1|OUT_OF_MEMORY|0:125"}]
    assert scheduler.exit_codes("7").splitlines()[0] == "7|FAILED|1:0|DerivedExitCode=0:125"
    assert main(["diagnose", "8"]) == 2
    assert "is neither a file nor a job with its state in" in capsys.readouterr().err


def test_without_accounting_the_controller_tells_the_exit_codes_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    shown = "JobId=7 JobState=FAILED ExitCode=1:0 DerivedExitCode=0:9"
    program(tmp_path, "scontrol", f"echo '{shown}'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert scheduler.exit_codes("7") == "7|FAILED|1:0|DerivedExitCode=0:9\n"


def test_a_start_is_followed_by_its_phases_with_the_seconds_of_the_job_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = ServiceFolder(tmp_path, "svc")
    lines = [
        "[09/14/2026-12:09:04] [TRT-LLM] [I] Using LLM with PyTorch backend",
        "[09/14/2026-12:09:10] [TRT-LLM] [I] Prefetching 61.20GB checkpoint files.",
        "[09/14/2026-12:10:01] [TRT-LLM] [I] Using Sampler: TorchSampler",
    ]
    said: list[str] = []
    for number, until in (("7", 3), ("8", 2)):
        job = service.job(number)
        job.path.mkdir(parents=True)
        run: dict[str, Any] = {"state": "starting", "heartbeat": state.timestamp(), "ready": None}
        run |= {"steps": [{"name": "server0", "state": "starting"}], "outcome": None}
        run |= {"state": "ended", "ready": state.timestamp()} if number == "7" else {}
        (job.path / "run.json").write_text(json.dumps(run))
        job.step_log("server0").write_text("\n".join(lines[:until]) + "\n")
    monkeypatch.setattr(scheduler, "jobs", lambda _: {})
    assert jobs.Watch(service.job("8"), said.append).until(lambda _: True)
    assert said == ["job 8: starting, server0: load (about 51 s)"]


@pytest.mark.parametrize("answer", ["", "Submitted batch job 7", "-1", "\x1b[2J", "\u0667"])
def test_an_sbatch_that_names_no_job_is_not_believed(answer: str, tmp_path: Path) -> None:
    (tmp_path / "answer").write_text(answer)
    program(tmp_path, "sbatch", f"exec cat '{tmp_path}/answer'")
    with pytest.raises(NotReady, match="instead of the number of a job") as fault:
        scheduler.submit(tmp_path / "x", [], {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert "\x1b" not in str(fault.value)


def test_tasks_of_an_array_are_known_by_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which their files have; what a person names is the task."""
    rows = "*** Maintenance ***\n7_0|svc|FAILED|None|n1|8\n7_1|svc|RUNNING|None|n1|7\n"
    rows += "123|svc|RUNNING|None|n1|12\n"  # broken off
    (tmp_path / "rows").write_text(f"{rows}9+0|svc|RUNNING|None|n1|9\n9+1|svc|RUNNING|None|n2|10\n")
    program(tmp_path, "squeue", f"exec /bin/cat '{tmp_path}/rows'")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = scheduler.jobs()
    ids = {number: job.id for number, job in found.items()}
    assert ids == {"8": "7_0", "7": "7_1", "9": "9", "10": "9+1"}
    service = ServiceFolder(tmp_path / "state", "svc")
    state.write_json(service.job("7").path / "run.json", {})
    assert [job.id for job in jobs.alive_jobs(service)] == ["7_1"]


def test_a_command_that_cannot_be_started_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "squeue", "true").chmod(0o644)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotReady, match="squeue: cannot be started: permission denied"):
        scheduler.jobs()


LIES = {
    "empty": "true",
    "header": "echo 'JOBID|NAME|STATE|REASON|NODES|JOBID'",
    "other format": "echo '7 batch svc root R 0:10 1 node1'",
    "broken off": "echo '7|svc|COMPLE'",
    "broken off in the number": "echo '71|svc|COMPLETED|None|n1|7'",
    "other job": "echo '8|svc|COMPLETED|None|n1|8'",
    "error as an answer": "echo 'slurm_load_jobs error: Invalid job id specified'",
    "error beside no answer": "echo 'slurm_load_jobs error: Socket timed out' >&2",
    "refused": "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1",
}


@pytest.mark.parametrize("script", LIES.values(), ids=LIES)
def test_an_answer_without_the_job_is_not_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """Its record counts then; and where it has none yet, Slurm is asked for two minutes."""
    program(tmp_path, "squeue", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    job = ServiceFolder(tmp_path / "state", "svc").job("7")
    monkeypatch.setattr(jobs, "SLURM_POLL_S", 0.0)
    watch = jobs.Watch(job, lambda _: None)
    assert not watch.is_gone()
    assert jobs.may_live(job) is None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + jobs.SLURM_SILENT_S + 1)
    with pytest.raises(NotReady, match="squeue"):
        watch.is_gone()
    for ended, run in ((False, "serving"), (True, "ended")):
        state.write_json(job.path / "run.json", {"state": run, "heartbeat": state.timestamp()})
        assert watch.is_gone() is ended
        assert jobs.may_live(job) is (None if ended else True)
    state.write_json(job.path / "run.json", {"state": "serving", "heartbeat": state.timestamp(9)})
    with pytest.raises(NotReady, match="squeue"):
        watch.is_gone()


@pytest.mark.parametrize(
    ("script", "is_gone"),
    [
        ("echo '7|svc|RUNNING|None|n1|7'", False),
        ("echo '7|svc|COMPLETING|None|n1|7'", False),
        ("echo '7|svc|COMPLETED|None|n1|7'", True),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", True),
    ],
)
def test_a_job_is_over_as_slurm_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, is_gone: bool
) -> None:
    program(tmp_path, "squeue", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    job = ServiceFolder(tmp_path / "state", "svc").job("7")
    assert jobs.Watch(job, lambda _: None).is_gone() is is_gone
    assert jobs.may_live(job) is not is_gone


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
