"""The specification of a service, `service.json`, and the outcomes of a job that runs it."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from .state import FORMAT, Json, ServiceFolder, state_root

# How a job can end, and its exit code. Slurm shows 0 as COMPLETED and others as FAILED, except
# where it ends the job itself: CANCELLED, PREEMPTED, TIMEOUT, NODE_FAIL.
OUTCOMES = {
    "stopped": 0,
    "handed_over": 0,
    "supervisor_bug": 1,
    "rank_died": 70,
    "server_exited_0": 71,
    "server_failed": 72,
    "health_lost": 73,
    "start_timeout": 74,
    "node_lost": 75,
    "router_died": 76,
    "not_admitted": 77,
    "preempted": 78,
    "time_limit": 79,
    "ports_taken": 80,
    "cancelled": 130,
}
# In words of a step, filled in at its start.
PLACEHOLDER = re.compile(r"\{(\w+(?::[\w.-]+){0,2})\}")
END_MARGIN_S = 5.0  # between the planned end of a job and its time limit
# After these outcomes a new job may do better.
RESTARTABLE = {
    "rank_died",
    "server_exited_0",
    "server_failed",
    "health_lost",
    "node_lost",
    "router_died",
    "preempted",
}


class JobExit(Exception):
    """The job ends: one of `OUTCOMES`, and why."""

    def __init__(self, outcome: str, why: str) -> None:
        super().__init__(f"{outcome}: {why}")
        self.outcome = outcome
        self.why = why


@dataclass(frozen=True)
class StepSpec:
    """A row of `steps` of service.json."""

    name: str
    argv: list[str]
    role: str = "agg"
    nodes: int = 1
    first_node: int = 0
    ntasks: int = 1
    ntasks_per_node: int = 1
    gpus_per_node: int | None = None
    gpu_indices: list[int] | None = None
    launcher: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    srun: list[str] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)
    ready: dict[str, str] | None = None
    files: dict[str, str] = field(default_factory=dict)
    het_group: int | None = None
    critical: bool = True
    start_after: list[str] = field(default_factory=list)
    start_timeout_s: float = 3600.0
    stop_timeout_s: float = 60.0


@dataclass(frozen=True)
class CanaryRequest:
    """A request that a working service answers with text, and how often it is sent."""

    path: str
    body: Json
    period_s: float = 60.0
    timeout_s: float = 60.0
    failures: int = 2


@dataclass(frozen=True)
class Health:
    """How often a server's readiness is probed, and how many failures in a row end the job."""

    period_s: float = 5.0
    timeout_s: float = 5.0
    failures: int = 6


@dataclass(frozen=True)
class Limits:
    """The times of a job, in seconds, and how often a failed one is replaced."""

    limit_s: float
    successor_lead_s: float
    drain_s: float
    settle_s: float = 2.0  # a drain lasts this long at least, for clients with the old endpoint
    attempts: int = 3
    crash_window_s: float = 600.0
    retry_s: float = 60.0  # between a successor that failed and the next
    restart: bool = False


@dataclass(frozen=True)
class Spec:
    """service.json; `folder` holds it, `raw` is the whole document."""

    folder: Path
    raw: Json
    name: str
    model: str
    steps: list[StepSpec]
    frontend: str
    health: Health
    generation: CanaryRequest | None
    limits: Limits

    @classmethod
    def read(cls, folder: Path) -> Spec:
        raw = json.loads((folder / "service.json").read_text(encoding="utf-8"))
        if raw.get("format") != FORMAT:
            raise ValueError(f"{folder}/service.json: format {raw.get('format')}, not {FORMAT}")
        health = dict(raw.get("health") or {})
        generation = health.pop("generation", None)
        return cls(
            folder=folder,
            raw=raw,
            name=raw["name"],
            model=raw["model"],
            steps=[StepSpec(**row) for row in raw["steps"]],
            frontend=raw["front"],
            health=Health(**health),
            generation=CanaryRequest(**generation) if generation else None,
            limits=Limits(**raw["time"], **(raw.get("limits") or {})),
        )

    @property
    def bundle(self) -> Path:
        return self.folder.parent

    @property
    def manifest(self) -> Path:
        return self.bundle / str(self.raw.get("bundle_digest_file", "manifest.json"))

    @property
    def service(self) -> ServiceFolder:
        submitted_in = Path(os.environ.get("SLURM_SUBMIT_DIR", "."))
        return ServiceFolder(state_root(self.raw.get("state_folder"), submitted_in), self.name)

    @property
    def canary_request(self) -> CanaryRequest:
        """The one of service.json, or one for OpenAI's completions."""
        body = {"model": self.model, "prompt": "One, two, three,", "max_tokens": 8}
        return self.generation or CanaryRequest("/v1/completions", body)

    @property
    def stop_timeout_s(self) -> float:
        return max(step.stop_timeout_s for step in self.steps)
