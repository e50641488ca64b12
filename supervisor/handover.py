"""The handover between jobs of a service: the endpoint, and the job that takes it over."""

from __future__ import annotations

import functools
import json
import os
import time
from contextlib import suppress

from . import state
from .allocation import Allocation
from .lock import SuccessorLock
from .record import Record
from .slurm import ALIVE, SCRIPT, Cluster
from .spec import JobExit, Spec
from .state import Json, ServiceFolder
from .steps import Step

SUCCESSOR_PERIOD_S = 5.0  # between polls of the queue for the successor
MAX_SUBMIT_PERIOD_S = 60.0  # between tries of a submission that fails; each waits twice as long
LAST_SUBMIT_S = 120.0  # for a job that ends to submit the next one
RESTART_POLL_S = 0.2
LOCK = "successor.lock"
SERVES = ("admitted", "serving")  # states of a job that may have the endpoint


class OtherJobs:
    """Tells whether other jobs of the service live, by what Slurm shows and what they write."""

    def __init__(self, service: ServiceFolder, cluster: Cluster) -> None:
        self._service = service
        self._cluster = cluster
        # The heartbeat that a job had when Slurm first showed its end.
        self._last_heartbeats: dict[str, str] = {}

    def may_live(self, job_id: str) -> bool | None:
        """Whether a job waits or runs; `None` if that is unknown.

        Slurm's word counts unless the job itself disproves it: by a fresh heartbeat where Slurm has
        no such job (it hides those of another user, `PrivateData`), by a new one where Slurm shows
        its end. A job that is long silent may be another by now, of the same number.
        """
        shown, job = self._cluster.job_state(job_id), self._service.job(job_id)
        is_alive = None if shown is None else shown in ALIVE
        with suppress(OSError):  # a record that cannot be read says nothing
            if (run := job.run) is None:
                return is_alive
            if is_alive and state.is_silent(run) and self._cluster.is_another_program(job_id):
                return False
            if is_alive:
                self._last_heartbeats.pop(job_id, None)
            elif is_alive is False and job.says_it_lives():
                last = self._last_heartbeats.setdefault(job_id, run["heartbeat"])
                return False if shown and last == run["heartbeat"] else None
        return is_alive


