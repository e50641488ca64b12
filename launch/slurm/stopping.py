"""The end of a service: its stop file, its waiting jobs cancelled, its running ones drained."""

from __future__ import annotations

import time

from builder.diagnostics import Diagnostic
from builder.errors import NotReady

from . import scheduler, waiting
from .scheduler import Job
from .service import JobFolder, Service
from .waiting import Say

# A person's stop file stands where a new job of the service would end at once.
WORD = "stopped by launch slurm stop\n"


def stop(service: Service, now: bool, timeout_s: float, say: Say) -> list[JobFolder]:
    """The jobs that are no more, the oldest first. Raises `NotReady` for those that remain."""
    service.stop_file.write_text(WORD, encoding="utf-8")
    deadline, stopped = time.monotonic() + timeout_s, dict[str, JobFolder]()
    while alive := living(service):
        stopped |= {job.id: service.job(job.id) for job in alive}
        for job in alive:
            if now or job.state == "PENDING":
                scheduler.cancel(job.id)
        for job in alive:
            watch = waiting.Watch(service.job(job.id), say)
            if not watch.until_gone(max(0.0, deadline - time.monotonic())):
                raise NotReady(_remains(service, watch, timeout_s))
    return [stopped[job_id] for job_id in sorted(stopped, key=int)]


def living(service: Service) -> list[Job]:
    """The jobs of a service that Slurm still has, with those that only a predecessor names."""
    ids = {job.id for job in service.jobs}
    ids |= {run["successor"] for job in service.jobs if (run := job.run) and run["successor"]}
    known = scheduler.by_name(scheduler.jobs().values()).get(service.name, {})
    return [known[one] for one in sorted(ids, key=int) if one in known and known[one].is_alive]


def _remains(service: Service, watch: waiting.Watch, timeout_s: float) -> Diagnostic:
    what = f"is still {watch.slurm_words} after {timeout_s:g} s"
    return Diagnostic(
        f"job {watch.job.id} of {service.name}",
        what,
        f"wait longer with --timeout, or cancel it with --now; its log is {watch.job.log}",
    )
