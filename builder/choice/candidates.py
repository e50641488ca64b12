"""Candidates: ways to spread the model and its load, the plan of each, and how fast it runs.

A forecast uses the estimate of one server under its share of the load. If a server runs fewer
requests than it gets, the others wait, each for the turns before it. If the workload is a request
rate, Little's law gives the concurrent requests: the first number at which a server finishes
requests as fast as they arrive, at the upper end of its time. Upper ends are those of
`Estimator.promise`, which a choice of the best among many can rely on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from math import ceil
from typing import Any

from .. import planning, targets
from ..deployment import Deployment
from ..diagnostics import Diagnostic
from ..errors import BadInput
from ..estimates import Estimate, Estimator, Interval, Question, Refusal
from ..estimates.measurements import layout_text
from ..estimates.names import layout_of, weight_precision
from ..facts import published_results
from ..facts.memory import Sharding
from ..planning import Plan
from ..planning.choices import SIZE, layouts
from ..planning.plan_builder import DRAFT_METHOD, MTP_DRAFT_TOKENS
from .request import Base, ChoiceRequest

MOST_DRAFT_TOKENS = 3  # of the depths that are tried; no published server drafts more with MTP
MOST_INSTANCE_GPUS = 64
MOST_COUNTS = 16  # of instances that are tried for one layout
MOST_CONCURRENCY = 16384  # of one server: the most that is tried for a rate

_SPECULATION, _BATCH = "speculative_config", "max_batch_size"
_OF_GPUS = ("hardware.gpu", "hardware.num_gpus")  # objections that more load does not remove


@dataclass(frozen=True, slots=True)
class Candidate:
    """Servers of one layout on one kind of GPU, which share the load evenly.

    `mtp_draft_tokens` is `None` where the model drafts none by itself or the user decided it;
    `max_batch_size`, of a rank, is `None` where every request of the workload is to run at once.
    """

    base: Base
    sharding: Sharding
    mtp_draft_tokens: int | None
    instances: int
    max_batch_size: int | None = None

    @property
    def gpu(self) -> str:
        return self.base.deployment.hardware.gpu

    @property
    def num_gpus(self) -> int:
        return self.sharding.tensor_parallel_size * self.instances

    @property
    def title(self) -> str:
        """The layout and the drafts in a few letters: DP8/EP8 MTP1."""
        text = layout_text(*self.sharding.layout)
        return f"{text} MTP{self.mtp_draft_tokens}" if self.mtp_draft_tokens else text

    def settings(self) -> dict[str, Any]:
        """The engine options that make the layout, by their paths in the release."""
        release = self.base.facts.release
        found = self.sharding.settings(release, self.base.facts.checkpoint)
        if self.mtp_draft_tokens == 0:
            found[_SPECULATION] = None
        elif self.mtp_draft_tokens:
            found[release.option_path(DRAFT_METHOD)] = release.engine.draft_method
            found[release.option_path(MTP_DRAFT_TOKENS)] = self.mtp_draft_tokens
        if self.max_batch_size is not None:
            found[release.option_path(_BATCH)] = self.max_batch_size
        return found

    def question(self, concurrency: int) -> Question:
        """How fast one of the servers is with so many requests at a time."""
        request, facts = self.base.deployment, self.base.facts
        own_drafts = layout_of(self.base.overrides)[-1]
        tp, attention_dp, ep = self.sharding.layout
        return Question(
            model=self.base.model,
            gpu=facts.gpu.name,
            precision=weight_precision(facts.checkpoint.precision),
            engine=request.engine.name,
            tp=tp,
            ep=ep,
            attention_dp=attention_dp,
            isl=request.workload.isl,
            osl=request.workload.osl,
            concurrency=concurrency,
            release=facts.release.name,
            mtp=own_drafts if self.mtp_draft_tokens is None else self.mtp_draft_tokens,
        )


def candidates(request: ChoiceRequest) -> list[Candidate]:
    """Every layout and count of servers within the GPUs that the user's options allow.

    The planner may still refuse some of them.
    """
    found: list[Candidate] = []
    for base in request.bases:
        for size in _sizes(request, base):
            for layout in layouts(base.facts.checkpoint, size):
                if _is_allowed(base, layout):
                    counts = reversed(_counts(request, base, layout))
                    ways = product(_depths(base), counts)
                    found += [Candidate(base, layout, depth, count) for depth, count in ways]
    return found


def _depths(base: Base) -> tuple[int | None, ...]:
    """Draft tokens of a step, where the model drafts by itself and the user has not decided."""
    decided = any(path.partition(".")[0] == _SPECULATION for path in base.overrides)
    drafts = base.facts.checkpoint.mtp_layers and not decided
    return tuple(range(MOST_DRAFT_TOKENS + 1)) if drafts else (None,)


def _sizes(request: ChoiceRequest, base: Base) -> list[int]:
    """GPUs of one server: powers of two, and the number that the user fixed."""
    most = request.num_gpus.at_most
    powers = [2**power for power in range(MOST_INSTANCE_GPUS.bit_length())]
    given = base.overrides.get(SIZE)
    found = {size for size in powers if size <= most}
    if request.num_gpus.at_least == most:
        found = {size for size in found if most % size == 0} | {min(most, MOST_INSTANCE_GPUS)}
    return sorted({given} if isinstance(given, int) else found)


def _is_allowed(base: Base, layout: Sharding) -> bool:
    """Whether the user's own options leave room for the layout."""
    wanted = layout.settings(base.facts.release, base.facts.checkpoint)
    return all(base.overrides.get(path, value) == value for path, value in wanted.items())


