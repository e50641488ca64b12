"""A rolling update: a new bundle takes over a service, or the old one keeps serving.

The new job is a canary first: it starts and is admitted while the old one serves all clients. Then
it publishes itself, and the old one drains; should the new one die in that time, the old one takes
the clients back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from builder.diagnostics import Diagnostic
from builder.errors import BadInput, ChecksFailed, NotReady, ToolkitError
from supervisor.lock import SuccessorLock
from supervisor.state import CANARY, PREDECESSOR, PROMOTE, JobFolder, ServiceFolder

from ..process import Interrupts
from . import jobs, scheduler
from .jobs import POLL_S, Say
from .submission import Submission

# A canary looks for its promotion several times a second.
SWITCH_TIMEOUT_S = 60.0
# A job whose successor has died takes its clients back when its drain is over.
BACK_MARGIN_S = 30.0


def replace(
    order: Submission,
    admission_s: float | None,
    stand_by_s: float,
    interrupts: Interrupts,
    say: Say,
) -> JobFolder:
    """The job of the new bundle, which now serves. Raises `ChecksFailed` if the old one still does.

    The new job may take `admission_s` to be admitted, and must then live for `stand_by_s` before
    clients are sent to it.
    """
    service = order.service
    old = serving(service)
    drain_s = order.drain_s
    canary = order.with_variables({PREDECESSOR: old.id, CANARY: "1"})
    with _successor_lock(service, old.id) as lock:
        with interrupts.held():
            new = canary.submit()
            lock.name_successor(new.id)
        say(f"job {new.id}: canary of {order.source}; job {old.id} serves")
        try:
            jobs.until_run_has(new, "admitted", say, admission_s)
            deadline = time.monotonic() + stand_by_s
            while time.monotonic() < deadline:
                _check_lives(new)
                time.sleep(POLL_S)
            with interrupts.held():
                _switch(service, new, say)
                _drain(service, old, new, drain_s, say)
        except BaseException as error:
            scheduler.cancel(new.id)
            if not isinstance(error, ToolkitError):
                raise
            jobs.Watch(new, say).until_gone(drain_s)
            raise _refused(service, old, drain_s, error) from None
    return new


def serving(service: ServiceFolder) -> JobFolder:
    """The job that clients are sent to. Raises `NotReady` without one."""
    endpoint = service.live_endpoint()
    if endpoint is None or service.stop_file.exists():
        why = "is being stopped" if endpoint else "has no live endpoint"
        remedy = "start the new bundle with: launch slurm submit"
        raise NotReady(Diagnostic(f"service {service.name}", why, remedy))
    return service.job(endpoint["job_id"])


def check_name(service: ServiceFolder, order: Submission) -> None:
    """A service is known by its name: the new bundle must have it. Raises `BadInput`."""
    if order.service.name != service.name:
        what = f"is of the service {order.service.name}, not of {service.name}"
        remedy = f"render it with --set name={service.name}"
        raise BadInput(Diagnostic(str(order.source), what, remedy))


def _switch(service: ServiceFolder, new: JobFolder, say: Say) -> None:
    (new.path / PROMOTE).touch()
    deadline = time.monotonic() + SWITCH_TIMEOUT_S
    while not _is_owner(service, new):
        _check_lives(new)
        if time.monotonic() > deadline:
            what = f"did not publish itself within {SWITCH_TIMEOUT_S:g} s"
            raise NotReady(Diagnostic(f"job {new.id}", what, f"its log is {new.log}"))
        time.sleep(POLL_S)
    say(f"job {new.id}: clients are sent here")


def _drain(
    service: ServiceFolder, old: JobFolder, new: JobFolder, timeout_s: float, say: Say
) -> None:
    """Waits until the old job has ended, while the new one must keep serving."""
    watch, deadline = jobs.Watch(old, say), time.monotonic() + timeout_s
    while not watch.until_gone(POLL_S):
        _check_lives(new)
        if not _is_owner(service, new):
            raise NotReady(Diagnostic(f"job {new.id}", "lost the endpoint"))
        if time.monotonic() > deadline:
            say(f"job {old.id}: still drains after {timeout_s:g} s")
            return


def _check_lives(new: JobFolder) -> None:
    run = new.run
    if run is None or run["state"] in ("stopping", "ended"):
        raise jobs.failure(new)


def _is_owner(service: ServiceFolder, job: JobFolder) -> bool:
    return service.owner == job.id


def _refused(
    service: ServiceFolder, old: JobFolder, drain_s: float, fault: ToolkitError
) -> ToolkitError:
    """Why the new job was refused, and whether the old one serves after its drain."""
    deadline = time.monotonic() + drain_s + BACK_MARGIN_S
    while not _is_owner(service, old) and not old.has_ended and time.monotonic() < deadline:
        time.sleep(POLL_S)
    still = "still serves" if _is_owner(service, old) else "does not serve any more"
    what = f"is not replaced; job {old.id} {still}"
    return ChecksFailed([*fault.diagnostics, Diagnostic(f"service {service.name}", what)])


@contextmanager
def _successor_lock(service: ServiceFolder, owner: str) -> Iterator[SuccessorLock]:
    """Held until the successor has taken over or failed. Raises `NotReady` if it is taken."""
    lock = SuccessorLock(service, owner, lambda job: jobs.may_live(service.job(job)))
    while not lock.acquire():
        if lock.is_empty:
            time.sleep(POLL_S)
            continue
        what = f"has a successor under way: job {lock.content.get('successor') or 'not named yet'}"
        remedy = "see it with: launch slurm status"
        raise NotReady(Diagnostic(f"service {service.name}", what, remedy))
    try:
        yield lock
    finally:
        lock.release()
