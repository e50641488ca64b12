"""The jobs of a service: waits for them, prints their logs, stops or cancels them."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from builder.bundle import MANIFEST
from builder.diagnosis.judgement import Diagnosis
from builder.diagnostics import Diagnostic, nearest
from builder.errors import BadInput, ChecksFailed, NotReady, ToolkitError
from supervisor.state import JobFolder, ServiceFolder, is_there

from .. import diagnose, diagnosis_text
from ..diagnose import Found
from ..start import Start
from . import scheduler
from .scheduler import SlurmJob

POLL_S = 0.25
SLURM_POLL_S = 1.0
# slurmctld may restart while a job is waited for.
SLURM_SILENT_S = 120.0
LAST_LINES, LAST_BYTES, LINE_LENGTH = 8, 65536, 300  # of a log
DIAGNOSED_BYTES = 50_000_000  # at the end of each log
NOT_ADMITTED = "not_admitted"
CHUNK_BYTES = 65536
# The content of a stop file, for those who find it.
STOP_NOTE = "stopped by launch slurm stop\n"

Say = Callable[[str], None]
Run = Mapping[str, Any]


class Watch:
    """Watches one job: its folder often, Slurm less often. Reports each change once."""

    def __init__(self, job: JobFolder, say: Say) -> None:
        self.job = job
        self._say = say
        self._said = ""
        self._asked, self._answered = -math.inf, time.monotonic()
        self._known: SlurmJob | None = None
        self._has_gone = False
        self._starts: dict[str, Start] = {}  # of steps that start, by their names

    def until(self, wanted: Callable[[Run], bool], timeout_s: float | None = None) -> Run | None:
        """The first run.json for which `wanted` holds, or the last one; `None` at the timeout.

        For a job whose supervisor recorded no end, its last record, if any.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            gone = self.is_gone()  # before the last read of what the job left
            run = self.job.run
            if run and (wanted(run) or run["state"] == "ended"):
                self._tell(run)
                return run
            if gone:
                return run or {}
            self._tell(run)
            if deadline is not None and time.monotonic() > deadline:
                return None
            time.sleep(POLL_S)

    def until_gone(self, timeout_s: float) -> bool:
        """Whether Slurm has ended the job by then and released its nodes."""
        deadline = time.monotonic() + timeout_s
        while not self.is_gone():
            self._tell(self.job.run)
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        self._tell(self.job.run)
        return True

    @property
    def slurm_state(self) -> str:
        return self._known.summary if self._known else "unknown to Slurm"

    def is_gone(self) -> bool:
        """Whether the job is over, by Slurm, else by its record.

        Raises `NotReady` if neither has answered for long.
        """
        now = time.monotonic()
        if now - self._asked >= SLURM_POLL_S:
            self._asked = now
            try:
                self._known = scheduler.jobs(self.job.id).get(self.job.id)
            except NotReady:
                self._has_gone = self.job.has_ended
                is_late = now - self._answered > SLURM_SILENT_S
                if is_late and not self._has_gone and not self.job.says_it_lives():
                    raise
            else:
                self._answered = time.monotonic()
                lives = self._known.is_alive if self._known else self.job.says_it_lives()
                self._has_gone = not lives
        return self._has_gone

    def _tell(self, run: Run | None) -> None:
        state = run["state"] if run else self.slurm_state
        if run and state == "starting":
            state = ", ".join([state, *self._phases(run)])
        if state != self._said:
            self._said = state
            self._say(f"job {self.job.id}: {state}")

    def _phases(self, run: Run) -> Iterator[str]:
        """The phases of steps that start, each with the time that the job before took for it."""
        for name in [row["name"] for row in run["steps"] if row.get("state") == "starting"]:
            log = self.job.step_log(name)
            if name not in self._starts and log.is_file():
                self._starts[name] = Start(log, earlier_phases(self.job, name))
            if name in self._starts:
                self._starts[name].advance()
                yield f"{name}: {self._starts[name].summary}"


