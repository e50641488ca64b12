"""The search: planted speeds and failures, the next start after them, and the reason to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from builder.estimates import Question
from builder.estimates.interpolation import RequestMs
from builder.estimates.intervals import Spread
from builder.tuning.candidates import Candidate
from builder.tuning.outcomes import Kind, MeasuredLoad, Outcome, ruled_out
from builder.tuning.search import MOST_OPTION_STARTS, Search, Start, Stop

LOADS = (1, 2, 4, 8, 16, 32, 64)
OSL = 101
LIMITS = {"itl_ms": 25.0, "ttft_ms": 2000.0}
# GPUs, attention DP and GiB of a GPU besides the KV cache.
LAYOUTS = {
    "tp1": (1, 1, 90),
    "tp2": (2, 1, 50),
    "tp4": (4, 1, 30),
    "dp4": (4, 4, 40),
    "tp8": (8, 1, 20),
}
KV = "kv_cache_config.free_gpu_memory_fraction"


def layout(name: str, loads: tuple[int, ...] = LOADS) -> Candidate:
    gpus, ranks, gib = LAYOUTS[name]
    tp = gpus // ranks
    asked = Question("m", "b200", "fp4", "tensorrt_llm", tp, 1, ranks, 1024, OSL, loads[-1])
    options = {"moe_config.backend": "TRTLLM" if ranks > 1 else "CUTLASS", KV: 0.8}
    return Candidate(name, name.upper(), asked, loads, {}, {}, options, 1, gib, 0.8)


def variants(of: Candidate) -> list[Candidate]:
    """Six options, each with a smaller effect than the one before."""
    return [
        replace(
            of, id=f"{of.id}+o{n}=1", title=f"{of.title} o{n}", layout=of.id, effect=0.2 - n / 50
        )
        for n in range(6)
    ]


def prior(question: Question) -> Spread:
    """Times that grow with load and fall with GPUs, of a model that nobody measured."""
    load = question.concurrency / question.attention_dp
    first, each = 30 * load**0.5, (8 + load / 2) / question.num_gpus**0.5 * 2
    return Spread(RequestMs(first, each * (OSL - 1), 0.0), 0.3, 0.45, (1.28, 1.28))


def measured(candidate: Candidate, load: int, times: float = 1.0) -> MeasuredLoad:
    """What the prior expects, `times` as slow."""
    at = prior(replace(candidate.question, concurrency=load)).at
    ttft_ms, tpot_ms = at.first * times, at.rest / (OSL - 1) * times
    e2e_ms = ttft_ms + (OSL - 1) * tpot_ms
    return MeasuredLoad(load, ttft_ms, tpot_ms, load * OSL * 1000 / e2e_ms)


def searching(names: Sequence[str] = tuple(LAYOUTS), **options: object) -> Search:
    return Search([layout(name) for name in names], LIMITS, prior, **options)  # type: ignore[arg-type]


def started(
    search: Search, step: Start, past: Sequence[Outcome], times: float, hours: float = 1.0
) -> Outcome:
    """The outcome of a start whose server is `times` as slow as expected."""
    loads: list[MeasuredLoad] = []
    while (load := search.next_load(step.candidate, past, loads)) is not None:
        loads.append(measured(step.candidate, load, times))
    return Outcome(step.candidate.id, "measured", tuple(loads), hours)


def run(
    search: Search, slow: Mapping[str, float], hours: float = 1.0
) -> tuple[list[Outcome], Stop]:
    """A whole search on servers that are so much slower than expected."""
    outcomes: list[Outcome] = []
    while isinstance(step := search.next(outcomes), Start):
        times = slow.get(step.candidate.id, slow.get(step.candidate.layout, 1.0))
        outcomes.append(started(search, step, outcomes, times, hours))
    return outcomes, step


def ids(outcomes: Sequence[Outcome]) -> list[str]:
    return [outcome.candidate for outcome in outcomes]


class TestOrder:
    def test_the_first_start_is_the_best_of_the_estimate(self) -> None:
        step = searching().next([])
        assert isinstance(step, Start)
        assert (step.candidate.id, step.patience, step.expected_gain) == ("dp4", 1, None)
        assert "estimate" in step.reason

    def test_the_planted_best_is_found_and_no_start_is_repeated(self) -> None:
        slow = {"dp4": 3.0, "tp4": 0.3}
        search = searching(gain=0.0)
        outcomes, _ = run(search, slow)
        best = search.best(outcomes)
        assert best and best[0].id == "tp4"
        assert len(set(ids(outcomes))) == len(outcomes)

    def test_the_same_outcomes_give_the_same_answer_to_a_new_search(self) -> None:
        outcomes, stop = run(searching(gain=0.0), {"dp4": 2.0})
        for count in range(len(outcomes)):
            step = searching(gain=0.0).next(outcomes[:count])
            assert isinstance(step, Start) and step.candidate.id == outcomes[count].candidate
        assert searching(gain=0.0).next(outcomes) == stop

    def test_measurements_of_one_layout_move_the_search_to_unlike_ones_unless_it_follows_the_rank(
        self,
    ) -> None:
        bad = [
            Outcome("dp4", "measured", tuple(measured(layout("dp4"), load, 4.0) for load in LOADS))
        ]
        by_gain, by_rank = searching().next(bad), searching(by_rank=4).next(bad)
        assert isinstance(by_gain, Start) and isinstance(by_rank, Start)
        assert "expected gain" in by_gain.reason and "estimate" in by_rank.reason

    def test_the_objective_may_be_the_latency_of_one_load(self) -> None:
        names = ("tp1", "tp2", "tp8")
        search = Search([layout(name, (4,)) for name in names], {}, prior, objective="latency")
        outcomes, _ = run(search, {})
        best = search.best(outcomes)
        assert best and best[0].id == "tp8"
        assert all(len(outcome.loads) == 1 for outcome in outcomes)


class TestOptions:
    def test_they_follow_the_layouts_on_the_best_one_by_their_effects(self) -> None:
        outcomes, _ = run(searching(variants=variants, gain=0.001, starts=20), {"dp4": 0.5})
        names = ids(outcomes)
        options = [name for name in names if "+" in name]
        assert names[: len(names) - len(options)] + options == names
        assert options == [f"dp4+o{n}=1" for n in range(MOST_OPTION_STARTS)]

    def test_a_layout_worth_a_start_comes_before_them_whatever_their_effect(self) -> None:
        def strong(of: Candidate) -> list[Candidate]:
            return [replace(one, effect=2.0) for one in variants(of)]

        search = searching(variants=strong)
        past = [
            Outcome("dp4", "measured", tuple(measured(layout("dp4"), load, 3.0) for load in LOADS))
        ]
        step = search.next(past)
        assert isinstance(step, Start) and not step.candidate.layout

    def test_a_server_that_died_is_no_best_layout(self) -> None:
        died = Outcome("dp4", "died_under_load", (measured(layout("dp4"), 8),))
        assert searching(variants=variants).known([died]).keys() == LAYOUTS.keys()

    def test_a_second_layout_is_tried_only_near_the_best(self) -> None:
        search = searching(("dp4", "tp8"), variants=variants)
        for factor, wanted in ((1.0, {"dp4", "tp8"}), (0.9, {"dp4"})):
            rows = [
                MeasuredLoad(8, 100.0, 20.0, 400.0),
                MeasuredLoad(8, 100.0, 20.0, 800.0 * factor),
            ]
            past = [
                Outcome(name, "measured", (row,))
                for name, row in zip(("dp4", "tp8"), rows, strict=True)
            ]
            assert {one.layout for one in search.known(past).values() if one.layout} == wanted

    def test_a_resumed_search_knows_the_options_of_an_earlier_best_layout(self) -> None:
        search = searching(variants=variants)
        past = [Outcome("tp1+o3=1", "measured", (measured(layout("tp1"), 1),))]
        assert "tp1+o3=1" in search.known(past)
        assert "tp1+o2=1" not in search.known(past)


class TestLoads:
    @pytest.mark.parametrize("times", [0.2, 0.7, 1.0, 1.6, 2.5, 30.0])
    def test_they_end_at_the_largest_load_within_the_limits(self, times: float) -> None:
        search, one = searching(), layout("tp4")
        loads: list[MeasuredLoad] = []
        while (load := search.next_load(one, [], loads)) is not None:
            loads.append(measured(one, load, times))
        kept = [load for load in LOADS if measured(one, load, times).tpot_ms <= LIMITS["itl_ms"]]
        best = search.best([Outcome("tp4", "measured", tuple(loads))])
        assert (best[1].concurrency if best else None) == (kept[-1] if kept else None)
        assert len({load.concurrency for load in loads}) == len(loads) <= 4

    def test_the_first_one_is_lower_on_a_machine_that_measured_slower(self) -> None:
        search, one = searching(), layout("tp4")
        slow = [Outcome("tp8", "measured", (measured(layout("tp8"), 8, 3.0),))]
        expected, after = search.next_load(one, [], []), search.next_load(one, slow, [])
        assert expected and after and after < expected

    def test_one_far_above_a_limit_is_hopeless(self) -> None:
        search, one = searching(), layout("tp4")
        assert search.is_hopeless(one, 100.0, 51.0) and search.is_hopeless(one, 4001.0, 1.0)
        assert not search.is_hopeless(one, 3999.0, 49.0)

    def test_the_limit_of_the_whole_request_counts(self) -> None:
        search = Search([layout("tp4")], {"e2e_ms": 1000.0}, prior)
        slow, fast = MeasuredLoad(1, 600.0, 5.0, 90.0), MeasuredLoad(1, 400.0, 5.0, 90.0)
        assert search.best([Outcome("tp4", "measured", (slow,))]) is None
        assert search.best([Outcome("tp4", "measured", (fast,))])


class TestStops:
    def test_without_a_gain_worth_a_start(self) -> None:
        outcomes, stop = run(searching(), {"dp4": 0.2})
        assert stop.reason == "gain" and len(outcomes) < len(LAYOUTS)
        assert stop.gain_left is not None and stop.gain_left < 0.03

    def test_with_a_gain_left_that_is_too_small(self) -> None:
        outcomes, stop = run(searching(gain=10.0), {"dp4": 1.5})
        assert (len(outcomes), stop.reason) == (1, "gain")
        assert stop.gain_left is not None and 0 < stop.gain_left < 10

    def test_after_so_many_starts(self) -> None:
        outcomes, stop = run(searching(gain=0.0, starts=2), {"dp4": 3.0})
        assert (stop.reason, len(outcomes)) == ("budget", 2)

    def test_before_a_start_that_the_gpu_hours_do_not_pay(self) -> None:
        outcomes, stop = run(searching(gain=0.0, gpu_hours=4.5), {"dp4": 2.0}, hours=2.0)
        assert stop.reason == "budget" and sum(row.gpu_hours for row in outcomes) <= 4.5
        assert searching(gpu_hours=0.1).next([]) == Stop("budget", None)

    def test_when_everything_was_started(self) -> None:
        outcomes, stop = run(searching(("tp1", "tp8"), gain=0.0), {})
        assert sorted(ids(outcomes)) == ["tp1", "tp8"]
        assert stop == Stop("exhausted", 0.0)

    def test_when_no_candidate_can_meet_the_limits(self) -> None:
        outcomes, stop = run(searching(), dict.fromkeys(LAYOUTS, 1000.0))
        assert stop == Stop("gain", None)
        assert 1 <= len(outcomes) < len(LAYOUTS)

    def test_after_two_unknown_failures_in_a_row(self) -> None:
        past = [Outcome("dp4", "unknown"), Outcome("tp8", "unknown")]
        assert searching().next(past) == Stop("two unknown failures", None)


class TestFailures:
    @pytest.mark.parametrize(
        ("kind", "option", "excluded"),
        [
            ("memory_at_load", "", {"tp2", "tp1"}),
            ("memory_at_graphs", "", {"tp2"}),  # TP1 gives its cache less
            ("refused_option", "moe_config.backend", {"tp1", "tp2", "tp4", "tp8"}),
            ("refused_option", "", {"tp2"}),  # the diagnosis names no option
            ("timeout", "", set()),
            ("died_under_load", "", {"tp2"}),
            ("wrong_answer", "", {"tp2"}),
            ("unknown", "", set()),
            ("measured", "", {"tp2"}),
        ],
    )
    def test_what_each_rules_out(self, kind: Kind, option: str, excluded: set[str]) -> None:
        known = {name: layout(name) for name in LAYOUTS}
        known["tp1"] = replace(known["tp1"], kv_share=0.7)
        found = ruled_out(known, [Outcome("tp2", kind, (), 0.1, option)])
        assert found.keys() == excluded
        assert all(found.values())

    def test_a_timeout_gets_twice_the_time_once(self) -> None:
        search, past = searching(), [Outcome("dp4", "timeout")]
        step = search.next(past)
        assert isinstance(step, Start)
        assert (step.candidate.id, step.patience) == ("dp4", 2)
        step = search.next([*past, Outcome("dp4", "timeout")])
        assert isinstance(step, Start)
        assert (step.candidate.id != "dp4", step.patience) == (True, 1)

    def test_an_unknown_failure_is_tried_again_after_another_start(self) -> None:
        search = searching(by_rank=4, gain=0.0)
        past = [Outcome("dp4", "unknown")]
        step = search.next(past)
        assert isinstance(step, Start) and step.candidate.id != "dp4"
        past.append(started(search, step, past, 1.0))
        again = search.next(past)
        assert isinstance(again, Start) and again.candidate.id == "dp4"
        past.append(Outcome("dp4", "unknown"))
        assert "dp4" in ruled_out(search.known(past), past)

    def test_a_failed_server_measured_nothing(self) -> None:
        died = Outcome("dp4", "died_under_load", (measured(layout("dp4"), 64, 0.1),))
        assert searching().best([died]) is None


class TestForecast:
    def test_it_says_what_a_search_costs(self) -> None:
        found = searching(variants=variants).forecast()
        assert found == searching(variants=variants).forecast()
        assert 1 <= found["starts"] <= 8
        assert 0 < found["wall_hours"] <= found["gpu_hours"]

    def test_a_smaller_budget_costs_less(self) -> None:
        budgets: list[Callable[[], Search]] = [
            lambda: searching(starts=1),
            lambda: searching(starts=3),
            lambda: searching(starts=8, gain=0.0),
        ]
        costs = [new().forecast()["gpu_hours"] for new in budgets]
        assert all(one < other for one, other in pairwise(costs))
