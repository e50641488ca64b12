"""The state folder of a service: its files, their names and formats, and how they are written.

This is all that jobs of a service, those who operate it and its clients know of each other. The
folder `STATE_FOLDER/SERVICE` is seen by all nodes and holds

    endpoint.json             where clients are sent; only the job that it names changes it
    stop                      an operator's request: end, and let no new job serve
    successor.lock            which job submits the next one, and which job that is
    job-ID.log                the output of a job's batch script
    jobs/ID/run.json          state, heartbeat, steps and outcome of a job, by its supervisor
    jobs/ID/events.jsonl      what happened in the job, a line each
    jobs/ID/endpoint.json     where the job itself serves, published or not
    jobs/ID/smoke.json        the result of its admission
    jobs/ID/preflight.json    the result of a job that only checked a node
    jobs/ID/submission.json   how an operator submitted the job
    jobs/ID/drain, promote    requests: finish what is in flight and end; publish a canary
    jobs/ID/STEP.log, STEP.srun.log   the output of a step, and of its srun

A JSON file is replaced by a rename: readers see the old or the new one, never a part.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

FORMAT = 1
HEARTBEAT_S = 10.0
LEASE_S = 60.0  # an endpoint whose job was silent for longer is dead
RESERVE_BYTES = 64 * 1024  # freed on a full disk, so that the record can still be written

# Files of a service and of its jobs.
ENDPOINT = "endpoint.json"
RUN, EVENTS, SUBMISSION = "run.json", "events.jsonl", "submission.json"
SMOKE, PREFLIGHT = "smoke.json", "preflight.json"
DRAIN, PROMOTE = "drain", "promote"

# Variables of a job's environment.
STATE_FOLDER = "SERVICE_STATE_FOLDER"
PREDECESSOR = "SERVICE_PREDECESSOR"  # the job that it is to succeed
CANARY = "SERVICE_CANARY"  # set: once admitted it waits for `promote`
FREE_PORTS = "SERVICE_FREE_PORTS"  # set: every step gets ports that are free
SUBMIT_OPTIONS = "SERVICE_SUBMIT_OPTIONS"  # JSON: sbatch options of its successors

Json = dict[str, Any]


# --- Times, files and the log ---------------------------------------------------------------------


def timestamp(seconds: float | None = None) -> str:
    """UTC to the millisecond, as all files hold times; now, or `seconds` since the epoch."""
    moment = datetime.fromtimestamp(time.time() if seconds is None else seconds, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> float:
    """Seconds since the epoch."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def write_json(path: Path, value: Any) -> None:
    """Readers see the old file or the new one, never a part."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def read_json(path: Path) -> Json | None:
    """`None` for a file that does not exist, or that a full disk left empty."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def log(text: str) -> None:
    with suppress(OSError):  # the job's own output may be on the full disk
        print(f"{timestamp()} {text}", file=sys.stderr, flush=True)


# --- Folders --------------------------------------------------------------------------------------


def state_root(configured: str | None = None, base: Path = Path()) -> Path:
    """Where services keep their state: as the environment or the site says, else below `base`."""
    return Path(os.environ.get(STATE_FOLDER) or configured or base / "runs")


def is_silent(run: Json, lease_s: float = LEASE_S) -> bool:
    """Whether the last heartbeat in a run.json is older than its lease."""
    return time.time() - parse_time(run["heartbeat"]) > lease_s


@dataclass(frozen=True)
class JobFolder:
    """The files of one job of a service; `None` for those that do not exist."""

    service: ServiceFolder
    id: str

    @property
    def path(self) -> Path:
        return self.service.path / "jobs" / self.id

    @property
    def run(self) -> Json | None:
        return read_json(self.path / RUN)

    @property
    def has_ended(self) -> bool:
        """Whether its supervisor wrote down an end."""
        return (self.run or {}).get("state") == "ended"

    @property
    def log(self) -> Path:
        """The output of its batch script, the supervisor's included."""
        return self.service.path / f"job-{self.id}.log"

    def step_log(self, step: str) -> Path:
        return self.path / f"{step}.log"