def earlier_phases(job: JobFolder, step: str) -> dict[str, float]:
    """The seconds by phase of a step of the last job before it that became ready, from its log."""
    before = [one for one in job.service.jobs if int(one.id) < int(job.id)]
    for one in reversed(before):
        if (one.run or {}).get("ready") and (log := one.step_log(step)).is_file():
            found, _ = diagnose.diagnose(Found(logs=[str(log)]), DIAGNOSED_BYTES)
            return dict(found.seconds)
    return {}


def until_run_has(job: JobFolder, moment: str, say: Say, timeout_s: float | None = None) -> Run:
    """The run.json of a job that was `admitted`, or `published`. Raises why it was not."""
    run = Watch(job, say).until(lambda run: bool(run[moment]), timeout_s)
    if run is None:
        what = f"is not {moment} after {timeout_s:g} s"
        raise NotReady(Diagnostic(f"job {job.id}", what, f"its log is {job.log}"))
    if not run.get(moment) or run["state"] == "ended":
        raise failure(job)
    return run


def failure(job: JobFolder) -> ToolkitError:
    """Why a job was not admitted or has ended, by its supervisor, else by Slurm."""
    run = job.run or {}
    outcome, why = run.get("outcome"), run.get("why")
    if outcome:
        what = f"ended as {outcome}" + (f": {why}" if why else "")
    else:
        state = "nothing of it"
        with suppress(NotReady):
            known = scheduler.jobs(job.id).get(job.id)
            state = known.summary if known else state
        what = f"ended before its supervisor gave a reason; Slurm says {state}"
    found = diagnosis(job)
    where, lines = _evidence(job)
    if found and found.causes:
        where, lines = (
            f"its log is {job.log}",
            diagnosis_text.below_error(diagnosis_text.document(found)),
        )
    diagnostic = Diagnostic(f"job {job.id}", f"{what}; {where}", log=lines)
    return ChecksFailed(diagnostic) if outcome == NOT_ADMITTED else NotReady(diagnostic)


def diagnosis(job: JobFolder) -> Diagnosis | None:
    """What the logs of a job and Slurm say of its end; `None` if there is nothing to read."""
    try:
        return diagnose.diagnose(collect(job, Found()), DIAGNOSED_BYTES)[0]
    except BadInput:
        return None


def collect(job: JobFolder, found: Found) -> Found:
    """Adds the logs of a job, its bundle, and its exit codes as Slurm and its supervisor know them.

    Raises `BadInput` if it left no log.
    """
    logs = [str(job.log)] if job.log.is_file() else []
    diagnose.collect([*logs, str(job.path)], found)
    run = job.run or {}
    codes = [step["exit_code"] for step in run.get("steps", ()) if step.get("exit_code")]
    if run.get("exit_code") and codes:
        found.facts["exit_code"] = codes[0]
    if (bundle := Path(run.get("bundle") or "")) and (bundle / MANIFEST).is_file():
        found.bundle = bundle
    if job.says_it_lives() and (logs := [*logs, *map(str, job.path.glob("*.log"))]):
        found.facts |= diagnose.of_live(max(map(Path, logs), key=_written))
    with suppress(NotReady):
        found.outputs["sacct"] = scheduler.exit_codes(job.id)
    return found


def _written(path: Path) -> float:
    return path.stat().st_mtime


def _evidence(job: JobFolder) -> tuple[str, tuple[str, ...]]:
    ended = [s["name"] for s in (job.run or {}).get("steps", ()) if s.get("exit_code")]
    logs = [job.step_log(ended[0])] if ended else []
    found = [path for path in (*logs, job.log) if path.is_file() and path.stat().st_size]
    if not found:
        return f"it left no log in {job.log.parent}", ()
    with found[0].open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
        lines = file.read().decode(errors="replace").splitlines()[-LAST_LINES:]
    return f"its log {found[0]} ends:", tuple(line[:LINE_LENGTH] for line in lines)


