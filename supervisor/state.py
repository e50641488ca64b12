"""The state folder of a service: its files, their names and formats, and how they are written.

This is all that jobs of a service, those who operate it and its clients know of each other. The
folder `STATE_FOLDER/SERVICE` is seen by all nodes and holds

    endpoint.json             where clients are sent; only the job that it names changes it
    stop                      an operator's request: end, and let no new job serve
    successor.lock            which job submits the next one, and which job that is
    job-ID.log                the output of a job's batch script
    bundles/DIGEST/           what its jobs run: private copies, verified when they were submitted
    jobs/ID/run.json          state, heartbeat, steps and outcome of a job, by its supervisor
    jobs/ID/events.jsonl      what happened in the job, a line each
    jobs/ID/endpoint.json     where the job itself serves, published or not
    jobs/ID/smoke.json        the result of its admission
    jobs/ID/preflight.json    the result of a job that only checked a node
    jobs/ID/submission.json   how an operator submitted the job
    jobs/ID/drain, promote    requests: finish what is in flight and end; publish a canary
    jobs/ID/STEP.log, STEP.srun.log   the output of a step, and of its srun

A JSON file is replaced by a rename: readers see the old or the new one, never a part. Whoever reads
one may still find anything there, since folders are shared and disks fill: a record that is not as
it was written is damaged, and counts as missing.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

FORMAT = 1
HEARTBEAT_S = 10.0
LEASE_S = 60.0  # an endpoint whose job was silent for longer is dead
# Of a JSON file and of its lists and objects: none that was written here comes near.
RECORD_BYTES, NESTED = 4 << 20, 200_000

# Files of a service and of its jobs.
ENDPOINT = "endpoint.json"
RUN, EVENTS, SUBMISSION = "run.json", "events.jsonl", "submission.json"
SMOKE, PREFLIGHT, NETWORK = "smoke.json", "preflight.json", "network.json"
DRAIN, PROMOTE = "drain", "promote"

# Variables of a job's environment.
STATE_FOLDER = "SERVICE_STATE_FOLDER"
PREDECESSOR = "SERVICE_PREDECESSOR"  # the job that it is to succeed
CANARY = "SERVICE_CANARY"  # set: once admitted it waits for `promote`
FREE_PORTS = "SERVICE_FREE_PORTS"  # set: every step gets ports that are free
BUNDLE_DIGEST = "SERVICE_BUNDLE_DIGEST"  # of the manifest that was verified when it was submitted
SUBMIT_OPTIONS = "SERVICE_SUBMIT_OPTIONS"  # JSON: sbatch options of its successors
# What a file system says that has no hard links, or none that a user may make.
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
# Faults of a path that leads to nothing, the last one a link to itself.
NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

Json = dict[str, Any]
Fits = Callable[[Any], bool]
Fields = Mapping[str, tuple[Fits, Any]]


# --- Times, files and the log ---------------------------------------------------------------------


def timestamp(seconds: float | None = None) -> str:
    """UTC to the millisecond, as all files hold times; now, or `seconds` since the epoch."""
    moment = datetime.fromtimestamp(time.time() if seconds is None else seconds, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> float:
    """Seconds since the epoch. Raises `ValueError` for a time that names no zone."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return moment.timestamp()


def write_json(path: Path, value: Any) -> None:
    """Readers see the old file or the new one, never a part.

    A folder that was removed is made again, and one that is in the file's place is set aside.
    """
    with _whole_file(path, value) as new:
        set_aside(path, is_damaged=path.is_dir)
        new.replace(path)


def create_json(path: Path, value: Any) -> None:
    """A file that is whole once it is there. Raises `FileExistsError` where there is one."""
    with _whole_file(path, value) as new:
        name_new(new, path)


@contextmanager
def _whole_file(path: Path, value: Any) -> Iterator[Path]:
    """A path in the same folder, under a name that no other writer uses."""
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    text = json.dumps(value, indent=1) + "\n"
    try:
        try:
            new.write_text(text, encoding="utf-8")
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(text, encoding="utf-8")
        yield new
    finally:
        with suppress(OSError):
            new.unlink()


