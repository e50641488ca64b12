"""What Slurm's commands, logs and records may hold on a bad day, and what a person is then told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from builder import command
from builder.errors import NotReady
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
    assert "Open MPI is not installed" in found.message
    assert found.fix == "Install libopenmpi-dev, or use the release's image."


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