@dataclass(frozen=True)
class ServiceFolder:
    """The files of a service: a name below the folder that all nodes and clients see."""

    root: Path
    name: str

    @property
    def path(self) -> Path:
        return self.root / self.name

    @property
    def stop_file(self) -> Path:
        return self.path / "stop"

    @property
    def lock_file(self) -> Path:
        return self.path / "successor.lock"

    @property
    def endpoint_file(self) -> Path:
        return self.path / ENDPOINT

    def job(self, job_id: str) -> JobFolder:
        return JobFolder(self, job_id)

    @property
    def jobs(self) -> list[JobFolder]:
        """Those that serve, in the order of their submission; not those of a preflight alone."""
        try:
            names = [entry.name for entry in os.scandir(self.path / "jobs")]
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = [self.job(name) for name in sorted(filter(str.isdecimal, names), key=int)]
        return [
            job for job in found if any((job.path / name).exists() for name in (RUN, SUBMISSION))
        ]

    @property
    def endpoint(self) -> Json | None:
        """Where clients are sent, if anywhere."""
        return read_json(self.endpoint_file)

    @property
    def owner(self) -> str | None:
        """The id of the job that clients are sent to."""
        content = self.endpoint
        return None if content is None else str(content["job_id"])

    def live_endpoint(self) -> Json | None:
        """The endpoint, unless its time is over or its job has ended or fallen silent."""
        content = self.endpoint
        if content is None or parse_time(content["until"]) < time.time():
            return None
        run = read_json(self.path / content["heartbeat"])
        if run is None or run["state"] == "ended" or is_silent(run, content["lease_s"]):
            return None
        return content

    def withdraw_endpoint(self, job_id: str) -> None:
        """Remove the endpoint of that job.

        It is renamed before it is read again, since a successor may replace it at any moment.
        """
        if self.owner != job_id:
            return
        withdrawn = self.path / f".endpoint.{job_id}"
        with suppress(FileNotFoundError):
            self.endpoint_file.replace(withdrawn)
            if (read_json(withdrawn) or {}).get("job_id") != job_id:
                with suppress(FileExistsError):  # a still newer one
                    os.link(withdrawn, self.endpoint_file)
            withdrawn.unlink()


class SuccessorLock:
    """The right of `owner`, a job that serves, to submit its successor, one at a time.

    `is_alive` tells whether a job waits or runs, and `None` where Slurm does not say.
    """

    def __init__(
        self, service: ServiceFolder, owner: str, is_alive: Callable[[str], bool | None]
    ) -> None:
        self._path = service.lock_file
        self._owner = owner
        self._is_alive = is_alive
        self._successor: str | None = None

    @property
    def content(self) -> Json:
        """`owner` and `successor` as they are now; empty where nobody holds the lock."""
        return read_json(self._path) or {}

    def acquire(self) -> bool:
        """Whether the lock is now this owner's. That of a job that is gone is broken."""
        held = self.content
        if held and self._is_alive(str(held["successor"] or held["owner"])) is False:
            self._path.unlink(missing_ok=True)
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            return False
        self.name_successor(None)
        return True

    def name_successor(self, job_id: str | None) -> None:
        self._successor = job_id
        content = {"owner": self._owner, "successor": job_id, "since": timestamp()}
        write_json(self._path, content)

    def release(self) -> None:
        """A successor that took over has removed it already, and may have acquired it anew."""
        held = self.content
        if (held.get("owner"), held.get("successor")) == (self._owner, self._successor):
            self._path.unlink(missing_ok=True)

    def release_as_successor(self) -> None:
        """The owner is itself the successor that the lock names, and now serves."""
        if self.content.get("successor") == self._owner:
            self._path.unlink(missing_ok=True)


class Record:
    """run.json and events.jsonl of this job. A disk that is full never ends the service."""

    def __init__(self, job: JobFolder, first: Json) -> None:
        self.job = job
        self.run: Json = first
        self._reserve = job.path / "reserve"
        self._written = 0.0
        job.path.mkdir(parents=True, exist_ok=True)
        if (earlier := job.run) is not None:  # the job was requeued
            self.run["restarts"] = earlier.get("restarts", 0) + 1
            (job.path / RUN).replace(job.path / f"run-{earlier.get('restarts', 0)}.json")
            for request in (DRAIN, PROMOTE):
                (job.path / request).unlink(missing_ok=True)
        self.write(lambda: self._reserve.write_bytes(b"\0" * RESERVE_BYTES))
        self.update()

    def update(self, **values: Any) -> None:
        self.run.update(values, heartbeat=timestamp())
        self._written = time.monotonic()
        self.write(lambda: write_json(self.job.path / RUN, self.run))

    def heartbeat(self) -> None:
        if time.monotonic() - self._written > HEARTBEAT_S:
            self.update()

    def event(self, name: str, **values: Any) -> None:
        log(" ".join([name, *(f"{key}={value}" for key, value in values.items())]))
        line = json.dumps({"time": timestamp(), "event": name, **values}) + "\n"
        self.write(lambda: self._append(line))

    def _append(self, line: str) -> None:
        with (self.job.path / EVENTS).open("a", encoding="utf-8") as file:
            file.write(line)

    def write(self, action: Callable[[], object]) -> None:
        """Do a write; on a full disk into the space of the reserve, and else only log it."""
        try:
            action()
        except OSError as fault:
            if fault.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            log(f"{self.job.path}: {fault.strerror}")
            if self._reserve.exists():
                self._reserve.unlink()
                self.write(action)

    def close(self) -> None:
        self._reserve.unlink(missing_ok=True)
