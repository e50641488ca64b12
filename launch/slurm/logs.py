"""The logs of a job: what its supervisor or one of its steps says, once or as it comes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from builder.diagnostics import Diagnostic, nearest
from builder.errors import BadInput

from . import scheduler
from .service import JobFolder, Service
from .waiting import LOOK_S

CHUNK_BYTES = 65536


def file(service: Service, job_id: str | None, step: str | None) -> tuple[JobFolder, Path]:
    """The log of the newest job or of another one. Raises `BadInput` for what is not there."""
    known = {job.id: job for job in service.jobs}
    if not known:
        raise BadInput(Diagnostic(f"service {service.name}", "has had no job yet"))
    job = known.get(job_id) if job_id else list(known.values())[-1]
    if job is None:
        where = f"job {job_id}"
        raise BadInput(
            Diagnostic(where, f"is none of {service.name}", nearest(job_id or "", known))
        )
    path = job.step_log(step) if step else job.log
    if not path.is_file():
        steps = sorted(one.stem for one in job.folder.glob("*.log"))
        remedy = f"steps with a log: {', '.join(steps)}" if steps else "it may not have started"
        raise BadInput(Diagnostic(str(path), "is not there", remedy))
    return job, path


def show(path: Path) -> None:
    with path.open("rb") as content:
        _copy(content.read)


def follow(job: JobFolder, path: Path) -> None:
    """As it comes, until the job is no more."""
    with path.open("rb") as content:
        while True:
            known = scheduler.jobs(job.id).get(job.id)
            _copy(content.read)
            if known is None or not known.is_alive:
                return
            for _ in range(8):
                time.sleep(LOOK_S)
                _copy(content.read)


def _copy(read) -> None:  # type: ignore[no-untyped-def]
    while data := read(CHUNK_BYTES):
        sys.stdout.buffer.write(data)
    sys.stdout.flush()
