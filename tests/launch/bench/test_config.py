"""The points of a benchmark: how many requests each has, and that no prompt comes twice."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace

import pytest

from launch.bench import config, workload
from launch.bench.config import BenchConfig, LoadLevel
from launch.bench.workload import TEMPLATE

WORDS = workload.from_word_list()


def made(levels: Sequence[LoadLevel] = (), **fields: object) -> BenchConfig:
    fixed = workload.fixed(WORDS, 8, 4, TEMPLATE)
    base = BenchConfig(fixed, levels, WORDS, "openai_completions")
    return replace(base, **fields)  # type: ignore[arg-type]


def test_the_default_is_a_closed_loop_from_1_to_64() -> None:
    levels = config.closed("concurrency", config.CONCURRENCIES)
    assert [config.label(one) for one in levels] == ["c1", "c2", "c4", "c8", "c16", "c32", "c64"]


@pytest.mark.parametrize(("concurrency", "requests"), [(1, 20), (2, 20), (8, 80), (64, 640)])
def test_a_point_has_ten_requests_for_each_stream_and_at_least_twenty(
    concurrency: int, requests: int
) -> None:
    [one] = config.closed("concurrency", [concurrency])
    plan = made().plan(one, 0)
    assert (len(plan.calls), plan.concurrency) == (requests, concurrency)


def test_a_number_of_requests_that_is_asked_for_holds() -> None:
    [one] = config.closed("concurrency", [8])
    assert len(made(requests=5).plan(one, 0).calls) == 5


def test_a_load_of_some_time_has_many_prompts_before_it_repeats_them() -> None:
    [one] = config.closed("concurrency", [8])
    plan = made(duration_s=30.0).plan(one, 0)
    assert (len(plan.calls), plan.duration_s) == (config.REQUESTS_OF_DURATION, 30)


@pytest.mark.parametrize(("burstiness", "kind"), [(1.0, "poisson"), (0.5, "gamma")])
def test_an_open_loop_lasts_as_long_as_it_is_asked_to(burstiness: float, kind: str) -> None:
    [one] = config._levels(Namespace(rate=[20.0], burstiness=burstiness))
    plan = made(duration_s=10.0).plan(one, 0)
    assert (plan.kind, len(plan.calls)) == (kind, 200)
    assert plan.calls[-1].at_s == pytest.approx(10, rel=0.3)


def test_a_warm_up_runs_as_many_at_a_time_as_its_point() -> None:
    [one] = config.closed("concurrency", [8])
    warm = made().warm(one, 0)
    assert warm is not None
    assert (len(warm.calls), warm.concurrency) == (8, 8)
    assert made(warmup=0).warm(one, 0) is None


def test_a_trace_is_not_warmed_up_with_its_own_blocks() -> None:
    one = {"kind": "trace", "speed": 1.0}
    assert made().warm(one, 0) is None


def test_prompts_follow_from_their_place_in_the_workload() -> None:
    [one] = config.closed("concurrency", [2])
    first, next_one = (made().plan(one, place).calls for place in (0, 20))
    assert not {call.prompt for call in first} & {call.prompt for call in next_one}


def test_tasks_are_counted_as_tasks() -> None:
    [one] = config.closed("tasks", [4])
    agent = workload.agent(WORDS, 8, 4, TEMPLATE, calls=3)
    plan = made(workload=agent, requests=6).plan(one, 0)
    assert (len(plan.tasks), plan.size) == (6, 18)
