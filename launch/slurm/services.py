"""The services in state folders: which ones this user submitted, and what each does now."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from builder.bundle import MANIFEST
from builder.credentials import mask
from builder.diagnostics import Diagnostic, nearest, one_line, printable
from builder.errors import BadInput
from builder.files import reason
from supervisor.state import (
    STATE_FOLDER,
    JobFolder,
    ServiceFolder,
    is_silent,
    parse_time,
    read_json,
    state_root,
    write_json,
)

from .. import diagnosis_text
from . import description
from .jobs import diagnosis, of_service
from .scheduler import SlurmJob

OWN_FOLDER = Path("trtllm-deployment-toolkit", "slurm")
FOLDER = "folder"  # the key of a file: the path of the service's folder


def remember(service: ServiceFolder) -> None:
    """Records that a service was submitted now. Raises `OSError`."""
    digest = hashlib.sha256(os.fsencode(service.path)).hexdigest()
    write_json(_own_folder() / f"{digest[:16]}.json", {FOLDER: str(service.path)})


def remembered() -> list[ServiceFolder]:
    """The services that this user submitted, the last one first, wherever their state is now."""
    found = []
    try:
        for file in _own_folder().glob("*.json"):
            path = Path(str((read_json(file) or {}).get(FOLDER, "")))
            if path.is_absolute() and path.name:
                found.append((file.stat().st_mtime_ns, ServiceFolder(path.parent, path.name)))
    except OSError:  # as if nothing were remembered: --state names the folder
        return []
    return [service for _, service in sorted(found, key=lambda one: one[0], reverse=True)]


def _own_folder() -> Path:
    """Raises `OSError` where this user has no home."""
    try:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError as fault:
        raise OSError(errno.ENOENT, str(fault), "~") from None
    return base / OWN_FOLDER


ENDED = ("ended", "dead", "none")
UNREADABLE = "unreadable"
KEYS = (
    *("name", "job_id", "generation", "state", "outcome", "why", "slurm", "url", "model"),
    *("bundle_digest", "seconds_left", "successor", "successor_state", "phase", "diagnosis"),
)

Status = dict[str, Any]


def root(given: Path | None, document: Mapping[str, Any] | None = None) -> Path:
    """The state folder: the option, else the environment, else the site, else here."""
    return (given or state_root((document or {}).get("state_folder"))).absolute()


def every(folder: Path) -> list[ServiceFolder]:
    try:
        found = [ServiceFolder(folder, entry.name) for entry in os.scandir(folder)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadInput(Diagnostic(str(folder), f"cannot be read: {reason(error)}")) from None
    return sorted(filter(_is_service, found), key=lambda one: one.name)


def _is_service(folder: ServiceFolder) -> bool:
    """Whether the folder has jobs, or only its owner may look."""
    try:
        return bool(folder.jobs)
    except OSError:
        return True


def roots(given: Path | None) -> list[Path]:
    """Folders to search: the option or the environment, else where this user submitted services,
    the last one first, and `runs` in the working folder.
    """
    if given or os.environ.get(STATE_FOLDER):
        return [root(given)]
    return list(dict.fromkeys([*(one.root for one in remembered()), root(None)]))


def every_in(folders: Iterable[Path]) -> list[ServiceFolder]:
    """All services of several state folders. One that cannot be read is left out, unless it is the
    only one: then this raises `BadInput`.
    """
    found, faults = [], []
    for folder in (asked := list(folders)):
        try:
            found += every(folder)
        except BadInput as fault:
            faults.append(fault)
    if faults and len(faults) == len(asked):
        raise faults[0]
    return found


def find(given: Path | None, name: str) -> ServiceFolder:
    """The service of that name or bundle, the last submitted one of several.

    Raises `BadInput` without one.
    """
    known = every_in(folders := roots(given))
    found = _last(known, name)
    if found is None and (document := _document(Path(name))) is not None:
        folders = list(dict.fromkeys([root(given, document), *folders]))
        name, known = document["name"], every_in(folders)
        found = _last(known, name)
    if found is None:
        lost = [str(one.path) for one in remembered() if one.name == name]
        remedy = nearest(name, [one.name for one in known]) or "name the state folder with --state"
        if lost:
            remedy = (
                f"it was submitted with its state in {lost[0]}; name where that is, with --state"
            )
        where = ", ".join(map(str, folders))
        raise BadInput(Diagnostic(f"service {name}", f"has no state in {where}", remedy))
    return found


def job(number: str) -> JobFolder:
    """The job of that number, of any service. Raises `BadInput` without one."""
    for service in every_in(folders := roots(None)):
        for one in service.jobs:
            if one.id == number:
                return one
    what = f"is neither a file nor a job with its state in {', '.join(map(str, folders))}"
    remedy = f"name the state folder: export {STATE_FOLDER}=FOLDER"
    raise BadInput(Diagnostic(number, what, remedy))


def _last(known: Iterable[ServiceFolder], name: str) -> ServiceFolder | None:
    named = {one.path: one for one in known if one.name == name}
    submitted = [one.path for one in remembered() if one.path in named]
    return named[submitted[0]] if submitted else next(iter(named.values()), None)


def _document(folder: Path) -> Mapping[str, Any] | None:
    path = folder / "slurm" / "service.json"
    document = read_json(path) if (folder / MANIFEST).is_file() else None
    if document is not None:
        description.check(document, path)
    return document


def statuses(services: Iterable[ServiceFolder], known: Mapping[str, SlurmJob]) -> list[Status]:
    found = [_status(service, known) for service in services]
    return [
        {key: mask(value) if isinstance(value, str) else value for key, value in one.items()}
        for one in found
    ]


def _status(service: ServiceFolder, known: Mapping[str, SlurmJob]) -> Status:
    try:
        return status(service, of_service(service, known))
    except OSError as error:
        why = f"{error.filename}: {reason(error)}"
        return {**dict.fromkeys(KEYS), "name": service.name, "state": UNREADABLE, "why": why}


def status(service: ServiceFolder, known: Mapping[str, SlurmJob]) -> Status:
    """What one service does, as JSON; `known` are its jobs that Slurm has.

    `job_id` is the job that clients are sent to, or else the newest. `state` is that of run.json
    while the supervisor lives; `dead` is a job that Slurm has no more and whose supervisor recorded
    no end, `silent` one without a heartbeat.
    """
    endpoint, jobs = service.live_endpoint(), service.jobs
    if endpoint and not is_running(endpoint["job_id"], known):
        endpoint = None
    job = jobs[-1] if jobs else None
    if endpoint:
        job = service.job(endpoint["job_id"])
    run = (job.run if job else None) or {}
    damaged = f"{job.damaged} is damaged" if job and job.damaged else None
    state = _state(run, known.get(job.id) if job else None)
    # The successor that the job named, or a newer job of an operator.
    named = [run["successor"]] if run.get("successor") else []
    newer = [one.id for one in jobs if job and int(one.id) > int(job.id) and not one.has_ended]
    alive = [one for one in (*newer, *named) if is_running(one, known)]
    successor = alive[-1] if alive else None
    ends_at = run.get("until") if state not in ENDED else None
    left_s = max(0, round(parse_time(ends_at) - time.time())) if ends_at else None
    next_run = (service.job(successor).run or {}) if successor else {}
    has_failed = state == "dead" or (state == "ended" and run.get("exit_code"))
    found = diagnosis(job) if job and (has_failed or state == "starting") else None
    is_told = found and (has_failed or found.verdict == "stalled")
    return {
        "name": service.name,
        "job_id": job.id if job else None,
        "generation": run.get("generation"),
        "state": state,
        "outcome": run.get("outcome"),
        "why": run.get("why") or damaged,
        "slurm": known[job.id].summary if job and job.id in known else None,
        "url": endpoint["urls"].get("http") if endpoint else None,
        "model": endpoint["model"] if endpoint else None,
        "bundle_digest": run.get("bundle_digest"),
        "seconds_left": left_s,
        "successor": successor,
        "successor_state": _state(next_run, known.get(successor)) if successor else None,
        "phase": found.phase if found else None,
        "diagnosis": diagnosis_text.document(found) if found and is_told else None,
    }


def is_running(job_id: str, known: Mapping[str, SlurmJob]) -> bool:
    return job_id in known and known[job_id].is_alive


def _state(run: dict[str, Any], job: SlurmJob | None) -> str:
    if run.get("state") == "ended":
        return "ended"
    if job is None or not job.is_alive:
        return "dead" if run or job else "none"
    if not run or job.state == "PENDING":
        return job.state.lower()
    return "silent" if is_silent(run) else str(run["state"])


def table(rows: Iterable[Status]) -> str:
    """A line for each service; under it the reason of its end, and what its logs say of it."""
    lines = [f"{'NAME':<28} {'JOB':>8} {'GEN':>4} {'STATE':<11} {'LEFT':>8} {'NEXT':>8}  ENDPOINT"]
    for one in rows:
        has_ended, seconds = one["state"] in ENDED, one["seconds_left"]
        last = one["url"] or one["outcome" if has_ended else "slurm"] or ""
        last = f"in phase {one['phase']}" if one["state"] == "starting" and one["phase"] else last
        left = "-" if seconds is None else duration(seconds)
        generation = "-" if one["generation"] is None else one["generation"]
        lines.append(
            f"{one_line(one['name']):<28} {one['job_id'] or '-':>8} {generation:>4}"
            f" {one['state']:<11} {left:>8} {one['successor'] or '-':>8}  {last}".rstrip()
        )
        is_over = has_ended or one["outcome"] is None  # not one that is about to end
        if one["why"] and is_over and one["outcome"] not in ("stopped", "handed_over"):
            lines.append(f"    {one['why']}")
        if one["diagnosis"]:
            lines += [f"    {line}" for line in diagnosis_text.below_error(one["diagnosis"])]
    return "\n".join(map(printable, lines))


def duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
