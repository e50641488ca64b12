"""The wait for a job: until its supervisor has written what is wanted, or Slurm has ended it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from builder.diagnostics import Diagnostic
from builder.errors import ChecksFailed, NotReady, ToolkitError

from . import scheduler
from .scheduler import Job
from .service import JobFolder

LOOK_S = 0.25
ASK_SLURM_S = 1.0
# slurmctld may restart while a job is waited for.
SLURM_SILENT_S = 120.0
LAST_LINES = 8
NOT_ADMITTED = "not_admitted"

Say = Callable[[str], None]
Run = Mapping[str, Any]


class Watch:
    """Looks at one job: often at its folder, now and then at Slurm. Tells each change once."""

    def __init__(self, job: JobFolder, say: Say) -> None:
        self.job = job
        self._say = say
        self._said = ""
        self._asked = self._answered = time.monotonic()
        self._known: Job | None = scheduler.jobs(job.id).get(job.id)

    def until(self, wanted: Callable[[Run], bool], timeout_s: float | None = None) -> Run | None:
        """What the supervisor says once it is as wanted or at its end; `None` when time is up.

        A job that ended without the supervisor's word gives what it said last, if anything.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            gone = self._is_gone()  # asked before the last look at what the job left
            run = self.job.run
            if run and (wanted(run) or run["state"] == "ended"):
                self._tell(run)
                return run
            if gone:
                return run or {}
            self._tell(run)
            if deadline is not None and time.monotonic() > deadline:
                return None
            time.sleep(LOOK_S)

    def until_gone(self, timeout_s: float) -> bool:
        """Whether Slurm has ended the job by then, and so released its nodes."""
        deadline = time.monotonic() + timeout_s
        while not self._is_gone():
            if time.monotonic() > deadline:
                return False
            self._tell(self.job.run)
            time.sleep(LOOK_S)
        self._tell(self.job.run)
        return True

    @property
    def slurm_words(self) -> str:
        return self._known.words if self._known else "unknown to Slurm"

    def _is_gone(self) -> bool:
        now = time.monotonic()
        if now - self._asked >= ASK_SLURM_S:
            self._asked = now
            try:
                self._known = scheduler.jobs(self.job.id).get(self.job.id)
                self._answered = time.monotonic()
            except NotReady:
                if now - self._answered > SLURM_SILENT_S:
                    raise
        return self._known is None or not self._known.is_alive

    def _tell(self, run: Run | None) -> None:
        state = run["state"] if run else self.slurm_words
        if state != self._said:
            self._said = state
            self._say(f"job {self.job.id}: {state}")


def until_run_has(job: JobFolder, moment: str, say: Say, timeout_s: float | None = None) -> Run:
    """What the supervisor says once it was `admitted`, or `published`. Raises why it was not."""
    run = Watch(job, say).until(lambda run: bool(run[moment]), timeout_s)
    if run is None:
        what = f"is not {moment} after {timeout_s:g} s"
        raise NotReady(Diagnostic(f"job {job.id}", what, f"its log is {job.log}"))
    if not run.get(moment) or run["state"] == "ended":
        raise failure(job)
    return run


def failure(job: JobFolder) -> ToolkitError:
    """Why a job was not admitted, or is no more, in the words of whoever knows."""
    run = job.run or {}
    outcome, why = run.get("outcome"), run.get("why")
    if outcome:
        what = f"ended as {outcome}" + (f": {why}" if why else "")
    else:
        known = scheduler.jobs(job.id).get(job.id)
        what = f"ended without a word; Slurm says {known.words if known else 'nothing of it'}"
    problem = Diagnostic(f"job {job.id}", f"{what}; {_evidence(job)}")
    return ChecksFailed(problem) if outcome == NOT_ADMITTED else NotReady(problem)


def _evidence(job: JobFolder) -> str:
    """Where to read on, and the last words of the log there."""
    ended = [s["name"] for s in (job.run or {}).get("steps", ()) if s.get("exit_code")]
    logs = [job.step_log(ended[0])] if ended else []
    found = [path for path in (*logs, job.log) if path.is_file() and path.stat().st_size]
    if not found:
        return f"it left no log in {job.log.parent}"
    lines = found[0].read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    return f"its log {found[0]} ends:" + "".join(f"\n    {line[:300]}" for line in lines)