def _counts(request: ChoiceRequest, base: Base, layout: Sharding) -> list[int]:
    """Counts of servers within the GPUs: all small ones, then the most and steps of a quarter."""
    most = request.num_gpus.at_most // layout.tensor_parallel_size
    least = max(1, -(-request.num_gpus.at_least // layout.tensor_parallel_size))
    if (load := request.workload.concurrency) is not None:
        most = min(most, load)
    given = base.deployment.instances
    if given > 1:
        return [given] if least <= given <= most else []
    found: list[int] = []
    count = least
    while count <= most:
        found.append(count)
        count = max(count + 1, count * 5 // 4 if len(found) > MOST_COUNTS // 2 else 0)
    return found if not found or found[-1] == most else [*found, most]


@dataclass(frozen=True, slots=True)
class Planned:
    """A candidate's plan under a load, or the reason why it is refused."""

    plan: Plan | None
    objections: tuple[Diagnostic, ...] = ()

    @property
    def holds(self) -> int:
        """Requests that one server holds and runs at once; 0 without a plan."""
        return self.plan.budget.max_concurrency if self.plan else 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Latencies of a request in ms, and output tokens/s of all servers together.

    Of each server's requests `running` run and `waiting` wait. `estimate` is that of one server.
    """

    estimate: Estimate
    num_gpus: int
    running: int
    waiting: int
    ttft_ms: Interval
    itl_ms: Interval
    e2e_ms: Interval
    output_tok_s: Interval

    @property
    def tok_s_per_gpu(self) -> Interval:
        return self.output_tok_s.map(1 / self.num_gpus)

    @property
    def tok_s_per_user(self) -> Interval:
        return self.estimate.tok_s_per_user

    def usd_per_million_tokens(self, usd_per_gpu_hour: float) -> Interval:
        """Cost of a million output tokens while the load lasts."""
        return self.tok_s_per_gpu.inverse(usd_per_gpu_hour / 3600 * 1e6)

    def latency(self, name: str) -> Interval:
        """The latency that a target bounds: `ttft_ms`, `itl_ms` or `e2e_ms`."""
        return {"ttft_ms": self.ttft_ms, "itl_ms": self.itl_ms, "e2e_ms": self.e2e_ms}[name]


Outcome = Forecast | Refusal | float
"""The number is the most requests/s that a candidate finishes which is too slow for the rate."""


class Search:
    """Plans candidates and forecasts their speed under the workload of one request.

    A candidate that differs in nothing that a plan sees is planned once, and of servers whose GPUs
    do not hold a share of the load none that has more of it. Estimates are computed once.
    """

    def __init__(self, request: ChoiceRequest, estimator: Estimator) -> None:
        self.request, self._workload = request, request.workload
        self._estimate = cache(partial(estimator.promise, limits_ms=request.slo.limits_ms))
        self._plans: dict[tuple[Any, ...], Planned] = {}
        self._too_small: dict[tuple[Any, ...], tuple[int, Planned]] = {}
        self._impossible: dict[tuple[Any, ...], Planned | None] = {}

    def plan(self, candidate: Candidate, concurrency: int) -> Planned:
        """The plan of one server under its share of the load."""
        if refused := self._of_targets(candidate):
            return refused
        server = (
            candidate.gpu,
            candidate.sharding,
            candidate.mtp_draft_tokens,
            candidate.instances > 1,
            candidate.max_batch_size,
        )
        key = (*server, concurrency)
        if key not in self._plans:
            least, known = self._too_small.get(server, (concurrency + 1, None))
            if least > concurrency:
                known = self._without_drafts(candidate, concurrency)
            self._plans[key] = found = known or self._plan(candidate, concurrency)
            if found.objections and all(row.where in _OF_GPUS for row in found.objections):
                self._too_small[server] = min(least, concurrency), found
        return self._plans[key]

    def _of_targets(self, candidate: Candidate) -> Planned | None:
        """That targets cannot have so many GPUs or servers, whatever their layout and load."""
        size = candidate.gpu, candidate.num_gpus, candidate.instances
        if size not in self._impossible:
            objections = tuple(targets.diagnostics(_request(candidate, 1)))
            self._impossible[size] = Planned(None, objections) if objections else None
        return self._impossible[size]

    def own_drafts(self, candidate: Candidate) -> int | None:
        """The draft tokens that the planner itself gives it, `None` if none."""
        plain = replace(candidate, mtp_draft_tokens=None)
        planned = self.plan(plain, self.share(plain))
        decisions = planned.plan.decisions if planned.plan else ()
        return next((row.value for row in decisions if row.path == MTP_DRAFT_TOKENS), None)

    def _without_drafts(self, candidate: Candidate, concurrency: int) -> Planned | None:
        """The candidate that drafts nothing, if it cannot be planned: drafts only need more."""
        if not candidate.mtp_draft_tokens:
            return None
        plain = self.plan(replace(candidate, mtp_draft_tokens=0), concurrency)
        return None if plain.plan else plain

    def _plan(self, candidate: Candidate, concurrency: int) -> Planned:
        request, facts = _request(candidate, concurrency), candidate.base.facts
        published = published_results.published(
            facts.checkpoint, facts.gpu.name, candidate.num_gpus, request.role
        )
        try:
            return Planned(planning.plan(request, replace(facts, published=published)))
        except BadInput as error:
            return Planned(None, tuple(error.diagnostics))

    def share(self, candidate: Candidate) -> int:
        """The concurrent requests of one server, if the workload has a number of them."""
        return ceil((self._workload.concurrency or 1) / candidate.instances)

    def forecast(self, candidate: Candidate, running: int | None = None) -> Outcome:
        """How fast the workload runs, with at most `running` concurrent requests per server."""
        if self._workload.concurrency is None:
            return self._at_rate(candidate)
        share = self.share(candidate)
        return self._at_load(candidate, share, min(share, running or share))

    def _at_load(self, candidate: Candidate, share: int, running: int) -> Outcome:
        found = self._estimate(candidate.question(running))
        if isinstance(found, Refusal):
            return found
        wait = found.e2e_ms.map(share / running - 1)
        e2e, ttft = _sum(found.e2e_ms, wait), _sum(found.ttft_ms, wait)
        assert self._workload.concurrency is not None
        speed = e2e.inverse(self._workload.concurrency * self._workload.osl * 1000)
        gpus, waiting = candidate.num_gpus, share - running
        return Forecast(found, gpus, running, waiting, ttft, found.tpot_ms, e2e, speed)

    def _at_rate(self, candidate: Candidate) -> Outcome:
        assert self._workload.request_rate is not None
        rate = self._workload.request_rate / candidate.instances
        refusal: Refusal | None = None
        most = 0.0
        for level in load_levels():
            found = self._estimate(candidate.question(level))
            if isinstance(found, Refusal):
                if most:
                    break  # beyond the measured loads
                if refusal is None or refusal.kind == "outside" != found.kind:
                    refusal = found
                continue
            finished = level * 1000 / found.e2e_ms.high
            if finished >= rate:
                tokens = self._workload.request_rate * self._workload.osl
                times = found.ttft_ms, found.tpot_ms, found.e2e_ms
                speed = Interval(tokens, tokens, tokens)
                return Forecast(found, candidate.num_gpus, level, 0, *times, speed)
            most = max(most, finished)
        if most:
            return most * candidate.instances
        assert refusal is not None
        return refusal


def _request(candidate: Candidate, concurrency: int) -> Deployment:
    """The deployment whose servers have so many requests at a time each."""
    base = candidate.base
    return base.deployment.replaced(
        hardware=base.deployment.hardware.replaced(num_gpus=candidate.num_gpus),
        workload=base.deployment.workload.replaced(concurrency=concurrency * candidate.instances),
        instances=candidate.instances,
        engine_config=with_settings(
            base.deployment.engine_config, base.overrides, candidate.settings()
        ),
    )


def with_settings(
    given: Mapping[str, Any], overrides: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The user's `engine_config` with chosen settings that it does not have."""
    merged = {name: dict(v) if isinstance(v, dict) else v for name, v in given.items()}
    for path, value in settings.items():
        parent, _, last = path.rpartition(".")
        if path in overrides or (parent and parent in overrides):
            continue
        place = merged.setdefault(parent, {}) if parent else merged
        place.setdefault(last, value)
    return merged


@cache
def load_levels() -> tuple[int, ...]:
    """Concurrent requests that are tried for a rate, each about a quarter above the one before."""
    found = [1]
    while found[-1] < MOST_CONCURRENCY:
        found.append(min(max(found[-1] + 1, found[-1] * 5 // 4), MOST_CONCURRENCY))
    return tuple(found)


def _sum(one: Interval, other: Interval) -> Interval:
    """The sum of two times of one estimate, whose errors go together."""
    return Interval(one.low + other.low, one.value + other.value, one.high + other.high)