def name_new(whole: Path, path: Path) -> None:
    """Give a whole file that name. Raises `FileExistsError` where something has it.

    Where there are no hard links the name is taken first, by an empty file, and the whole one then
    replaces it, unless somebody gave the name to another file meanwhile: one of two is refused.
    """
    try:
        os.link(whole, path)
    except OSError as fault:
        if fault.errno not in NO_LINKS:
            raise
        with path.open("x") as taken:
            own = os.fstat(taken.fileno())
        try:
            if not _is_still(own, path):
                raise FileExistsError(errno.EEXIST, "taken over meanwhile", str(path)) from None
            whole.replace(path)
        except OSError:
            if _is_still(own, path):
                path.unlink(missing_ok=True)
            raise


def _is_still(file: os.stat_result, path: Path) -> bool:
    try:
        return os.path.samestat(path.lstat(), file)
    except FileNotFoundError:
        return False


def name_of_damaged(path: Path) -> Path:
    return path.with_name(f".{path.name}.damaged-{uuid.uuid4().hex[:8]}")


def set_aside(path: Path, is_damaged: Callable[[], bool]) -> None:
    """Give what is damaged another name, for whoever wants to know what it was."""
    with suppress(FileNotFoundError):
        if is_damaged():
            path.rename(name_of_damaged(path))


def is_there(path: Path) -> bool:
    """Whether a file exists; one that cannot be looked at counts as missing."""
    try:
        return path.exists()
    except OSError:
        return False