def find_log(
    service: ServiceFolder, job_id: str | None, step: str | None
) -> tuple[JobFolder, Path]:
    """The log of the newest job or of `job_id`; it may not exist yet if the job is alive.

    Raises `BadInput` for an unknown job or a missing log.
    """
    known = {job.id: job for job in service.jobs}
    if not known:
        raise BadInput(Diagnostic(f"service {service.name}", "has had no job yet"))
    job = known.get(job_id) if job_id else list(known.values())[-1]
    if job is None:
        where = f"job {job_id}"
        raise BadInput(
            Diagnostic(where, f"is not a job of {service.name}", nearest(job_id or "", known))
        )
    path = job.step_log(step) if step else job.log
    if not path.is_file() and (step or may_live(job) is False):
        steps = sorted(one.stem for one in job.path.glob("*.log"))
        remedy = f"steps with a log: {', '.join(steps)}" if steps else "it may not have started"
        raise BadInput(Diagnostic(str(path), "does not exist", remedy))
    return job, path


def until_log(job: JobFolder, path: Path, say: Say) -> bool:
    """Waits for the log of a job. False if the job ended without one."""
    watch = Watch(job, say)
    while not path.is_file():
        if watch.until_gone(0):
            return path.is_file()
        time.sleep(POLL_S)
    return True


def print_log(path: Path) -> None:
    with path.open("rb") as content:
        _copy(content)


def follow_log(job: JobFolder, path: Path) -> None:
    """Prints the log as it grows, until the job has ended."""
    watch = Watch(job, lambda _: None)
    with path.open("rb") as content:
        while True:
            is_gone = watch.is_gone()  # before the last read
            _copy(content)
            if is_gone:
                return
            time.sleep(POLL_S)


def _copy(file: BinaryIO) -> None:
    """Copies whole lines and the start of the last one; servers may log any text."""
    while data := file.read(CHUNK_BYTES) + file.readline(CHUNK_BYTES):
        sys.stdout.write(data.decode(errors="backslashreplace"))
    sys.stdout.flush()


def stop(service: ServiceFolder, now: bool, timeout_s: float, say: Say) -> list[JobFolder]:
    """The jobs that have ended, oldest first. Raises `NotReady` if some have not ended."""
    if not is_there(service.stop_file):  # a pipe there would block the write
        service.stop_file.write_text(STOP_NOTE, encoding="utf-8")
    deadline, stopped = time.monotonic() + timeout_s, dict[str, JobFolder]()
    while alive := alive_jobs(service):
        stopped |= {job.number: service.job(job.number) for job in alive}
        for job in alive:
            if now or job.state == "PENDING":
                scheduler.cancel(job.id)
        for job in alive:
            watch = Watch(service.job(job.number), say)
            if not watch.until_gone(max(0.0, deadline - time.monotonic())):
                raise NotReady(_remains(service, watch, timeout_s))
    return [stopped[job_id] for job_id in sorted(stopped, key=int)]


def of_service(service: ServiceFolder, known: Mapping[str, SlurmJob]) -> dict[str, SlurmJob]:
    """The jobs with the name of the service: clusters may reuse numbers.

    A renamed job, or one that Slurm does not list, belongs to it if its supervisor says so.
    """
    found = {number: job for number, job in known.items() if job.name == service.name}
    for job in service.jobs:
        if job.says_it_lives():
            found[job.id] = known.get(job.id) or scheduler.unlisted(job.id, service.name)
    return found


def may_live(job: JobFolder) -> bool | None:
    """Whether a job waits or runs; `None` where neither Slurm nor its record says so."""
    try:
        known = scheduler.jobs(job.id).get(job.id)
    except NotReady:
        return job.says_it_lives() or None
    return known.is_alive if known else job.says_it_lives()


def alive_jobs(service: ServiceFolder) -> list[SlurmJob]:
    """The jobs of a service that are alive in Slurm, and successors that its jobs name."""
    ids = {job.id for job in service.jobs}
    ids |= {run["successor"] for job in service.jobs if (run := job.run) and run["successor"]}
    known = of_service(service, scheduler.jobs())
    return [known[one] for one in sorted(ids, key=int) if one in known and known[one].is_alive]


def _remains(service: ServiceFolder, watch: Watch, timeout_s: float) -> Diagnostic:
    what = f"is still {watch.slurm_state} after {timeout_s:g} s"
    return Diagnostic(
        f"job {watch.job.id} of {service.name}",
        what,
        f"wait longer with --timeout, or cancel it with --now; its log is {watch.job.log}",
    )
