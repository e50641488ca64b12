"""An accuracy test: how far what a load client measures is from what the reference server sent."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launch.bench.request import LoadRequest, RequestRecord

from .log import LogEntry
from .schedule import HEADER, MS, Schedule

NS_PER_S = 1e9
TIMEOUT_S = 60.0
PROMPT = "Say something."


@dataclass(frozen=True, slots=True)
class AccuracyTest:
    """`streams` at a time, each with a token every `itl_ms` after its first one."""

    streams: int
    requests: int
    tokens: int
    itl_ms: float
    ttft_ms: float = 50.0

    @property
    def schedule(self) -> Schedule:
        """What the reference server is started with."""
        return Schedule(self.ttft_ms, self.itl_ms, self.tokens)

    def asks(self) -> list[LoadRequest]:
        return [
            LoadRequest(
                PROMPT,
                self.tokens,
                ignore_eos=True,
                timeout_s=TIMEOUT_S,
                headers={HEADER: f"id={number}"},
                index=number,
            )
            for number in range(self.requests)
        ]


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """One request, as its client or the server saw it; times in ns."""

    begun_ns: int
    first_ns: int
    last_ns: int
    tokens: int

    @property
    def ttft_ms(self) -> float:
        return (self.first_ns - self.begun_ns) / MS

    @property
    def tpot_ms(self) -> float:
        return (self.last_ns - self.first_ns) / MS / (self.tokens - 1)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors are what a client says less what the server logged, of means; percentages are of the
    latter.

    `late_percent` is how much slower than its schedule the server itself was.
    """

    tokens_per_s: float  # true
    ttft_error_ms: float
    ttft_error_percent: float
    tpot_error_percent: float
    throughput_error_percent: float
    late_percent: float
    cpu_s_per_1k_tokens: float
    peak_mib: float


def timing(record: RequestRecord) -> RequestTiming:
    """Of a record that is not a failure and has output."""
    assert record.first_token_ns is not None
    assert record.last_token_ns is not None
    tokens = record.output_tokens or 0
    return RequestTiming(record.sent_ns, record.first_token_ns, record.last_token_ns, tokens)


def compare(
    test: AccuracyTest,
    seen: Mapping[int, RequestTiming],
    log: Mapping[int, LogEntry],
    cpu_s: float,
    peak_mib: float,
) -> Accuracy:
    ours, sent = list(seen.values()), [logged(log[number]) for number in seen]
    ttft_ms, true_ttft_ms = (statistics.fmean(one.ttft_ms for one in rows) for rows in (ours, sent))
    tpot_ms, true_tpot_ms = (statistics.fmean(one.tpot_ms for one in rows) for rows in (ours, sent))
    tokens_per_s = throughput(sent)
    return Accuracy(
        tokens_per_s=tokens_per_s,
        ttft_error_ms=ttft_ms - true_ttft_ms,
        ttft_error_percent=100 * (ttft_ms / true_ttft_ms - 1),
        tpot_error_percent=100 * (tpot_ms / true_tpot_ms - 1),
        throughput_error_percent=100 * (throughput(ours) / tokens_per_s - 1),
        late_percent=100 * (true_tpot_ms / test.itl_ms - 1),
        cpu_s_per_1k_tokens=cpu_s / sum(one.tokens for one in ours) * 1000,
        peak_mib=peak_mib,
    )


def throughput(rows: Sequence[RequestTiming]) -> float:
    """Tokens per second from the first beginning to the last token."""
    span_ns = max(one.last_ns for one in rows) - min(one.begun_ns for one in rows)
    return sum(one.tokens for one in rows) / span_ns * NS_PER_S


def cores() -> tuple[int | None, int | None]:
    """One for the server and another one for the client, where there are two."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[-1]) if len(usable) > 1 else (None, None)


def logged(entry: LogEntry) -> RequestTiming:
    assert entry.first_ns is not None
    assert entry.last_ns is not None
    return RequestTiming(entry.arrived_ns, entry.first_ns, entry.last_ns, entry.tokens)
