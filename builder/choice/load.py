"""How fast the workload runs on a candidate: estimates of one server, under its share of the load.

A server that runs fewer requests than it gets lets the others wait, each for the turns before it.
With a rate instead of a number of requests, Little's law gives the requests at a time: the first
number at which a server finishes requests as fast as they arrive, by the upper end of its time.
Upper ends are those of `Estimator.promise`, which a choice of the best among many can rely on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil

from ..estimates import Estimate, Estimator, Interval, Refusal
from .candidates import Candidate
from .request import ChoiceRequest

# Requests at a time that are tried for a rate: steps of a quarter, up to what one server was given.
MOST_AT_ONCE = 16384
LIMITED = ("ttft_ms", "itl_ms", "e2e_ms")


@cache
def load_levels() -> tuple[int, ...]:
    """Numbers of requests at a time, each about a quarter above the one before."""
    found = [1]
    while found[-1] < MOST_AT_ONCE:
        found.append(min(max(found[-1] + 1, found[-1] * 5 // 4), MOST_AT_ONCE))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Latencies of a request in ms, and output tokens a second of all servers together.

    `running` requests of a server run at once and `waiting` others of it wait. `estimate` is the
    one of the server that it follows from.
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
        usd, per_gpu = usd_per_gpu_hour / 3600 * 1e6, self.tok_s_per_gpu
        return Interval(usd / per_gpu.high, usd / per_gpu.value, usd / per_gpu.low)

    def latency(self, name: str) -> Interval:
        """The latency that an objective of this name bounds."""
        latencies: Mapping[str, Interval] = dict(
            zip(LIMITED, (self.ttft_ms, self.itl_ms, self.e2e_ms), strict=True)
        )
        return latencies[name]


@dataclass(frozen=True, slots=True)
class Overload:
    """A rate that a candidate cannot keep up with: it finishes at most `requests_per_s`."""

    requests_per_s: float


Outcome = Forecast | Refusal | Overload


class LoadModel:
    """Forecasts for one workload; what was asked of the estimator once is not asked again."""

    def __init__(self, estimator: Estimator, request: ChoiceRequest) -> None:
        self._workload = request.workload
        self._estimate = cache(estimator.promise)

    def share(self, candidate: Candidate) -> int:
        """The requests at a time of one server, where the workload says how many there are."""
        return ceil((self._workload.concurrency or 1) / candidate.instances)

    def forecast(self, candidate: Candidate, running: int | None = None) -> Outcome:
        """How fast the workload runs, with at most `running` requests at once in a server."""
        if self._workload.concurrency is None:
            return self._at_rate(candidate)
        share = self.share(candidate)
        return self._at_load(candidate, share, min(share, running or share))

    def _at_load(self, candidate: Candidate, share: int, running: int) -> Outcome:
        found = self._estimate(candidate.question(running))
        if isinstance(found, Refusal):
            return found
        wait = found.e2e_ms.map(share / running - 1) if share > running else None
        e2e = _sum(found.e2e_ms, wait)
        assert self._workload.concurrency is not None
        tokens = self._workload.concurrency * self._workload.osl * 1000
        speed = Interval(tokens / e2e.high, tokens / e2e.value, tokens / e2e.low)
        ttft = _sum(found.ttft_ms, wait)
        gpus, waiting = candidate.num_gpus, share - running
        return Forecast(found, gpus, running, waiting, ttft, found.tpot_ms, e2e, speed)

    def _at_rate(self, candidate: Candidate) -> Outcome:
        assert self._workload.request_rate is not None
        rate, levels = self._workload.request_rate / candidate.instances, load_levels()
        refusal: Refusal | None = None
        most = 0.0
        for level in levels:
            found = self._estimate(candidate.question(level))
            if isinstance(found, Refusal):
                if most:
                    break  # beyond the measured loads
                if refusal is None or refusal.kind == "outside" != found.kind:
                    refusal = found
                continue
            finished = level * 1000 / found.e2e_ms.high
            if finished >= rate:
                speed = self._workload.request_rate * self._workload.osl
                return Forecast(
                    found,
                    candidate.num_gpus,
                    level,
                    0,
                    found.ttft_ms,
                    found.tpot_ms,
                    found.e2e_ms,
                    Interval(speed, speed, speed),
                )
            most = max(most, finished)
        if most:
            return Overload(most * candidate.instances)
        assert refusal is not None
        return refusal


def _sum(one: Interval, other: Interval | None) -> Interval:
    """Of two times that follow from the same estimate, and are wrong together."""
    if other is None:
        return one
    return Interval(one.low + other.low, one.value + other.value, one.high + other.high)
