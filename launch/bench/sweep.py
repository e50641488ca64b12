"""A sweep: the points of a benchmark as they were ordered, and the load of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from . import load
from .clients import Api
from .load import LoadPlan
from .measure import Settings
from .tokens import Tokens
from .workload import Workload

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
# Requests of a point for each one that runs at a time, as InferenceMAX has it; and at least these.
REQUESTS_PER_STREAM = 10
LEAST_REQUESTS = 20
# A load that ends by time repeats its prompts after these, or after this many for each stream.
REQUESTS_OF_DURATION = 1000
OPEN_REQUESTS = 200
TOOL = "trtllm-deployment-toolkit"
# Before an open loop, whose concurrency is not known.
OPEN_WARMUP = 8
LEAST_TASKS = 4
TASKS_PER_STREAM = 2


@dataclass(frozen=True, slots=True)
class Load:
    """What is varied from point to point; `facts` is how the document describes it."""

    label: str
    facts: Mapping[str, Any]

    @property
    def concurrency(self) -> int:
        return int(self.facts.get("concurrency", 1))


def closed(kind: load.Kind, concurrencies: Sequence[int]) -> tuple[Load, ...]:
    return tuple(Load(f"c{c}", {"kind": kind, "concurrency": c}) for c in concurrencies)


def open_at(rates_per_s: Sequence[float], burstiness: float) -> tuple[Load, ...]:
    kind = "poisson" if burstiness == 1 else "gamma"
    return tuple(
        Load(f"r{rate:g}", {"kind": kind, "rate_per_s": rate, "burstiness": burstiness})
        for rate in rates_per_s
    )


def of_trace(speed: float) -> tuple[Load, ...]:
    return (
        Load("trace" if speed == 1 else f"trace x{speed:g}", {"kind": "trace", "speed": speed}),
    )


@dataclass(frozen=True, slots=True)
class Sweep:
    """A benchmark as it was ordered."""

    workload: Workload
    loads: Sequence[Load]
    tokens: Tokens
    api: Api
    settings: Settings = field(default_factory=Settings)
    processes: int = 1
    requests: int | None = None
    duration_s: float | None = None
    warmup: int | None = None
    retries: int = 3
    seed: int = 0

    def plan(self, one: Load, first: int) -> LoadPlan:
        """The load of a point, whose prompts start at this place of the workload."""
        kind = one.facts["kind"]
        if kind == "trace":
            return LoadPlan(kind, self.workload.timed(self.requests, one.facts["speed"]))
        if kind == "tasks":
            least = max(LEAST_TASKS, TASKS_PER_STREAM * one.concurrency)
            tasks = self.workload.tasks(first, self.requests or least)
            return LoadPlan(kind, tasks=tasks, concurrency=one.concurrency, retries=self.retries)
        calls = self.workload.calls(first, self._count(one))
        if kind == "concurrency":
            return LoadPlan(kind, calls, concurrency=one.concurrency, duration_s=self.duration_s)
        rate, burstiness = one.facts["rate_per_s"], one.facts["burstiness"]
        times = load.arrivals_s(len(calls), rate, burstiness, self.seed)
        timed = [replace(call, at_s=at_s) for call, at_s in zip(calls, times, strict=True)]
        return LoadPlan(kind, tuple(timed))

    def _count(self, one: Load) -> int:
        streams = REQUESTS_PER_STREAM * one.concurrency
        if self.requests:
            return self.requests
        if "rate_per_s" in one.facts:
            wanted_s = self.duration_s
            return max(1, round(one.facts["rate_per_s"] * wanted_s)) if wanted_s else OPEN_REQUESTS
        return max(REQUESTS_OF_DURATION if self.duration_s else LEAST_REQUESTS, streams)

    def warm(self, one: Load, first: int) -> LoadPlan | None:
        """Requests before a point that count for nothing: as many as run at a time in it.

        A trace gets none, since its blocks would be in the server's cache then.
        """
        usual = {"trace": 0, "poisson": OPEN_WARMUP, "gamma": OPEN_WARMUP}
        count = (
            usual.get(one.facts["kind"], one.concurrency) if self.warmup is None else self.warmup
        )
        if not count:
            return None
        return LoadPlan("concurrency", self.workload.calls(first, count), concurrency=count)