def read_json(path: Path, most_bytes: int = RECORD_BYTES, most_nested: int = NESTED) -> Json | None:
    """`None` for what does not exist or is no file that holds a JSON object.

    Raises `OSError` where it cannot be read, which may pass.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > most_bytes:
            return None
        return parse_json(path.read_bytes(), most_nested)
    except ValueError:
        return None
    except OSError as fault:
        if fault.errno in NO_FILE:
            return None
        raise


def parse_json(data: bytes, most_nested: int) -> Json:
    """A JSON object. Raises `ValueError`, before it takes far more memory than its text."""
    if data.count(b"[") + data.count(b"{") > most_nested:
        raise ValueError("more lists and objects than any such file needs")
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("too deep") from None
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def json_lines(output: str) -> list[Json]:
    """The objects that a command of this package printed, among whatever else a node prints."""
    found = []
    for line in output.splitlines():
        with suppress(ValueError):
            found.append(parse_json(line.encode(), NESTED))
    return found


def log(text: str) -> None:
    """One line, with what a terminal could act upon written out: much is text of servers."""
    shown = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
    with suppress(OSError):  # the job's own output may be on the full disk
        print(f"{timestamp()} {shown}", file=sys.stderr, flush=True)


# --- What records hold ----------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_address(value: Any) -> bool:
    """Of a server as a job publishes it: nothing that a client would send beside, such as a key."""
    return isinstance(value, str) and bool(re.fullmatch(r"[a-z]+://[\w.:\[\]%-]+/?", value))


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch("[0-9]{1,18}", value))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _is_time(value: Any) -> bool:
    try:
        return isinstance(value, str) and parse_time(value) >= 0
    except (ValueError, OverflowError):
        return False


def _or_null(fits: Fits) -> Fits:
    return lambda value: value is None or fits(value)


def _list_of(fits: Fits) -> Fits:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _map_to(fits: Fits) -> Fits:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


# Keys that readers use: what each must be, and what it is where a record lacks it; `...`: a record
# without it is damaged.
_TEXTS = ("outcome", "why", "bundle", "bundle_digest")
_MOMENTS = ("until", "ready", "admitted", "published", "ended")
_JOBS = ("successor", "predecessor")
RUN_FIELDS: Fields = {
    "state": (_is_text, ...),
    "heartbeat": (_is_time, ...),
    **{name: (_or_null(_is_text), None) for name in _TEXTS},
    **{name: (_or_null(_is_time), None) for name in _MOMENTS},
    **{name: (_or_null(_is_id), None) for name in _JOBS},
    "generation": (_is_count, 0),
    "exit_code": (_or_null(_is_count), None),
    "nodes": (_list_of(_is_text), ()),
    "steps": (_list_of(lambda row: isinstance(row, dict) and _is_text(row.get("name"))), ()),
    "successors": (_list_of(_is_id), ()),
}
ENDPOINT_FIELDS: Fields = {
    "job_id": (_is_id, ...),
    "until": (_or_null(_is_time), None),
    "lease_s": (lambda s: _is_count(s) or (isinstance(s, float) and math.isfinite(s)), LEASE_S),
    "host": (_is_text, ""),
    "model": (_is_text, ""),
    "ports": (_map_to(_is_count), {}),
    "urls": (_map_to(_is_address), {}),
}
LOCK_FIELDS: Fields = {"owner": (_is_id, ...), "successor": (_or_null(_is_id), None)}


def read_record(path: Path, fields: Fields) -> Json | None:
    """A JSON file with its missing keys filled in; `None` where it is missing or damaged."""
    value = read_json(path)
    if value is None:
        return None
    for key, (fits, default) in fields.items():
        if not fits(value[key]) if key in value else default is ...:
            return None
    return {**{key: default for key, (_, default) in fields.items()}, **value}


# --- Folders --------------------------------------------------------------------------------------


def state_root(configured: str | None = None, base: Path = Path()) -> Path:
    """Where services keep their state: as the environment or the site says, else below `base`."""
    return Path(os.environ.get(STATE_FOLDER) or configured or base / "runs")


def is_silent(run: Json, lease_s: float = LEASE_S) -> bool:
    """Whether the last heartbeat in a run.json is older than its lease."""
    return time.time() - parse_time(run["heartbeat"]) > lease_s


@dataclass(frozen=True)
class JobFolder:
    """The files of one job of a service; `None` for missing ones."""

    service: ServiceFolder
    id: str

    @property
    def path(self) -> Path:
        return self.service.path / "jobs" / self.id

    @property
    def is_of_service(self) -> bool:
        """Not one of a preflight alone; whose folder cannot be looked at may be of any kind."""
        try:
            return any((self.path / name).exists() for name in (RUN, SUBMISSION))
        except OSError:
            return True

    @property
    def run(self) -> Json | None:
        return read_record(self.path / RUN, RUN_FIELDS)

    @property
    def damaged(self) -> Path | None:
        """Its run.json, where there is one that says nothing."""
        path = self.path / RUN
        return path if os.path.lexists(path) and self.run is None else None

    @property
    def has_ended(self) -> bool:
        """Whether its supervisor wrote down an end."""
        return (self.run or {}).get("state") == "ended"

    def says_it_lives(self, lease_s: float = LEASE_S) -> bool:
        """Whether its supervisor wrote a heartbeat of late, and no end."""
        run = self.run
        return run is not None and run["state"] != "ended" and not is_silent(run, lease_s)

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
        """The jobs that serve, in the order of submission, without preflight jobs."""
        try:
            names = [entry.name for entry in os.scandir(self.path / "jobs")]
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = [self.job(name) for name in sorted(filter(_is_id, names), key=int)]
        return [job for job in found if job.is_of_service]

    @property
    def endpoint(self) -> Json | None:
        return read_record(self.endpoint_file, ENDPOINT_FIELDS)

    @property
    def owner(self) -> str | None:
        """The id of the job that clients are sent to."""
        content = self.endpoint
        return None if content is None else str(content["job_id"])

    def live_endpoint(self) -> Json | None:
        """The endpoint, unless its time is over or its job has ended or fallen silent."""
        content = self.endpoint
        if content is None or not content["until"] or parse_time(content["until"]) < time.time():
            return None
        return content if self.job(content["job_id"]).says_it_lives(content["lease_s"]) else None

    def withdraw_endpoint(self, job_id: str) -> None:
        """Remove the endpoint of that job. Raises `OSError`.

        It is renamed before it is read again, since a successor may replace it at any moment.
        """
        if self.owner != job_id:
            return
        withdrawn = self.path / f".endpoint.{job_id}"
        with suppress(FileNotFoundError):
            self.endpoint_file.replace(withdrawn)
            if (read_json(withdrawn) or {}).get("job_id") != job_id:
                with suppress(FileExistsError):  # a still newer one
                    name_new(withdrawn, self.endpoint_file)
            withdrawn.unlink()
