"""The search: from the outcomes of starts to the next start, or the reason to stop.

Layouts come first. The first ones follow the order of the estimate, later ones the expected gain:
the mean over joint samples of the estimate's errors, given the measured servers. Once no layout is
worth a start, the best ones are tried with one changed option each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, exp, inf, log, log2
from random import Random
from statistics import fmean
from typing import Literal

from ..deployment import Objective
from ..estimates.intervals import Spread
from ..estimates.question import Question
from . import posterior
from .candidates import Candidate
from .outcomes import MeasuredLoad, Outcome, ended_unknown, ruled_out, to_repeat

StopReason = Literal["gain", "budget", "exhausted", "two unknown failures"]
Times = tuple[float, float]  # of TTFT and TPOT

GAIN, STARTS = 0.03, 8
MOST_OPTION_STARTS = 4
NEAR_BEST = 0.95  # a second layout is tried with options too from this share of the best on
HOPELESS = 2.0  # times a limit: a load can be stopped there
# Hours of a start and of one load, assumed until a start was measured.
START_HOURS, LOAD_HOURS = 20 / 60, 3 / 60
DRAWS = 4  # of a forecast


@dataclass(frozen=True, slots=True)
class Start:
    """The next start. `patience` multiplies its time limit: 2 after a timeout.

    `expected_gain` is a share of the best so far, `None` while nothing meets the limits.
    """

    candidate: Candidate
    reason: str
    expected_gain: float | None
    patience: int = 1


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the search ends, and the largest expected gain that is left as a share of the best;
    `None` if nothing meets the limits."""

    reason: StopReason
    gain_left: float | None


