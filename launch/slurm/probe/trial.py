"""Trials: requests that Slurm accepts or refuses, and commands that a job runs on nodes."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.diagnostics import Diagnostic
from builder.errors import NotReady

from .. import scheduler

UNKNOWN_OPTION = 255
POLL_S = 0.5
# Of one live trial; the import of a cold image takes minutes.
STEP_TIMEOUT_S = 600
SCRIPT = """\
#!/bin/bash
# Tries on nodes of this site what its profile may say. Each trial leaves its output and exit code.
try() {{
  local name=$1
  shift
  timeout {timeout_s} "$@" >"$name.out" 2>&1
  echo $? >"$name.code"
}}
cd {folder} || exit 1
{trials}
touch whole
"""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The exit code, and what Slurm or the command printed."""

    code: int
    output: str

    @property
    def ok(self) -> bool:
        return self.code == 0


def test_request(*options: str) -> TrialResult:
    """Whether Slurm would take a job with these options, if its nodes were free; nothing runs."""
    done = scheduler.call(["sbatch", "--test-only", *options, "--wrap=true"])
    return TrialResult(done.returncode, scheduler.message(done.stderr))


def run(
    trials: Mapping[str, Sequence[str]], options: Sequence[str], folder: Path, timeout_s: float
) -> dict[str, TrialResult]:
    """What each trial did in one job, whose results are left in a folder that its nodes see.

    Raises `NotReady` if the job does not start in time, or does not see the folder.
    """
    lines = [f"try {name} {shlex.join(argv)}" for name, argv in trials.items()]
    script = folder / "trial.sbatch"
    place = shlex.quote(str(folder))
    text = SCRIPT.format(timeout_s=STEP_TIMEOUT_S, folder=place, trials="\n".join(lines))
    script.write_text(text, encoding="utf-8")
    log = folder / "trial.log"
    job_id = scheduler.submit(script, [f"--output={log}", *options], scheduler.environment())
    try:
        _wait(job_id, timeout_s)
    except BaseException:
        scheduler.cancel(job_id)
        raise
    if not (folder / "whole").exists():
        output = log.read_text(errors="replace").strip() if log.exists() else "it left nothing here"
        remedy = "name a folder that this host and all nodes see with --state"
        raise NotReady(
            Diagnostic(f"job {job_id}", f"left no results in {folder}: {output}", remedy)
        )
    return {name: _result(folder, name) for name in trials}


def _result(folder: Path, name: str) -> TrialResult:
    output = (folder / f"{name}.out").read_text(encoding="utf-8", errors="replace")
    return TrialResult(int((folder / f"{name}.code").read_text()), output.strip())


def _wait(job_id: str, timeout_s: float) -> None:
    """A job that waits in the queue has so much time; one that runs ends by its own limits."""
    deadline = time.monotonic() + timeout_s
    while (job := scheduler.jobs(job_id).get(job_id)) is not None and job.is_alive:
        if job.state == "PENDING" and time.monotonic() > deadline:
            what = f"still waits after {timeout_s:g} s: {job.reason}"
            raise NotReady(Diagnostic(f"job {job_id}", what, "wait longer with --timeout"))
        time.sleep(POLL_S)
