"""The selection: candidates that fit and meet the targets at the upper ends, the best first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..chart import pareto_front
from ..deployment import Objective, Slo
from ..estimates import Estimator, Interval, Question, Refusal
from ..estimates.refusals import floor_ms
from .candidates import Candidate, Forecast, Outcome, Planned, Search, candidates
from .request import ChoiceRequest

MOST_MEASUREMENTS = 4  # proposed if evidence is missing
# From this ratio on, a likely option is worth measuring before the best sure one is chosen.
WORTH_MEASURING = 1.5


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
    def misses(self) -> dict[str, float]:
        """The missed targets: by how much the upper end is above each, as a share of it."""
        if (found := self.forecast) is None:
            return {}
        return {
            name: found.latency(name).high / limit - 1
            for name, limit in self.slo.limits_ms.items()
            if found.latency(name).high > limit
        }

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
    def point(self) -> tuple[float, float]:
        """The place in a chart: the values of `speeds`."""
        user, per_gpu = self.speeds
        return user.value, per_gpu.value

    @property
    def speeds(self) -> tuple[Interval, Interval]:
        """Output tokens/s per user and per GPU."""
        assert self.forecast is not None
        return self.forecast.tok_s_per_user, self.forecast.tok_s_per_gpu


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
        return sorted(missing, key=lambda option: max(option.misses.values()))

    def ordered(self, chosen: Option | None) -> list[Option]:
        """The chosen option, the others that meet the targets, and the nearest misses."""
        first = [chosen] if chosen else []
        kept = [option for option in self.kept if option is not chosen]
        return [*first, *kept, *self.nearest]

    @cached_property
    def front(self) -> list[Option]:
        """The Pareto front: no other has more tokens/s both per user and per GPU."""
        return pareto_front(self.estimated, lambda option: option.point)

    @property
    def overloaded(self) -> list[Option]:
        """Options that fit and are too slow for the request rate."""
        return [o for o in self.options if o.fits and isinstance(o.outcome, float)]

    def least_ms(self) -> dict[str, float]:
        """The lowest upper end for each target, whatever the others are."""
        forecasts = [option.forecast for option in self.estimated if option.forecast]
        return {
            name: min(found.latency(name).high for found in forecasts)
            for name in self.request.slo.limits_ms
            if forecasts
        }

    @cached_property
    def impossible(self) -> dict[str, float]:
        """The least time of each target that no candidate can meet, whatever runs on it."""
        return impossible_limits(self.request, {one.candidate.question(1) for one in self.options})

    def measurements(self) -> list[Question]:
        """What to measure if evidence is missing: first loads that were asked for, and of these
        what helps most candidates."""
        if self.impossible:
            return []
        if self.untold and self.untold.forecast:
            return [self.untold.candidate.question(self.untold.forecast.running)]
        asked: Counter[Question] = Counter()
        firsts: set[Question] = set()
        for option in self.refused:
            assert isinstance(option.outcome, Refusal)
            for place, question in enumerate(option.outcome.measure):
                weight = len(option.outcome.measure) - place
                measured = replace(question, mtp=question.mtp or None)
                asked[measured] += weight
                if place == 0 and option.candidate.instances == 1:
                    firsts.add(measured)
        ranked = sorted(asked, key=lambda one: (one not in firsts, -asked[one]))
        return ranked[:MOST_MEASUREMENTS]

    def _ranked(self, options: Iterable[Option]) -> list[Option]:
        return sorted(options, key=lambda option: rank(option, self.request))


def impossible_limits(request: ChoiceRequest, asked: Iterable[Question]) -> dict[str, float]:
    """The least time in ms of each target that none of the servers can meet with one request."""
    given = (path for base in request.bases for path in base.overrides)
    if any(path.startswith("speculative_config") for path in given):
        return {}  # by which a step may give any number of tokens
    floors = [floor_ms(one) for one in asked]
    known = [floor for floor in floors if floor]
    if len(known) < len(floors):
        return {}
    limits = request.slo.limits_ms
    least = {name: min(one[name] for one in known) for name in limits}
    return {name: time for name, time in least.items() if time > limits[name]}


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


def select(request: ChoiceRequest, estimator: Estimator) -> Selection:
    """Plan and estimate every candidate."""
    search = Search(request, estimator)
    found: list[Option] = []
    for candidate in candidates(request):
        option = _option(candidate, search)
        found.append(option)
        found += _with_smaller_batch(option, search)
    return Selection(request, tuple(_told_apart(found, search)))


def _told_apart(options: Iterable[Option], search: Search) -> Iterable[Option]:
    """One of several options that differ only in a draft length that the rows do not record.

    The measurements used speculative decoding without recording its draft length: the planner's own
    number is kept, or else the smallest.
    """
    groups: dict[tuple[object, ...], list[Option]] = {}
    for option in options:
        candidate, found = option.candidate, option.forecast
        place = (candidate.gpu, candidate.sharding, candidate.instances, candidate.max_batch_size)
        told = (found.e2e_ms, found.ttft_ms) if candidate.mtp_draft_tokens and found else ()
        drafts = () if told else (candidate.mtp_draft_tokens,)
        groups.setdefault((*place, *told, *drafts), []).append(option)
    for group in groups.values():
        own = None
        if len(group) > 1:
            own = search.own_drafts(group[0].candidate)
        yield next((o for o in group if o.candidate.mtp_draft_tokens == own), group[0])


def _option(candidate: Candidate, search: Search) -> Option:
    """The candidate as it is planned; if the KV cache holds fewer requests, some wait."""
    share, request = search.share(candidate), search.request
    planned = search.plan(candidate, share)
    if planned.plan is None:
        return Option(candidate, planned, None, request.slo)
    if request.workload.concurrency is None:
        outcome = search.forecast(candidate)
        running = outcome.running if isinstance(outcome, Forecast) else 1
        return Option(candidate, search.plan(candidate, running), outcome, request.slo)
    ranks = candidate.sharding.data_parallel_ranks
    if 0 < planned.holds < share and (room := planned.holds // ranks):
        return _of_batch(candidate, room, search)
    return Option(candidate, planned, search.forecast(candidate), request.slo)


def _of_batch(candidate: Candidate, batch: int, search: Search) -> Option:
    candidate = replace(candidate, max_batch_size=batch)
    outcome = search.forecast(candidate, batch * candidate.sharding.data_parallel_ranks)
    planned = search.plan(candidate, search.share(candidate))
    return Option(candidate, planned, outcome, search.request.slo)


def _with_smaller_batch(option: Option, search: Search) -> Sequence[Option]:
    """If tokens come too slowly: smaller batches, down to the first that is fast enough."""
    candidate, found = option.candidate, []
    is_given = "max_batch_size" in candidate.base.overrides
    if search.request.workload.concurrency is None or is_given or not option.fits:
        return ()
    if "itl_ms" not in option.misses:
        return ()
    batch = candidate.max_batch_size or -(
        -search.share(candidate) // candidate.sharding.data_parallel_ranks
    )
    while batch > 1:
        batch //= 2
        smaller = _of_batch(candidate, batch, search)
        if smaller.forecast is None:
            break
        found.append(smaller)
        if "itl_ms" not in smaller.misses:
            break
    return found