class Search:
    """Finds the next start from all outcomes so far; the same outcomes give the same answer."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        limits_ms: Mapping[str, float],
        prior: Callable[[Question], Spread],
        *,
        objective: Objective = "output_tokens_per_s_per_gpu",
        by_rank: int = 1,
        variants: Callable[[Candidate], Sequence[Candidate]] = lambda _layout: (),
        gain: float = GAIN,
        starts: int = STARTS,
        gpu_hours: float = inf,
    ) -> None:
        """`candidates` are layouts and `limits_ms` those of `Slo`; `prior` returns the expected
        times of one server. So many measured layouts are tried `by_rank` of the prior. `variants`
        returns a layout with one changed option each, the largest effect first."""
        self._layouts = {layout.id: layout for layout in candidates}
        self._limits_ms, self._objective, self._by_rank = limits_ms, objective, by_rank
        self._gain, self._starts, self._gpu_hours = gain, starts, gpu_hours
        self._variants = cache(lambda name: tuple(variants(self._layouts[name])))
        self._prior = cache(prior)
        self._told = cache(self._new_told)

    def next(self, outcomes: Sequence[Outcome]) -> Start | Stop:
        """The next start after these outcomes, in their order."""
        known = self.known(outcomes)
        excluded = ruled_out(known, outcomes)
        left = [one for one in known.values() if one.id not in excluded]
        best = self._best_score(outcomes, known)
        gains = self._gains(left, outcomes, known, best)
        most = max(gains.values(), default=0.0)
        gain_left = most / best if best else None
        again = to_repeat(outcomes)
        pool = [known[again]] if again else self._worth(left, outcomes, gains, best)
        hours = self._hours_per_gpu(outcomes, known)
        room = self._gpu_hours - sum(outcome.gpu_hours for outcome in outcomes)
        payable = [one for one in pool if one.question.num_gpus * hours <= room]
        if ended_unknown(outcomes):
            return Stop("two unknown failures", gain_left)
        if not left:
            return Stop("exhausted", gain_left)
        if not pool:
            return Stop("gain", gain_left)
        if not payable or len(outcomes) >= self._starts:
            return Stop("budget", gain_left)
        chosen, reason = self._chosen(payable, outcomes, gains)
        if again:
            reason = "it timed out once: again with twice the time"
        share = gains[chosen.id] / best if best else None
        return Start(chosen, reason, share, patience=2 if again else 1)

    def known(self, outcomes: Sequence[Outcome]) -> Mapping[str, Candidate]:
        """Every layout, and the variants that were started or may be next, by their ids."""
        found = dict(self._layouts)
        started = {row.candidate for row in outcomes}
        scores = self._layout_scores(outcomes)
        ranked = sorted((name for name in scores if scores[name]), key=lambda name: -scores[name])
        near = [name for name in ranked[:2] if scores[name] >= NEAR_BEST * scores[ranked[0]]]
        for layout in self._layouts:
            if layout in near or any(name.startswith(f"{layout}+") for name in started):
                wanted = self._variants(layout)
                found |= {one.id: one for one in wanted if layout in near or one.id in started}
        return found

    def _layout_scores(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        return {
            row.candidate: self._measured_score(self._layouts[row.candidate], row)
            for row in outcomes
            if row.kind == "measured" and row.candidate in self._layouts
        }

    def _worth(
        self,
        left: Sequence[Candidate],
        outcomes: Sequence[Outcome],
        gains: Mapping[str, float],
        best: float,
    ) -> list[Candidate]:
        """The candidates that are worth a start: layouts, or else changed options."""
        if outcomes and not any(gains.values()):
            return []
        worth = [one for one in left if not best or gains[one.id] >= self._gain * best]
        if layouts := [one for one in worth if not one.layout]:
            return layouts
        tried = sum(row.candidate not in self._layouts for row in outcomes)
        return worth if tried < MOST_OPTION_STARTS else []

    def _chosen(
        self, pool: Sequence[Candidate], outcomes: Sequence[Outcome], gains: Mapping[str, float]
    ) -> tuple[Candidate, str]:
        """The candidate to start next, and why."""
        if outcomes and outcomes[-1].kind == "unknown":  # it gets its second start later
            pool = [one for one in pool if one.id != outcomes[-1].candidate] or pool
        if pool[0].layout:
            first = max(pool, key=lambda one: one.effect)
            return first, "the largest expected effect of one option on a best layout"
        if sum(row.kind == "measured" for row in outcomes) < self._by_rank:
            ranks = {one.id: (*self._rank(one), gains[one.id]) for one in pool}
            return max(
                pool, key=lambda one: ranks[one.id]
            ), "the best of those left by the estimate"
        first = max(pool, key=lambda one: (gains[one.id], *self._rank(one)))
        return first, "the largest expected gain after the measured servers"

    def _rank(self, candidate: Candidate) -> tuple[float, float]:
        """The expected score, and how near the limits the expected times come."""
        score = self._score_with(candidate, (0.0, 0.0))
        return score, -min(self._excess(candidate, *row[1]) for row in self._told(candidate)[0])

    # Scores

    def _score(self, candidate: Candidate, tok_s: float, times: Times) -> float:
        """Output tokens/s per GPU, or requests/s of one stream; 0 if a limit is missed."""
        if self._excess(candidate, *times) > 1:
            return 0.0
        if self._objective == "latency":
            return 1000 / _e2e_ms(candidate, *times)
        return tok_s / candidate.question.num_gpus

    def _excess(self, candidate: Candidate, ttft_ms: float, tpot_ms: float) -> float:
        """The largest ratio of a time to its limit; 0 without limits."""
        e2e_ms = _e2e_ms(candidate, ttft_ms, tpot_ms)
        times = {"ttft_ms": ttft_ms, "itl_ms": tpot_ms, "e2e_ms": e2e_ms}
        return max((times[name] / most for name, most in self._limits_ms.items()), default=0.0)

    def is_hopeless(self, candidate: Candidate, ttft_ms: float, tpot_ms: float) -> bool:
        """Whether a load can be stopped: a time is over twice its limit."""
        return self._excess(candidate, ttft_ms, tpot_ms) > HOPELESS

    def _load_score(self, candidate: Candidate, load: MeasuredLoad) -> float:
        return self._score(candidate, load.output_tok_s, (load.ttft_ms, load.tpot_ms))

    def _measured_score(self, candidate: Candidate, outcome: Outcome) -> float:
        return max((self._load_score(candidate, load) for load in outcome.loads), default=0.0)

    def _best_score(self, outcomes: Sequence[Outcome], known: Mapping[str, Candidate]) -> float:
        measured = [row for row in outcomes if row.kind == "measured"]
        scores = (self._measured_score(known[row.candidate], row) for row in measured)
        return max(scores, default=0.0)

    def best(self, outcomes: Sequence[Outcome]) -> tuple[Candidate, MeasuredLoad] | None:
        """The candidate and the load with the best score within the limits."""
        known = self.known(outcomes)
        measured = [row for row in outcomes if row.kind == "measured"]
        rows = [(known[row.candidate], load) for row in measured for load in row.loads]
        ranked = max(rows, key=lambda pair: self._load_score(*pair), default=None)
        return ranked if ranked and self._load_score(*ranked) else None

    # What is expected

    def _new_told(self, candidate: Candidate) -> tuple[tuple[tuple[int, Times], ...], Times]:
        """Expected times at each load, and the standard deviations of their logs."""
        asked = [replace(candidate.question, concurrency=load) for load in candidate.loads]
        found = [self._prior(question) for question in asked]
        times = [(one.at.first, one.at.rest / (candidate.question.osl - 1)) for one in found]
        deviations = (
            fmean(one.ttft_deviation for one in found),
            fmean(one.tpot_deviation for one in found),
        )
        return tuple(zip(candidate.loads, times, strict=True)), deviations

    def _score_with(self, candidate: Candidate, errors: Times) -> float:
        """The score of the largest load within the limits if all times are off by these logs."""
        ttft_times, tpot_times = map(exp, errors)
        for load, (ttft_ms, tpot_ms) in reversed(self._told(candidate)[0]):
            times = ttft_ms * ttft_times, tpot_ms * tpot_times
            tok_s = load * candidate.question.osl * 1000 / _e2e_ms(candidate, *times)
            if score := self._score(candidate, tok_s, times):
                return score
        return 0.0

    def _posterior(
        self,
        asked: Sequence[Candidate],
        outcomes: Sequence[Outcome],
        known: Mapping[str, Candidate],
    ) -> list[tuple[posterior.Vector, posterior.Matrix]]:
        """Means and covariances of the errors of TTFT and of TPOT."""
        measured = [row for row in outcomes if row.kind == "measured" and row.loads]
        every = [*(known[row.candidate] for row in measured), *asked]
        seen, rest = range(len(measured)), range(len(measured), len(every))
        found = []
        for place in (0, 1):
            deviations = [self._told(one)[1][place] for one in every]

            def prior(i: int, j: int, sizes: Sequence[float] = deviations) -> float:
                one, other = every[i], every[j]
                own = one.effect**2 if one.id == other.id else 0.0
                pair = sizes[i], sizes[j]
                return own + posterior.covariance(one.question, other.question, pair)

            errors = [self._error(known[row.candidate], row)[place] for row in measured]
            found.append(posterior.conditioned(prior, seen, errors, rest))
        return found

    def _error(self, candidate: Candidate, outcome: Outcome) -> Times:
        """The mean log of measured over expected TTFT and TPOT."""
        told = dict(self._told(candidate)[0])
        pairs = [(load, told[load.concurrency]) for load in outcome.loads]
        return (
            fmean(log(load.ttft_ms / ttft_ms) for load, (ttft_ms, _) in pairs),
            fmean(log(load.tpot_ms / tpot_ms) for load, (_, tpot_ms) in pairs),
        )

    def _gains(
        self,
        left: Sequence[Candidate],
        outcomes: Sequence[Outcome],
        known: Mapping[str, Candidate],
        best: float,
    ) -> dict[str, float]:
        """The expected gain of each candidate over the best score."""
        chance = Random(posterior.SEED)
        both = [posterior.samples(*part, chance) for part in self._posterior(left, outcomes, known)]
        gains = {}
        for one, ttft, tpot in zip(left, *both, strict=True):
            scores = (self._score_with(one, errors) for errors in zip(ttft, tpot, strict=True))
            gains[one.id] = fmean(max(score - best, 0.0) for score in scores)
        return gains

    # Loads of one start

    def next_load(
        self, candidate: Candidate, outcomes: Sequence[Outcome], loads: Sequence[MeasuredLoad]
    ) -> int | None:
        """The next load to measure on the running server; `None` once its best load is known.

        Without limits that is the largest one. Otherwise the first is the largest that is expected
        to meet the limits after the outcomes so far, and bisection follows.
        """
        every = candidate.loads
        if not self._limits_ms:
            return None if loads else every[-1]
        if not loads:
            return self._expected_load(candidate, outcomes)
        low, high = -1, len(every)
        for load in loads:
            place = every.index(load.concurrency)
            if self._load_score(candidate, load):
                low = max(low, place)
            else:
                high = min(high, place)
        return every[(low + high) // 2] if high - low > 1 else None

    def _expected_load(self, candidate: Candidate, outcomes: Sequence[Outcome]) -> int:
        means = self._posterior([candidate], outcomes, self.known(outcomes))
        ttft_times, tpot_times = (exp(mean[0]) for mean, _ in means)
        meeting = [
            load
            for load, (ttft_ms, tpot_ms) in self._told(candidate)[0]
            if self._excess(candidate, ttft_ms * ttft_times, tpot_ms * tpot_times) <= 1
        ]
        return meeting[-1] if meeting else candidate.loads[0]

    # Costs

    def _hours_per_gpu(self, outcomes: Sequence[Outcome], known: Mapping[str, Candidate]) -> float:
        """Hours of a start with its loads: the mean of those so far."""
        spent = [row.gpu_hours / known[row.candidate].question.num_gpus for row in outcomes]
        points = max(ceil(log2(len(one.loads) + 1)) for one in self._layouts.values())
        return fmean(spent) if any(spent) else START_HOURS + LOAD_HOURS * (points + 1)

    def forecast(self) -> Mapping[str, float]:
        """What to expect before the first start: `starts`, `gpu_hours` and `wall_hours`, each the
        mean of searches whose measurements are drawn from the prior."""
        names, layouts = list(self._layouts), list(self._layouts.values())
        both = [
            posterior.samples(*part, Random(place), DRAWS)
            for place, part in enumerate(self._posterior(layouts, (), self._layouts))
        ]
        found: dict[str, list[float]] = {"starts": [], "gpu_hours": [], "wall_hours": []}
        for draw in range(DRAWS):
            drawn = zip(names, *([row[draw] for row in part] for part in both), strict=True)
            errors = {name: (ttft, tpot) for name, ttft, tpot in drawn}
            outcomes: list[Outcome] = []
            wall = 0.0
            while isinstance(step := self.next(outcomes), Start):
                row = self._imagined(step.candidate, errors, outcomes)
                outcomes.append(row)
                wall += row.gpu_hours / step.candidate.question.num_gpus
            hours = sum(row.gpu_hours for row in outcomes)
            for name, value in zip(found, (len(outcomes), hours, wall), strict=True):
                found[name].append(value)
        return {name: fmean(values) for name, values in found.items()}

    def _imagined(
        self, candidate: Candidate, errors: Mapping[str, Times], outcomes: Sequence[Outcome]
    ) -> Outcome:
        """The outcome of a start if the expected times of its layout are off by these logs."""
        effect = Random(candidate.id).gauss(0.0, candidate.effect)
        ttft_times, tpot_times = (
            exp(error + effect) for error in errors[candidate.layout or candidate.id]
        )
        told, loads = dict(self._told(candidate)[0]), list[MeasuredLoad]()
        while (load := self.next_load(candidate, outcomes, loads)) is not None:
            times = told[load][0] * ttft_times, told[load][1] * tpot_times
            tok_s = load * candidate.question.osl * 1000 / _e2e_ms(candidate, *times)
            loads.append(MeasuredLoad(load, *times, tok_s))
        hours = (START_HOURS + LOAD_HOURS * len(loads)) * candidate.question.num_gpus
        return Outcome(candidate.id, "measured", tuple(loads), hours)


def _e2e_ms(candidate: Candidate, ttft_ms: float, tpot_ms: float) -> float:
    return ttft_ms + (candidate.question.osl - 1) * tpot_ms
