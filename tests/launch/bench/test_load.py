"""Loads: when each request is sent, and how they are shared among processes."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.reference_server.process import ReferenceServer
from benchmarks.reference_server.schedule import Schedule
from launch.bench import load
from launch.bench.clients import connect
from launch.bench.load import LoadPlan, Task
from launch.bench.request import LoadRequest, RequestRecord

TTFT_S, ITL_S, TOKENS = 0.02, 0.002, 5


@pytest.fixture(scope="module")
def server() -> Iterator[ReferenceServer]:
    with ReferenceServer(
        "openai_completions", Schedule(ttft_ms=TTFT_S * 1000, itl_ms=ITL_S * 1000)
    ) as one:
        yield one


def calls(count: int, **values: object) -> tuple[LoadRequest, ...]:
    ask = LoadRequest("hi", max_tokens=TOKENS, **values)  # type: ignore[arg-type]
    return tuple(replace(ask, index=number) for number in range(count))


def driven(
    server: ReferenceServer, plan: LoadPlan, stop_after_s: float | None = None
) -> list[RequestRecord]:
    """All records, in the order in which the requests were sent."""
    records: list[RequestRecord] = []

    async def run() -> None:
        client = connect(server.endpoint, server.api)
        stopping = asyncio.Event()
        if stop_after_s is not None:
            asyncio.get_running_loop().call_later(stop_after_s, stopping.set)
        await load.drive(plan, client, records.append, stopping)

    asyncio.run(run())
    return sorted(records, key=lambda one: one.sent_ns)


def at_once(records: list[RequestRecord]) -> int:
    """The most requests that were under way at a time."""
    edges = [(one.sent_ns, 1) for one in records] + [(one.ended_ns, -1) for one in records]
    running = most = 0
    for _, step in sorted(edges):
        running += step
        most = max(most, running)
    return most


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_closed_loop_keeps_so_many_requests_under_way(
    server: ReferenceServer, concurrency: int
) -> None:
    records = driven(server, LoadPlan("concurrency", calls(12), concurrency=concurrency))
    assert Counter(one.index for one in records) == Counter(range(12))
    assert all(one.ok for one in records)
    assert at_once(records) == concurrency


def test_a_load_of_some_time_repeats_its_calls_and_counts_on(server: ReferenceServer) -> None:
    plan = LoadPlan("concurrency", calls(2), concurrency=2, duration_s=0.3)
    records = driven(server, plan)
    assert sorted(one.index for one in records) == list(range(len(records)))
    assert len(records) > 4
    spread_s = (records[-1].sent_ns - records[0].sent_ns) / 1e9
    assert spread_s > 0.2
    late = [one for one in records if one.sent_ns - records[0].sent_ns > 0.3e9]
    assert len(late) <= plan.concurrency  # what began in time, on a machine that is busy


def test_an_open_loop_sends_at_its_own_times(server: ReferenceServer) -> None:
    """Whether or not the requests before have ended."""
    times = (0.0, 0.005, 0.01, 0.2)
    ask = LoadRequest("hi", max_tokens=TOKENS)
    timed = (replace(ask, index=n, at_s=at_s) for n, at_s in enumerate(times))
    plan = LoadPlan("poisson", tuple(timed))
    records = driven(server, plan)
    late_s = [(one.sent_ns - (one.scheduled_ns or 0)) / 1e9 for one in records]
    assert all(late >= 0 for late in late_s)
    wanted = [(one.scheduled_ns or 0) / 1e9 for one in records]
    assert [round(at_s - wanted[0], 3) for at_s in wanted] == list(times)
    assert at_once(records) >= 2


def test_a_start_is_waited_for(server: ReferenceServer) -> None:
    start_ns = time.monotonic_ns() + 200_000_000
    [record] = driven(server, LoadPlan("concurrency", calls(1), start_ns=start_ns))
    assert record.sent_ns >= start_ns


def test_poisson_arrivals_have_their_rate_and_gamma_ones_their_burstiness() -> None:
    gaps = {
        shape: [b - a for a, b in pairwise(load.arrivals_s(5000, 10.0, shape, seed=3))]
        for shape in (0.25, 1.0, 4.0)
    }
    for shape, found in gaps.items():
        mean = statistics.fmean(found)
        assert mean == pytest.approx(0.1, rel=0.1)
        assert statistics.pstdev(found) / mean == pytest.approx(shape**-0.5, rel=0.1)


def test_arrivals_follow_the_seed() -> None:
    one, same, other = (list(load.arrivals_s(5, 1.0, 1.0, seed)) for seed in (0, 0, 1))
    assert one == same != other


def test_the_first_arrival_waits_for_one_gap_and_no_more() -> None:
    first = [next(load.arrivals_s(1, 10.0, 1.0, seed)) for seed in range(1000)]
    assert statistics.fmean(first) == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_shares_are_the_whole_load_and_equally_long_for_each_stream(processes: int) -> None:
    plan = LoadPlan("concurrency", calls(20), concurrency=5)
    shares = [plan.share(number, processes) for number in range(processes)]
    assert sorted(call.index for one in shares for call in one.calls) == list(range(20))
    assert sum(one.concurrency for one in shares) == 5
    assert {len(one.calls) / one.concurrency for one in shares} == {4}


def test_each_task_is_done_by_one_process() -> None:
    plan = LoadPlan("tasks", tasks=tasks(7), concurrency=3)
    shares = [plan.share(number, 2) for number in (0, 1)]
    done = sorted(task[0].task or 0 for one in shares for task in one.tasks)
    assert done == list(range(7))


def test_a_process_too_many_gets_nothing_and_ends(server: ReferenceServer) -> None:
    share = LoadPlan("concurrency", calls(4), concurrency=2).share(2, 3)
    assert share.calls == ()
    assert driven(server, share) == []


def test_shares_of_a_load_of_some_time_never_count_the_same(server: ReferenceServer) -> None:
    plan = LoadPlan("concurrency", calls(2), concurrency=2, duration_s=0.15)
    found = [one.index for n in (0, 1) for one in driven(server, plan.share(n, 2))]
    assert len(found) == len(set(found)) > 2


def tasks(count: int, trap: str = "plain") -> tuple[Task, ...]:
    request = LoadRequest("hi", max_tokens=TOKENS, headers={"reference": f"trap={trap}"})
    return tuple((replace(request, task=number),) * 3 for number in range(count))


def test_the_calls_of_a_task_wait_for_each_other(server: ReferenceServer) -> None:
    records = driven(server, LoadPlan("tasks", tasks=tasks(2), concurrency=2))
    for number in (0, 1):
        own = [one for one in records if one.task == number]
        assert [one.call for one in own] == [0, 1, 2]
        assert all(a.ended_ns <= b.sent_ns for a, b in pairwise(own))


def test_a_call_without_room_is_tried_again_and_ends_its_task(server: ReferenceServer) -> None:
    plan = LoadPlan("tasks", tasks=tasks(1, "too_many_requests"), retries=1)
    records = driven(server, plan)
    assert [(one.call, one.attempt, one.ok) for one in records] == [(0, 0, False), (0, 1, False)]
    assert records[1].sent_ns - records[0].ended_ns >= load.RETRY_WAIT_S * 1e9


def test_each_further_try_waits_twice_as_long(
    server: ReferenceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep, slept_s = asyncio.sleep, list[float]()

    async def noted(seconds: float) -> None:
        slept_s.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(load, "RETRY_WAIT_S", 0.05)
    monkeypatch.setattr(asyncio, "sleep", noted)
    records = driven(server, LoadPlan("tasks", tasks=tasks(1, "too_many_requests"), retries=3))
    assert [one.attempt for one in records] == [0, 1, 2, 3]
    assert [one for one in slept_s if one >= 0.05] == [0.05, 0.1, 0.2]
    waited_s = [(b.sent_ns - a.ended_ns) / 1e9 for a, b in pairwise(records)]
    for wanted_s, found_s in zip((0.05, 0.1, 0.2), waited_s, strict=True):
        assert wanted_s <= found_s


def test_a_call_that_fails_for_good_is_not_tried_again(server: ReferenceServer) -> None:
    records = driven(server, LoadPlan("tasks", tasks=tasks(1, "error_event")))
    assert [one.failure.kind for one in records if one.failure] == ["in_stream"]


@pytest.mark.parametrize("kind", ["concurrency", "poisson"])
def test_a_stop_gives_up_what_is_under_way(server: ReferenceServer, kind: load.Kind) -> None:
    """Here with a server that never answers."""
    plan = LoadPlan(kind, calls(4, headers={"reference": "trap=silent"}), concurrency=2)
    assert driven(server, plan, stop_after_s=0.1) == []


def test_calls_of_tasks_are_numbered_through(server: ReferenceServer) -> None:
    records = driven(server, LoadPlan("tasks", tasks=tasks(3), concurrency=3))
    assert sorted(one.index for one in records) == list(range(9))
    assert {one.index // 3 for one in records if one.task == 2} == {2}


def test_a_call_of_a_chat_follows_all_that_was_said() -> None:
    asked = [({"role": "user", "content": text},) for text in ("a", "b")]
    first, second = (LoadRequest(None, messages=one, max_tokens=5) for one in asked)
    following = load._following(first, "an answer", second)
    assert following.messages == (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "an answer"},
        {"role": "user", "content": "b"},
    )
    third = load._following(LoadRequest("a", max_tokens=5), "b", LoadRequest("c", max_tokens=5))
    assert third.prompt == "abc"