class Successor:
    """Submits the job that takes over, one at a time, and no more often than allowed."""

    def __init__(self, spec: Spec, cluster: Cluster, record: Record) -> None:
        self._spec = spec
        self._cluster = cluster
        self._record = record
        self._options: list[str] = json.loads(os.environ.get(state.SUBMIT_OPTIONS) or "[]")
        self._others = OtherJobs(spec.service, cluster)
        self._lock = SuccessorLock(spec.service, cluster.job_id, self._others.may_live)
        self._next_poll = 0.0
        self._has_given_up = False
        self._is_blocked = False
        self._refusals = 0  # of submissions in a row
        self._job_id: str | None = None

    def release_lock(self) -> None:
        """This job was the successor that the lock names, and now serves."""
        self._record.attempt(LOCK, self._lock.release_as_successor, None)

    def prepare(self) -> None:
        """Submit a successor if it is missing and allowed, else check that it still lives."""
        tried = len(self._record.run["successors"])
        if self._job_id is not None:
            self._check(self._job_id)
        elif self._has_given_up or time.monotonic() < self._next_poll:
            return
        elif tried >= self._spec.limits.attempts:
            self._give_up(f"{tried} successors failed")
        else:
            self._submit()

    def restart(self) -> None:
        """After a failure of this job: a new one, unless jobs of this service fail in a row."""
        window_s, attempts = self._spec.limits.crash_window_s, self._spec.limits.attempts
        if self._job_id is not None or not self._spec.limits.restart:
            return
        count = functools.partial(recent_failures, self._spec.service, window_s)
        none: list[str] = []
        failed = self._record.attempt("jobs", count, none)
        if len(failed) >= attempts:
            self._give_up(f"{len(failed)} jobs failed in {window_s:.0f} s: {', '.join(failed)}")
            return
        deadline = time.monotonic() + LAST_SUBMIT_S
        while self._job_id is None and time.monotonic() < deadline and not self._is_blocked:
            if state.is_there(self._spec.service.stop_file):
                return
            self._record.heartbeat()
            if time.monotonic() >= self._next_poll:
                self._submit()
            time.sleep(RESTART_POLL_S)

    def _submit(self) -> None:
        self._next_poll = time.monotonic() + SUCCESSOR_PERIOD_S
        if not self._record.attempt(LOCK, self._lock.acquire, False):
            if not self._record.attempt(LOCK, lambda: self._lock.is_empty, False):
                self._tell_blocked()
            return
        self._is_blocked = False
        script = self._spec.folder / SCRIPT
        environment = {state.PREDECESSOR: self._cluster.job_id, state.CANARY: ""}
        environment["BUNDLE"] = str(self._spec.bundle)
        # Whatever folder it starts in.
        environment[state.STATE_FOLDER] = str(self._spec.service.root)
        try:
            # One that seemed to fail may have gone through: whoever is in the queue then is it.
            found = self._cluster.newer_job(script) if self._refusals else None
            job_id = found or self._cluster.submit(script, self._options, environment)
        except OSError as fault:
            self._record.attempt(LOCK, self._lock.release, None)
            # A controller may be away for minutes: only the end of the job ends the tries.
            wait_s = min(SUCCESSOR_PERIOD_S * 2**self._refusals, MAX_SUBMIT_PERIOD_S)
            self._refusals += 1
            self._next_poll = time.monotonic() + wait_s
            self._record.event("submission_failed", why=str(fault), next_try_s=wait_s)
            return
        self._refusals = 0
        self._record.attempt(LOCK, lambda: self._lock.name_successor(job_id), None)
        self._job_id = job_id
        successors = [*self._record.run["successors"], job_id]
        self._record.update(successor=job_id, successors=successors)
        self._record.event("successor_submitted", job_id=job_id)

    def _tell_blocked(self) -> None:
        """Once: whoever holds the lock hands over, or has forgotten to release it."""
        if not self._is_blocked:
            unknown: Json = {}
            held = self._record.attempt(LOCK, lambda: self._lock.content, unknown)
            self._record.event("successor_blocked", lock=str(self._spec.service.lock_file), by=held)
        self._is_blocked = True

    def _check(self, successor: str) -> None:
        """Its record is read often, the queue rarely."""
        job = self._spec.service.job(successor)
        run = self._record.attempt(f"job {successor}", lambda: job.run, None) or {}
        ended = run.get("state") == "ended"
        if not ended and time.monotonic() > self._next_poll:
            self._next_poll = time.monotonic() + SUCCESSOR_PERIOD_S
            ended = self._others.may_live(successor) is False
        if ended:
            why = run.get("why") or "gone from the queue"
            self._record.event("successor_failed", job_id=successor, why=why)
            self._record.attempt(LOCK, self._lock.release, None)
            self._job_id = None
            self._next_poll = time.monotonic() + self._spec.limits.retry_s
            self._record.update(successor=None)

    def _give_up(self, why: str) -> None:
        self._has_given_up = True
        self._record.event("gave_up", why=why)


def recent_failures(service: ServiceFolder, window_s: float) -> list[str]:
    """Ids of the jobs that ended with an exit code so little ago, or ahead by a node's clock."""
    runs = {job.id: job.run or {} for job in service.jobs}
    ended = {one: run for one, run in runs.items() if run.get("ended") and run["exit_code"]}
    now = time.time()
    ages_s = {one: abs(now - state.parse_time(run["ended"])) for one, run in ended.items()}
    return sorted(one for one, age_s in ages_s.items() if age_s < window_s)


