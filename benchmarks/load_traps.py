"""The trap suite: responses that mislead load clients, and the correct reading of each."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.reference_server import accuracy
from benchmarks.reference_server.accuracy import RequestTiming
from benchmarks.reference_server.log import LogEntry
from benchmarks.reference_server.process import ReferenceServer
from benchmarks.reference_server.responses import TOKEN
from benchmarks.reference_server.schedule import HEADER, MS
from launch.bench.clients import Api, connect
from launch.bench.request import FailureKind, LoadRequest, RequestRecord

REQUESTS = 16
STREAMS = 4
TOKENS = 60
# Of the traps that are failures, every so many-th request meets one: the others must stay right.
EVERY = 4
TIMEOUT_S = 1.5
# A time is right within this share of what the server logged.
WITHIN = 0.05


@dataclass(frozen=True, slots=True)
class TrapCase:
    """A trap, and the failure that it must be told as; without one, all numbers must be right.

    Without `counted` nobody says how many tokens came, and the client must not either. A client
    that hangs in a case is what the cases that are not a `trap` are about.
    """

    trap: str
    api: Api = "openai_chat"
    failure: FailureKind | None = None
    counted: bool = True
    hangs: bool = False


CASES = (
    TrapCase("three_tokens"),
    TrapCase("three_tokens_no_usage", counted=False),
    TrapCase("role_only"),
    TrapCase("reasoning"),
    TrapCase("too_many_requests", failure="unavailable"),
    TrapCase("cut", failure="cut"),
    TrapCase("error_event", failure="in_stream"),
    TrapCase("error_body", failure="in_stream"),
    TrapCase("unfinished", failure="unfinished"),
    TrapCase("cumulative", api="generate_stream"),
    TrapCase("duplicate", failure="overrun"),
    TrapCase("silent", failure="timeout", hangs=True),
    TrapCase("stalled", failure="timeout", hangs=True),
)


def rows() -> list[dict[str, Any]]:
    """Every case with its faults: none is right."""
    found = []
    for case in CASES:
        with ReferenceServer(case.api) as server:
            records = asyncio.run(send(case, server))
            log = server.log(REQUESTS)
        faults = list(check_records(case, records, log, WITHIN))
        row = {"row": "trap", "trap": case.trap, "api": case.api, "hangs": case.hangs}
        found.append({**row, "passed": not faults, "faults": faults})
    return found


async def send(case: TrapCase, server: ReferenceServer) -> list[RequestRecord]:
    client = connect(server.endpoint, case.api)
    records: list[RequestRecord] = []
    numbers = iter(range(REQUESTS))

    async def stream() -> None:
        for number in numbers:
            trap = case.trap if case.failure is None or number % EVERY == 0 else "plain"
            ask = LoadRequest(
                "Say something.",
                TOKENS,
                ignore_eos=True,
                timeout_s=TIMEOUT_S,
                headers={HEADER: f"id={number} trap={trap}"},
                keep_text=True,
                index=number,
            )
            records.append(await client.send(ask))

    await asyncio.gather(*(stream() for _ in range(STREAMS)))
    return records


def check_records(
    case: TrapCase, records: Sequence[RequestRecord], log: Mapping[int, LogEntry], within: float
) -> Iterator[str]:
    """What is wrong. Times are right if their median is `within` a share of the server's own."""
    if len(records) != REQUESTS:
        yield f"{len(records)} records of {REQUESTS} requests"
    good = []
    for record in records:
        expected = case.failure if record.index % EVERY == 0 else None
        kind = record.failure.kind if record.failure else None
        if kind != expected:
            yield f"request {record.index} is {kind or 'good'}, not {expected or 'good'}"
        elif expected is None:
            good.append((record, log[record.index]))
            yield from wrong_counts(*good[-1], case.counted)
    yield from wrong_times(good, within)


def wrong_counts(record: RequestRecord, entry: LogEntry, counted: bool) -> Iterator[str]:
    where = f"request {record.index}"
    if record.output_tokens != (entry.tokens if counted else None):
        yield f"{where} has {record.output_tokens} tokens, {entry.tokens} came"
    if sum(record.message_tokens) not in (0, entry.tokens):
        yield f"{where} has {sum(record.message_tokens)} tokens in its messages"
    if record.text != TOKEN * entry.tokens:
        yield f"{where} has the text {(record.text or '')[:40]!r}"


def wrong_times(good: Sequence[tuple[RequestRecord, LogEntry]], within: float) -> Iterator[str]:
    timings = [
        (accuracy.timing(one), accuracy.logged(entry)) for one, entry in good if one.first_token_ns
    ]
    if len(timings) != len(good):
        yield f"{len(good) - len(timings)} requests have no first token"
        return
    times: Mapping[str, Callable[[RequestTiming], float]] = {
        "TTFT": lambda one: one.ttft_ms,
        "time after the first token": lambda one: (one.last_ns - one.first_ns) / MS,
    }
    for name, of in times.items():
        seen_ms = statistics.median(of(seen) for seen, _ in timings)
        true_ms = statistics.median(of(true) for _, true in timings)
        if abs(seen_ms - true_ms) > within * true_ms:
            yield f"the median {name} is {seen_ms:.1f} ms, {true_ms:.1f} ms is true"
