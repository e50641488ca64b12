"""The overview: what each service does now, from its folder and one question to Slurm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from . import scheduler
from .scheduler import Job
from .service import JobFolder, Service, is_silent, seconds_since


@dataclass(frozen=True, slots=True)
class Row:
    """One service. `job_id` is the job that clients are sent to, or else the newest.

    `state` is the supervisor's word while it lives; `dead` is a job that Slurm has no more and
    whose supervisor said nothing at its end, `silent` one whose supervisor says nothing now.
    """

    name: str
    job_id: str | None
    generation: int | None
    state: str
    outcome: str | None
    why: str | None
    slurm: str | None
    url: str | None
    model: str | None
    bundle_digest: str | None
    seconds_left: int | None
    successor: str | None
    successor_state: str | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def of(services: Iterable[Service], known: Iterable[Job]) -> list[Row]:
    named = scheduler.by_name(known)
    return [row(service, named.get(service.name, {})) for service in services]


def row(service: Service, known: Mapping[str, Job]) -> Row:
    """`known` are the jobs of that service's name."""
    endpoint, jobs = service.live_endpoint(), service.jobs
    if endpoint and not is_running(endpoint["job_id"], known):
        endpoint = None
    job = service.job(endpoint["job_id"]) if endpoint else (jobs[-1] if jobs else None)
    run = (job.run if job else None) or {}
    state = _state(run, known.get(job.id) if job else None)
    successor = _successor(job, jobs, run, known)
    left = -seconds_since(run["until"]) if run.get("until") and state not in ENDS else None
    return Row(
        name=service.name,
        job_id=job.id if job else None,
        generation=run.get("generation"),
        state=state,
        outcome=run.get("outcome"),
        why=run.get("why"),
        slurm=known[job.id].words if job and job.id in known else None,
        url=endpoint["urls"].get("http") if endpoint else None,
        model=endpoint["model"] if endpoint else None,
        bundle_digest=run.get("bundle_digest"),
        seconds_left=None if left is None else max(0, round(left)),
        successor=successor,
        successor_state=_state_of(successor, service, known) if successor else None,
    )


ENDS = ("ended", "dead", "none")


def is_running(job_id: str, known: Mapping[str, Job]) -> bool:
    return job_id in known and known[job_id].is_alive


def _state(run: Mapping[str, Any], job: Job | None) -> str:
    """The supervisor's word, where it can still have one."""
    if run.get("state") == "ended":
        return "ended"
    if job is None or not job.is_alive:
        return "dead" if run or job else "none"
    if not run or job.state == "PENDING":
        return job.state.lower()
    return "silent" if is_silent(run) else str(run["state"])


def _successor(
    job: JobFolder | None, jobs: list[JobFolder], run: Mapping[str, Any], known: Mapping[str, Job]
) -> str | None:
    """The one that the job named, or a newer one that a person asked for; while it is there."""
    named = [run["successor"]] if run.get("successor") else []
    newer = [one.id for one in jobs if job and int(one.id) > int(job.id) and one.has_not_ended]
    alive = [one for one in (*newer, *named) if is_running(one, known)]
    return alive[-1] if alive else None


def _state_of(job_id: str, service: Service, known: Mapping[str, Job]) -> str:
    return _state(service.job(job_id).run or {}, known.get(job_id))


def table(rows: Iterable[Row]) -> str:
    """A line for each service; why it ended stands under it."""
    lines = [f"{'NAME':<28} {'JOB':>8} {'GEN':>4} {'STATE':<11} {'LEFT':>8} {'NEXT':>8}  ENDPOINT"]
    for one in rows:
        end = one.url or (f"{one.outcome or ''}" if one.state in ENDS else one.slurm or "")
        left = "-" if one.seconds_left is None else duration(one.seconds_left)
        generation = "-" if one.generation is None else one.generation
        lines.append(
            f"{one.name:<28} {one.job_id or '-':>8} {generation:>4} {one.state:<11} {left:>8}"
            f" {one.successor or '-':>8}  {end}".rstrip()
        )
        if one.why and one.state in ENDS and one.outcome not in ("stopped", "handed_over"):
            lines.append(f"    {one.why}")
    return "\n".join(lines)


def duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