class Publication:
    """The endpoint as this job writes it: where the service is, until when, in which state.

    All methods but `end` and `withdraw` may raise `OSError`.
    """

    def __init__(self, spec: Spec, allocation: Allocation, record: Record) -> None:
        self._spec = spec
        self._allocation = allocation
        self._cluster = allocation.cluster
        self._record = record
        self._draft = record.job.path / state.ENDPOINT  # of this job, also before its admission
        self._others = OtherJobs(spec.service, self._cluster)

    @property
    def owner(self) -> str | None:
        """The job that clients are sent to."""
        return self._spec.service.owner

    def begin(self) -> None:
        """Withdraw the endpoint that an earlier run of a requeued job left behind.

        Raises `JobExit` where a live job serves that this one does not succeed.
        """
        self._spec.service.withdraw_endpoint(self._cluster.job_id)
        self._draft.unlink(missing_ok=True)
        self.refuse_second()

    def draft(self, frontend: Step) -> None:
        self._record.write(state.ENDPOINT, self._content(frontend))

    def publish(self, frontend: Step) -> bool:
        """Taken from a predecessor by one rename: clients always find one of the two.

        The predecessor reads in the record that this job serves.
        """
        self._record.save()
        self.refuse_second()  # last, as another job that starts may write at the same time
        state.write_json(self._spec.service.endpoint_file, self._content(frontend))
        return True

    def owner_or_own(self, frontend: Step) -> str:
        """The job that clients are sent to; an endpoint that is lost, damaged, of a job that does
        not serve, or says what this job does not, is written again.

        Not over a newer job, which serves already: it writes its own.
        """
        found, own = self._spec.service.endpoint, self._content(frontend)
        owner = str(found["job_id"]) if found else None
        if owner == self._cluster.job_id:
            is_whole = {**(found or {}), "since": own["since"]} == own
            server = owner if is_whole else None
        elif owner is not None and self._answers(owner):
            server = owner
        else:
            server = self._newer_server(dead=owner)
        if server is None:
            state.write_json(self._spec.service.endpoint_file, own)
            self._record.update()  # a job that has it as well sees that this one lives
            self._record.event("endpoint_restored")
        return server or self._cluster.job_id

    def _newer_server(self, dead: str | None = None) -> str | None:
        own, serving = int(self._cluster.job_id), []
        for job in self._spec.service.jobs:
            if int(job.id) > own and job.id != dead:
                with suppress(OSError):  # one that cannot be read counts as none
                    serving += [job.id] if (job.run or {}).get("state") == "serving" else []
        return next((job for job in serving if self._others.may_live(job) is not False), None)

    def withdraw(self) -> None:
        withdraw = self._spec.service.withdraw_endpoint
        self._record.attempt(state.ENDPOINT, lambda: withdraw(self._cluster.job_id), None)

    def end(self) -> None:
        self.withdraw()
        self._record.attempt("draft", lambda: self._draft.unlink(missing_ok=True), None)

    def is_with_another(self) -> bool:
        owner = self.owner
        return owner is not None and owner != self._cluster.job_id and self._answers(owner)

    def _answers(self, owner: str) -> bool:
        return not self._is_dead(owner) and self._may_serve(owner)

    def is_left(self) -> bool:
        """Whether no other job serves the clients, nor is about to write that it does."""
        return not self.is_with_another() and self._newer_server(dead=self.owner) is None

    def _may_serve(self, owner: str) -> bool:
        """Not while it starts, drains or stops, as its own record says.

        By a hand or an old copy clients are sent to such a one. A damaged record says nothing.
        """
        job = self._spec.service.job(owner)
        run = job.run
        return os.path.lexists(job.path / state.RUN) if run is None else run["state"] in SERVES

    def is_orphaned(self) -> bool:
        """Whether clients are sent to no job, or to a job that can no longer answer."""
        owner = self.owner
        return owner is None or self._is_dead(owner)

    def _is_dead(self, owner: str) -> bool:
        """Slurm knows best: by the clock of this node a job of another one may seem silent. Only
        where Slurm does not say, the times in the records decide.
        """
        job = self._spec.service.job(owner)
        if not job.path.exists():
            return True  # a job of something else
        is_alive = self._others.may_live(owner)
        if is_alive is None:
            return self._spec.service.live_endpoint() is None
        return not is_alive or job.has_ended

    def refuse_second(self) -> None:
        """Raises `JobExit` where a live job serves that this one does not succeed.

        One that has served itself has handed over to it.
        """
        owner = self.owner
        if owner is None or owner in (self._cluster.job_id, self._record.run["predecessor"]):
            return
        is_orphaned = self.is_orphaned()
        if not is_orphaned and self._may_serve(owner):
            if self._record.run["published"]:
                raise JobExit("handed_over", f"to job {owner}")
            what = f"job {owner} serves {self._spec.name}; stop or replace it"
            raise JobExit("not_admitted", what)
        if is_orphaned:  # one that lives writes its end itself
            self._close_record_of(owner)
            self._record.event("dead_endpoint", job_id=owner)

    def _close_record_of(self, dead: str) -> None:
        job = self._spec.service.job(dead)
        run = job.run
        if run is not None and run["state"] != "ended":
            outcome = "node_lost" if self._cluster.lost_nodes(run["nodes"]) else "killed"
            why = f"found dead by job {self._cluster.job_id}"
            closed = {**run, "state": "ended", "outcome": outcome, "why": why}
            path = job.path / state.RUN
            self._record.attempt(f"job {dead}", lambda: state.write_json(path, closed), None)

    def _content(self, frontend: Step) -> Json:
        urls = {
            name: f"{'grpc' if name == 'grpc' else 'http'}://{frontend.address}:{port}"
            for name, port in frontend.ports.items()
        }
        return {
            "format": state.FORMAT,
            "service": self._spec.name,
            "generation": self._record.run["generation"],
            "job_id": self._cluster.job_id,
            "step": frontend.step_id,
            "host": frontend.address,
            "ports": frontend.ports,
            "urls": urls,
            "model": self._spec.model,
            "bundle_digest": self._record.run["bundle_digest"],
            "since": state.timestamp(),
            "until": state.timestamp(self._allocation.until),
            "state": "serving",
            "heartbeat": f"jobs/{self._cluster.job_id}/{state.RUN}",
            "lease_s": state.LEASE_S,
        }
