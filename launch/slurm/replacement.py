"""A replacement: a new bundle takes over a service, or the old one stays as it is.

The new job is a canary first: it starts and is admitted while the old one serves all clients. Then
it publishes itself, and the old one drains; should the new one die in that time, the old one takes
the clients back.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from builder.diagnostics import Diagnostic
from builder.errors import BadInput, ChecksFailed, NotReady, ToolkitError

from ..interrupts import Interrupts
from . import scheduler, succession, waiting
from .service import JobFolder, Service
from .submission import Submission
from .waiting import LOOK_S, Say

# A canary looks for its promotion several times a second.
SWITCH_TIMEOUT_S = 60.0
# A job whose successor has died takes its clients back when its drain is over.
BACK_MARGIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the new job may take to be admitted, and stands by before clients are sent to it;
    and how long the old one may drain."""

    admission_s: float | None
    stand_by_s: float
    drain_s: float


def replace(order: Submission, patience: Patience, interrupts: Interrupts, say: Say) -> JobFolder:
    """The job of the new bundle, which serves. Raises `ChecksFailed` if the old one still does."""
    service = order.service
    old = serving(service)
    ordered = order.with_variables(SERVICE_PREDECESSOR=old.id, SERVICE_CANARY="1")
    with succession.lock(service, old.id) as lock:
        with interrupts.held():
            new = ordered.submit()
            lock.name(new.id)
        say(f"job {new.id}: canary of {order.bundle.folder}; job {old.id} serves")
        try:
            waiting.until_run_has(new, "admitted", say, patience.admission_s)
            _stand_by(new, patience.stand_by_s)
            with interrupts.held():
                _switch(service, new, say)
                _drain(service, old, new, patience.drain_s, say)
        except BaseException as fault:
            scheduler.cancel(new.id)
            if not isinstance(fault, ToolkitError):
                raise
            waiting.Watch(new, say).until_gone(patience.drain_s)
            raise _refused(service, old, patience.drain_s, fault) from None
    return new


def serving(service: Service) -> JobFolder:
    """The job that clients are sent to. Raises `NotReady` if there is none."""
    endpoint = service.live_endpoint()
    if endpoint is None or service.stop_file.exists():
        why = "is being stopped" if endpoint else "has no live endpoint"
        remedy = "start the new bundle with: launch slurm submit"
        raise NotReady(Diagnostic(f"service {service.name}", why, remedy))
    return service.job(endpoint["job_id"])


def check_name(service: Service, order: Submission) -> None:
    """A service is known by its name: the new bundle must have it. Raises `BadInput`."""
    if order.service.name != service.name:
        what = f"is of the service {order.service.name}, not of {service.name}"
        remedy = f"render it with --set name={service.name}"
        raise BadInput(Diagnostic(str(order.bundle.folder), what, remedy))


def _stand_by(new: JobFolder, seconds: float) -> None:
    """Its supervisor asks for its health all the while."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        _check_lives(new)
        time.sleep(LOOK_S)


def _switch(service: Service, new: JobFolder, say: Say) -> None:
    """Tell the admitted job to publish itself, and see that it did."""
    (new.folder / "promote").touch()
    deadline = time.monotonic() + SWITCH_TIMEOUT_S
    while not _is_owner(service, new):
        _check_lives(new)
        if time.monotonic() > deadline:
            what = f"did not publish itself within {SWITCH_TIMEOUT_S:g} s"
            raise NotReady(Diagnostic(f"job {new.id}", what, f"its log is {new.log}"))
        time.sleep(LOOK_S)
    say(f"job {new.id}: clients are sent here")


def _drain(service: Service, old: JobFolder, new: JobFolder, timeout_s: float, say: Say) -> None:
    """Until the old job is no more, while the new one must hold."""
    watch, deadline = waiting.Watch(old, say), time.monotonic() + timeout_s
    while not watch.until_gone(LOOK_S):
        _check_lives(new)
        if not _is_owner(service, new):
            raise NotReady(Diagnostic(f"job {new.id}", "lost the endpoint"))
        if time.monotonic() > deadline:
            say(f"job {old.id}: still drains after {timeout_s:g} s")
            return


def _check_lives(new: JobFolder) -> None:
    run = new.run
    if run is None or run["state"] in ("stopping", "ended"):
        raise waiting.failure(new)


def _is_owner(service: Service, job: JobFolder) -> bool:
    return (service.endpoint or {}).get("job_id") == job.id


def _refused(service: Service, old: JobFolder, drain_s: float, fault: ToolkitError) -> ToolkitError:
    """Why the new job is not taken, and who serves: the old one, at the latest after its drain."""
    deadline = time.monotonic() + drain_s + BACK_MARGIN_S
    while not _is_owner(service, old) and not _has_ended(old) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    still = "still serves" if _is_owner(service, old) else "does not serve any more"
    what = f"is not replaced; job {old.id} {still}"
    return ChecksFailed([*fault.diagnostics, Diagnostic(f"service {service.name}", what)])


def _has_ended(job: JobFolder) -> bool:
    return (job.run or {}).get("state") == "ended"
