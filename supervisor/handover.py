"""The handover between jobs of a service: the endpoint, and the job that takes it over."""

from __future__ import annotations

import json
import os
import time

from .slurm import Allocation, Cluster
from .spec import JobExit, Spec
from .state import (
    CANARY,
    ENDPOINT,
    FORMAT,
    LEASE_S,
    PREDECESSOR,
    RUN,
    SUBMIT_OPTIONS,
    Json,
    Record,
    ServiceFolder,
    SuccessorLock,
    parse_time,
    timestamp,
    write_json,
)
from .steps import Step

SUCCESSOR_PERIOD_S = 5.0  # between polls of the queue for the successor


class Successor:
    """Submits the job that takes over, one at a time, and no more often than allowed."""

    def __init__(self, spec: Spec, cluster: Cluster, record: Record) -> None:
        self._spec = spec
        self._cluster = cluster
        self._record = record
        self._lock = SuccessorLock(spec.service, cluster.job_id, cluster.is_alive)
        self._next_poll = 0.0
        self._has_given_up = False
        self._job_id: str | None = None

    def release_lock(self) -> None:
        """This job was the successor that the lock names, and now serves."""
        self._lock.release_as_successor()

    def prepare(self) -> None:
        """Submit one if there is none and one is allowed, else see whether it still lives."""
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
        failed = recent_failures(self._spec.service, time.time() - window_s)
        if self._job_id is not None or not self._spec.limits.restart:
            return
        if len(failed) >= attempts:
            self._give_up(f"{len(failed)} jobs failed in {window_s:.0f} s: {', '.join(failed)}")
        else:
            self._submit()

    def _submit(self) -> None:
        self._next_poll = time.monotonic() + SUCCESSOR_PERIOD_S
        if not self._lock.acquire():
            return
        script = self._spec.folder / "serve.sbatch"
        options = json.loads(os.environ.get(SUBMIT_OPTIONS) or "[]")
        environment = {PREDECESSOR: self._cluster.job_id, CANARY: ""}
        environment["BUNDLE"] = str(self._spec.bundle)
        try:
            job_id = self._cluster.submit(script, options, environment)
        except OSError as fault:
            self._lock.release()
            self._give_up(str(fault))
            return
        self._lock.name_successor(job_id)
        self._job_id = job_id
        successors = [*self._record.run["successors"], job_id]
        self._record.update(successor=job_id, successors=successors)
        self._record.event("successor_submitted", job_id=job_id)

    def _check(self, successor: str) -> None:
        """Its record is read often, the queue rarely."""
        run = self._spec.service.job(successor).run or {}
        ended = run.get("state") == "ended"
        if not ended and time.monotonic() > self._next_poll:
            self._next_poll = time.monotonic() + SUCCESSOR_PERIOD_S
            ended = self._cluster.is_alive(successor) is False
        if ended:
            why = run.get("why") or "gone from the queue"
            self._record.event("successor_failed", job_id=successor, why=why)
            self._lock.release()
            self._job_id = None
            self._next_poll = time.monotonic() + self._spec.limits.retry_s
            self._record.update(successor=None)

    def _give_up(self, why: str) -> None:
        self._has_given_up = True
        self._record.event("gave_up", why=why)


def recent_failures(service: ServiceFolder, since: float) -> list[str]:
    """Ids of the jobs that ended with an exit code after that time."""
    runs = [job.run or {} for job in service.jobs]
    ended = [run for run in runs if run.get("ended") and parse_time(run["ended"]) > since]
    return sorted(run["job_id"] for run in ended if run.get("exit_code"))


class Publication:
    """The endpoint as this job writes it: where the service is, until when, in which state."""

    def __init__(self, spec: Spec, allocation: Allocation, record: Record) -> None:
        self._spec = spec
        self._allocation = allocation
        self._cluster = allocation.cluster
        self._record = record
        self._draft = record.job.path / ENDPOINT  # of this job, also before its admission

    @property
    def owner(self) -> str | None:
        """The job that clients are sent to."""
        return self._spec.service.owner

    def draft(self, frontend: Step) -> None:
        write_json(self._draft, self._content(frontend))

    def publish(self, frontend: Step) -> None:
        """Taken from a predecessor by one rename: clients always find one of the two."""
        write_json(self._spec.service.endpoint_file, self._content(frontend))

    def withdraw(self) -> None:
        self._spec.service.withdraw_endpoint(self._cluster.job_id)

    def end(self) -> None:
        self.withdraw()
        self._draft.unlink(missing_ok=True)

    def is_orphaned(self) -> bool:
        """Whether the job that clients are sent to can no longer answer, or there is none."""
        content = self._spec.service.live_endpoint()
        return content is None or self._cluster.is_alive(content["job_id"]) is False

    def refuse_second(self) -> None:
        """Raises `JobExit` where a live job serves that this one does not succeed."""
        owner = self.owner
        if owner is None or owner in (self._cluster.job_id, self._record.run["predecessor"]):
            return
        if not self.is_orphaned():
            what = f"job {owner} serves {self._spec.name}; stop or replace it"
            raise JobExit("not_admitted", what)
        self._close_record_of(owner)
        self._record.event("dead_endpoint", job_id=owner)

    def _close_record_of(self, dead: str) -> None:
        job = self._spec.service.job(dead)
        run = job.run
        if run is not None and run["state"] != "ended":
            outcome = "node_lost" if self._cluster.lost_nodes(run["nodes"]) else "killed"
            why = f"found dead by job {self._cluster.job_id}"
            write_json(job.path / RUN, {**run, "state": "ended", "outcome": outcome, "why": why})

    def _content(self, frontend: Step) -> Json:
        urls = {
            name: f"{'grpc' if name == 'grpc' else 'http'}://{frontend.address}:{port}"
            for name, port in frontend.ports.items()
        }
        return {
            "format": FORMAT,
            "service": self._spec.name,
            "generation": self._record.run["generation"],
            "job_id": self._cluster.job_id,
            "step": frontend.step_id,
            "host": frontend.address,
            "ports": frontend.ports,
            "urls": urls,
            "model": self._spec.model,
            "bundle_digest": self._record.run["bundle_digest"],
            "since": timestamp(),
            "until": timestamp(self._allocation.until),
            "state": "serving",
            "heartbeat": f"jobs/{self._cluster.job_id}/{RUN}",
            "lease_s": LEASE_S,
        }
