"""A trial: something that is asked of the cluster to see whether it takes it."""

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
LOOK_S = 0.5
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
class Answer:
    """How it went. `words` are those of Slurm, or what the trial printed."""

    code: int
    words: str

    @property
    def ok(self) -> bool:
        return self.code == 0


def ask(*options: str) -> Answer:
    """Whether Slurm would take a job with these options, if its nodes were free; nothing runs."""
    done = scheduler.call(["sbatch", "--test-only", *options, "--wrap=true"])
    return Answer(done.returncode, scheduler.words(done.stderr))


def run(
    trials: Mapping[str, Sequence[str]], options: Sequence[str], folder: Path, timeout_s: float
) -> dict[str, Answer]:
    """What each trial did in one job, whose results are left in a folder that its nodes see.

    Raises `NotReady` if the job does not start in time, or does not see the folder.
    """
    lines = [f"try {name} {shlex.join(argv)}" for name, argv in trials.items()]
    script = folder / "trial.sbatch"
    place = shlex.quote(str(folder))
    text = SCRIPT.format(timeout_s=STEP_TIMEOUT_S, folder=place, trials="\n".join(lines))
    script.write_text(text, encoding="utf-8")
    log = folder / "trial.log"
    job_id = scheduler.submit(script, [f"--output={log}", *options], scheduler.outside())
    try:
        _wait(job_id, timeout_s)
    except BaseException:
        scheduler.cancel(job_id)
        raise
    if not (folder / "whole").exists():
        said = log.read_text(errors="replace").strip() if log.exists() else "it left nothing here"
        remedy = "name a folder that this host and all nodes see with --state"
        raise NotReady(Diagnostic(f"job {job_id}", f"left no results in {folder}: {said}", remedy))
    return {name: _answer(folder, name) for name in trials}


def _answer(folder: Path, name: str) -> Answer:
    output = (folder / f"{name}.out").read_text(encoding="utf-8", errors="replace")
    return Answer(int((folder / f"{name}.code").read_text()), output.strip())


def _wait(job_id: str, timeout_s: float) -> None:
    """A job that waits in the queue has so much time; one that runs ends by its own limits."""
    deadline = time.monotonic() + timeout_s
    while (job := scheduler.jobs(job_id).get(job_id)) is not None and job.is_alive:
        if job.state == "PENDING" and time.monotonic() > deadline:
            what = f"still waits after {timeout_s:g} s: {job.reason}"
            raise NotReady(Diagnostic(f"job {job_id}", what, "wait longer with --timeout"))
        time.sleep(LOOK_S)
