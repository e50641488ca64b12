"""A request as the measures need it: a record whose many arrivals are packed."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from .record import Record

NS_PER_MS = 1e6
# Gaps are counted by the microsecond, which keeps a run of millions of tokens small.
NS_PER_US = 1000
US_PER_MS = 1000


@dataclass(frozen=True, slots=True)
class Seen:
    """`arrivals_ns` are those of messages with output, `tokens` how many each had, if known."""

    record: Record
    arrivals_ns: Sequence[int]
    tokens: Sequence[int]

    @classmethod
    def of(cls, record: Record) -> Self:
        arrivals, tokens = array("q", record.message_ns), array("l", record.message_tokens)
        return cls(replace(record, message_ns=(), message_tokens=()), arrivals, tokens)

    @property
    def ok(self) -> bool:
        return self.record.ok

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token: from the request's first byte sent to its first output, in ms."""
        first_ns = self.record.first_token_ns
        return None if first_ns is None else (first_ns - self.record.sent_ns) / NS_PER_MS

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token: from the first token to the last one, over those after the first,
        in ms; one value per request."""
        one = self.record
        if one.first_token_ns is None or one.last_token_ns is None or (one.output_tokens or 0) < 2:
            return None
        assert one.output_tokens is not None
        return (one.last_token_ns - one.first_token_ns) / (one.output_tokens - 1) / NS_PER_MS

    @property
    def e2e_ms(self) -> float:
        """End-to-end latency: from the request's first byte sent to its final mark, in ms."""
        return (self.record.ended_ns - self.record.sent_ns) / NS_PER_MS

    @property
    def late_ms(self) -> float | None:
        """How much later than an open loop wanted it the request was sent, in ms."""
        scheduled_ns = self.record.scheduled_ns
        return None if scheduled_ns is None else (self.record.sent_ns - scheduled_ns) / NS_PER_MS

    def gaps_us(self) -> Counter[int]:
        """Inter-token latencies in µs and how often each came.

        A message of k tokens after a gap is k gaps of a k-th of it. Where it is not known how many
        tokens a message has, its gap counts once.
        """
        found: Counter[int] = Counter()
        for place in range(1, len(self.arrivals_ns)):
            gap_ns = self.arrivals_ns[place] - self.arrivals_ns[place - 1]
            count = max(self.tokens[place], 1) if self.tokens else 1
            found[round(gap_ns / count / NS_PER_US)] += count
        return found

    def tokens_between(self, from_ns: int, to_ns: int) -> float:
        """Output tokens that arrived in a time. Where only their sum is known, each message has
        as many as the others."""
        if not self.arrivals_ns:
            return 0.0
        inside = [from_ns <= at_ns < to_ns for at_ns in self.arrivals_ns]
        if self.tokens:
            return float(
                sum(count for count, here in zip(self.tokens, inside, strict=True) if here)
            )
        return (self.record.output_tokens or 0) * sum(inside) / len(inside)
