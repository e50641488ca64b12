"""A service: the folder in which its jobs leave their state, and where its clients find it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder.diagnostics import Diagnostic, nearest
from builder.errors import BadFacts, BadInput

VARIABLE = "SERVICE_STATE_FOLDER"
DEFAULT_ROOT = "runs"
DEFAULT_LEASE_S = 60.0


@dataclass(frozen=True, slots=True)
class JobFolder:
    """What one job of a service leaves. `run` is what its supervisor says of it."""

    service: Service
    id: str

    @property
    def folder(self) -> Path:
        return self.service.folder / "jobs" / self.id

    @property
    def run(self) -> Mapping[str, Any] | None:
        return read_json(self.folder / "run.json")

    @property
    def serves(self) -> bool:
        return any((self.folder / name).exists() for name in ("run.json", "submission.json"))

    @property
    def has_not_ended(self) -> bool:
        return (self.run or {}).get("state") != "ended"

    @property
    def submission(self) -> Mapping[str, Any] | None:
        """What `submit` wrote down of a job that a person asked for."""
        return read_json(self.folder / "submission.json")

    @property
    def smoke(self) -> Mapping[str, Any] | None:
        return read_json(self.folder / "smoke.json")

    @property
    def endpoint(self) -> Mapping[str, Any] | None:
        """Where the job itself serves, published or not."""
        return read_json(self.folder / "endpoint.json")

    @property
    def log(self) -> Path:
        """What the batch script and the supervisor say."""
        return self.service.folder / f"job-{self.id}.log"

    def step_log(self, step: str) -> Path:
        return self.folder / f"{step}.log"

    @property
    def steps(self) -> list[str]:
        return [step["name"] for step in (self.run or {}).get("steps", ())]


@dataclass(frozen=True, slots=True)
class Service:
    """A name under a folder that all nodes and all clients see."""

    root: Path
    name: str

    @property
    def folder(self) -> Path:
        return self.root / self.name

    @property
    def endpoint(self) -> Mapping[str, Any] | None:
        """Where clients are sent, if anywhere."""
        return read_json(self.folder / "endpoint.json")

    @property
    def stop_file(self) -> Path:
        return self.folder / "stop"

    @property
    def jobs(self) -> list[JobFolder]:
        """In the order in which they were submitted; not those that only looked (preflight)."""
        try:
            names = [entry.name for entry in os.scandir(self.folder / "jobs")]
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = [self.job(name) for name in sorted(filter(str.isdecimal, names), key=int)]
        return [job for job in found if job.serves]

    def job(self, job_id: str) -> JobFolder:
        return JobFolder(self, job_id)

    def live_endpoint(self) -> Mapping[str, Any] | None:
        """The endpoint, unless its time is over or its job has fallen silent."""
        found = self.endpoint
        if found is None or seconds_since(found["until"]) > 0:
            return None
        run = read_json(self.folder / found["heartbeat"])
        return None if run is None or is_silent(run, found.get("lease_s")) else found


def is_silent(run: Mapping[str, Any], lease_s: float | None = None) -> bool:
    """Whether the supervisor of a job that has not ended says nothing any more."""
    return seconds_since(run["heartbeat"]) > (lease_s or DEFAULT_LEASE_S)


def root(given: Path | None, document: Mapping[str, Any] | None = None) -> Path:
    """Where services keep their state: as given, as the environment or the site says, or here."""
    named = given or os.environ.get(VARIABLE) or (document or {}).get("state_folder")
    return Path(named or DEFAULT_ROOT).absolute()


def every(folder: Path) -> list[Service]:
    """All services with their state in a folder, by name."""
    try:
        found = [Service(folder, entry.name) for entry in os.scandir(folder)]
    except FileNotFoundError:
        return []
    except OSError as fault:
        raise BadInput(Diagnostic(str(folder), f"cannot be read: {fault.strerror}")) from None
    return sorted((one for one in found if one.jobs), key=lambda one: one.name)


def find(folder: Path, name: str) -> Service:
    """Raises `BadInput` if no service has that name."""
    known = {one.name: one for one in every(folder)}
    if name not in known:
        remedy = nearest(name, known) if known else "name the state folder with --state"
        raise BadInput(Diagnostic(f"service {name}", f"has no state in {folder}", remedy))
    return known[name]


def read_json(path: Path) -> Mapping[str, Any] | None:
    """A file that is replaced as a whole: it is there with all of its content, or not at all."""
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as fault:
        raise BadFacts(Diagnostic(str(path), f"cannot be read: {fault}")) from None
    if not isinstance(document, dict):
        raise BadFacts(Diagnostic(str(path), "is no JSON object"))
    return document


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """The file appears as a whole."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(path)


def seconds_since(moment: str) -> float:
    """Below 0 for what is still to come."""
    return (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
