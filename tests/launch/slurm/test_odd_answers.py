"""What Slurm's commands, logs and records may hold on a bad day, and what a person is then told."""

from __future__ import annotations

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


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
