"""No answer, however odd, makes a client report a wrong number as right, or hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks import load_traps
from benchmarks.load_traps import CASES, TrapCase
from benchmarks.reference_server.process import ReferenceServer
from benchmarks.reference_server.schedule import MS
from launch.bench.clients import Api

# Other work on the machine may delay a message; what traps do to times is far more.
WITHIN = 0.5
# What a client over another API meets as well.
ELSEWHERE: tuple[TrapCase, ...] = (
    *(replace(CASES[0], api=api) for api in ("openai_completions", "generate_stream", "grpc")),
    *(replace(CASES[1], api=api) for api in ("generate_stream", "grpc")),
    *(
        replace(case, api=api)
        for api in ("openai_completions", "generate_stream")
        for case in CASES
        if case.failure not in (None, "timeout")
    ),
    TrapCase("cumulative", api="grpc"),
    TrapCase("too_many_requests", api="grpc", failure="unavailable"),
    TrapCase("cut", api="grpc", failure="cut"),
    TrapCase("error_event", api="grpc", failure="in_stream"),
    TrapCase("unfinished", api="grpc", failure="unfinished"),
    TrapCase("duplicate", api="grpc", failure="overrun"),
    TrapCase("stalled", api="grpc", failure="timeout"),
)


def name(case: TrapCase) -> str:
    return f"{case.trap}-{case.api}"


@pytest.mark.parametrize("case", [*CASES, *ELSEWHERE], ids=name)
def test_a_trap_is_told_as_what_it_is(
    case: TrapCase, reference_servers: Callable[[Api], ReferenceServer]
) -> None:
    server = reference_servers(case.api)
    records = asyncio.run(load_traps.send(case, server))
    log = server.log(load_traps.REQUESTS)
    assert list(load_traps.check_records(case, records, log, WITHIN)) == []


def test_the_suite_notices_wrong_numbers(
    reference_servers: Callable[[Api], ReferenceServer],
) -> None:
    server, case = reference_servers("openai_chat"), TrapCase("plain")
    records = asyncio.run(load_traps.send(case, server))
    log = server.log(load_traps.REQUESTS)
    late = [replace(one, first_token_ns=(one.first_token_ns or 0) + 40 * MS) for one in records]
    many = [replace(one, output_tokens=one.index) for one in records]
    for wrong in (late, many, records[1:]):
        assert list(load_traps.check_records(case, wrong, log, WITHIN))
    assert list(load_traps.check_records(TrapCase("plain", failure="cut"), records, log, WITHIN))
