"""The selection: candidates that fit and meet the targets at the upper ends, the best first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..deployment import Objective, Slo
from ..estimates import Estimator, Question, Refusal
from .candidates import (
    Candidate,
    Forecast,
    LoadModel,
    Outcome,
    Overload,
    Planned,
    Planner,
    candidates,
)
from .request import ChoiceRequest

MOST_MEASUREMENTS = 4  # proposed if evidence is missing
# From this ratio on, a likely option is worth measuring before the best sure one is chosen.
WORTH_MEASURING = 1.5


@dataclass(frozen=True, slots=True)
class Miss:
    """A target that is missed: the upper end of the interval is above the limit."""

    name: str
    limit_ms: float
    upper_ms: float

    @property
    def excess(self) -> float:
        """How far the upper end is above the limit, as a share of the limit."""
        return self.upper_ms / self.limit_ms - 1


@dataclass(frozen=True)
class Option:
    """A candidate with its plan and how fast the workload runs on it, if it can be planned."""

    candidate: Candidate
    planned: Planned
    outcome: Outcome | None
    slo: Slo

    @property
    def fits(self) -> bool:
        """Whether the planner accepts it and its memory holds the requests that run."""
        running = self.forecast.running if self.forecast else 1
        return self.planned.plan is not None and self.planned.holds >= running

    @property
    def forecast(self) -> Forecast | None:
        return self.outcome if isinstance(self.outcome, Forecast) else None

    @cached_property
    def misses(self) -> tuple[Miss, ...]:
        found = self.forecast
        if found is None:
            return ()
        return tuple(
            Miss(name, limit, found.latency(name).high)
            for name, limit in self.slo.limits_ms.items()
            if found.latency(name).high > limit
        )

    @property
    def keeps(self) -> bool:
        """Whether it fits and the upper ends meet every target."""
        return self.fits and self.forecast is not None and not self.misses

    @property
    def is_likely(self) -> bool:
        """Whether it fits and its values meet every target, if not their upper ends."""
        found = self.forecast
        return (
            self.fits
            and found is not None
            and all(found.latency(name).value <= most for name, most in self.slo.limits_ms.items())
        )

    @property
    def excess(self) -> float:
        """The largest excess over a target."""
        return max((miss.excess for miss in self.misses), default=0.0)


@dataclass(frozen=True)
class Selection:
    """All options for a request, and the ones that meet its targets."""

    request: ChoiceRequest
    options: tuple[Option, ...]

    @cached_property
    def kept(self) -> list[Option]:
        """Options that meet the targets, best first."""
        return self._ranked(option for option in self.options if option.keeps)

    @cached_property
    def untold(self) -> Option | None:
        """An option that likely meets the targets and is so much better than the best one that
        does, that it is worth measuring before anything is chosen."""
        if not self.kept:
            return None
        best = self._ranked(option for option in self.estimated if option.is_likely)[0]
        values = [abs(rank(option, self.request)[0]) for option in (best, self.kept[0])]
        if self.request.objective != "output_tokens_per_s_per_gpu":
            values.reverse()  # lower is better
        return best if values[0] > WORTH_MEASURING * values[1] else None

    @cached_property
    def estimated(self) -> list[Option]:
        """Options that fit and have an estimate, best first."""
        return self._ranked(o for o in self.options if o.fits and o.forecast is not None)

    @cached_property
    def refused(self) -> list[Option]:
        """Options that fit and have no estimate, since nothing near them was measured."""
        return [o for o in self.options if o.fits and isinstance(o.outcome, Refusal)]

    @cached_property
    def nearest(self) -> list[Option]:
        """Options that fit and miss a target, the nearest miss first."""
        missing = (option for option in self.estimated if option.misses)
        return sorted(missing, key=lambda option: option.excess)

    @cached_property
    def front(self) -> list[Option]:
        """The Pareto front: no other has more tokens/s both per user and per GPU."""
        found: list[Option] = []
        for option in sorted(self.estimated, key=_speeds, reverse=True):
            if not found or _speeds(option)[1] > _speeds(found[-1])[1]:
                found.append(option)
        return found

    @property
    def overloaded(self) -> list[Option]:
        """Options that fit and are too slow for the request rate."""
        return [o for o in self.options if o.fits and isinstance(o.outcome, Overload)]

    def least_ms(self) -> dict[str, float]:
        """The lowest upper end for each target, whatever the others are."""
        forecasts = [option.forecast for option in self.estimated if option.forecast]
        return {
            name: min(found.latency(name).high for found in forecasts)
            for name in self.request.slo.limits_ms
            if forecasts
        }

    def measurements(self) -> list[Question]:
        """What to measure if evidence is missing; what helps most candidates comes first."""
        if self.untold and self.untold.forecast:
            return [self.untold.candidate.question(self.untold.forecast.running)]
        asked: Counter[Question] = Counter()
        for option in self.refused:
            assert isinstance(option.outcome, Refusal)
            for place, question in enumerate(option.outcome.measure):
                weight = len(option.outcome.measure) - place
                asked[replace(question, mtp=question.mtp or None)] += weight
        return [question for question, _ in asked.most_common(MOST_MEASUREMENTS)]

    def _ranked(self, options: Iterable[Option]) -> list[Option]:
        return sorted(options, key=lambda option: rank(option, self.request))


def rank(option: Option, request: ChoiceRequest) -> tuple[float, ...]:
    """The order of options: by the objective, then by latency and by GPUs; the least is best."""
    found = option.forecast
    assert found is not None
    gpus = option.candidate.num_gpus
    value = _VALUES[request.objective](found, request.prices_usd.get(option.candidate.gpu, 0.0))
    return round(value, 6), round(found.e2e_ms.high, 3), gpus, option.candidate.instances


_VALUES: Mapping[Objective, Callable[[Forecast, float], float]] = {
    "output_tokens_per_s_per_gpu": lambda found, _usd: -found.tok_s_per_gpu.value,
    "cost": lambda found, usd: found.usd_per_million_tokens(usd).value,
    "latency": lambda found, _usd: found.e2e_ms.value,
}


def _speeds(option: Option) -> tuple[float, float]:
    assert option.forecast is not None
    return option.forecast.tok_s_per_user.value, option.forecast.tok_s_per_gpu.value


def select(request: ChoiceRequest, estimator: Estimator) -> Selection:
    """Plan and estimate every candidate."""
    load, planner = LoadModel(estimator, request), Planner()
    found: list[Option] = []
    for candidate in candidates(request):
        option = _option(candidate, load, planner, request)
        found.append(option)
        found += _with_smaller_batch(option, load, planner, request)
    return Selection(request, tuple(_told_apart(found, load, planner)))


def _told_apart(options: Iterable[Option], load: LoadModel, planner: Planner) -> Iterable[Option]:
    """One of several options that differ only in a draft length that the rows do not record.

    The measurements used speculative decoding without recording its draft length: the planner's own
    number is kept, or else the smallest.
    """
    groups: dict[tuple[object, ...], list[Option]] = {}
    for option in options:
        candidate, found = option.candidate, option.forecast
        place = (candidate.gpu, candidate.layout, candidate.instances, candidate.max_batch_size)
        told = (found.e2e_ms, found.ttft_ms) if candidate.mtp_draft_tokens and found else ()
        drafts = () if told else (candidate.mtp_draft_tokens,)
        groups.setdefault((*place, *told, *drafts), []).append(option)
    for group in groups.values():
        own = None
        if len(group) > 1:
            own = planner.own_drafts(group[0].candidate, load.share(group[0].candidate))
        yield next((o for o in group if o.candidate.mtp_draft_tokens == own), group[0])


def _option(
    candidate: Candidate, load: LoadModel, planner: Planner, request: ChoiceRequest
) -> Option:
    """The candidate as it is planned; if the KV cache holds fewer requests, some wait."""
    share = load.share(candidate)
    planned = planner.plan(candidate, share)
    if planned.plan is None:
        return Option(candidate, planned, None, request.slo)
    if request.workload.concurrency is None:
        outcome = load.forecast(candidate)
        running = outcome.running if isinstance(outcome, Forecast) else 1
        return Option(candidate, planner.plan(candidate, running), outcome, request.slo)
    ranks = candidate.layout.ranks
    if 0 < planned.holds < share and (room := planned.holds // ranks):
        return _of_batch(replace(candidate, max_batch_size=room), load, planner, request)
    return Option(candidate, planned, load.forecast(candidate), request.slo)


def _of_batch(
    candidate: Candidate, load: LoadModel, planner: Planner, request: ChoiceRequest
) -> Option:
    assert candidate.max_batch_size is not None
    outcome = load.forecast(candidate, candidate.max_batch_size * candidate.layout.ranks)
    planned = planner.plan(candidate, load.share(candidate))
    return Option(candidate, planned, outcome, request.slo)


def _with_smaller_batch(
    option: Option, load: LoadModel, planner: Planner, request: ChoiceRequest
) -> Sequence[Option]:
    """If tokens come too slowly: smaller batches, down to the first that is fast enough."""
    names = {miss.name for miss in option.misses}
    if request.workload.concurrency is None or "itl_ms" not in names or not option.fits:
        return ()
    candidate, found = option.candidate, []
    if "max_batch_size" in candidate.base.overrides:
        return ()
    batch = candidate.max_batch_size or -(-load.share(candidate) // candidate.layout.ranks)
    while batch > 1:
        batch //= 2
        smaller = _of_batch(replace(candidate, max_batch_size=batch), load, planner, request)
        if smaller.forecast is None:
            break
        found.append(smaller)
        if "itl_ms" not in {miss.name for miss in smaller.misses}:
            break
    return found
