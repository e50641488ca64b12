"""A request of a load and its record: what was sent, what arrived when, and its latencies."""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from builder.credentials import mask

NS_PER_MS = 1e6
# Gaps are counted by the microsecond, which keeps a run of millions of tokens small.
NS_PER_US = 1000
US_PER_MS = 1000


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What is sent to the server, whatever its API.

    `prompt` is a text or token ids; `messages` is a chat in its place.

    With `ignore_eos` exactly `max_tokens` tokens must come. A chat API is given a text as one
    message of the user. What is `None` is not sent. `timeout_s` bounds the whole request.
    """

    prompt: str | tuple[int, ...] | None = None
    max_tokens: int = 16
    messages: tuple[Mapping[str, Any], ...] | None = None
    ignore_eos: bool = False
    temperature: float | None = None
    timeout_s: float = 600.0
    headers: Mapping[str, str] = field(default_factory=dict)
    keep_text: bool = False
    index: int = 0  # place in the load
    at_s: float = 0.0  # when an open loop sends it, after its start
    task: int | None = None
    call: int | None = None
    attempt: int = 0


FailureKind = Literal[
    "refused",  # no connection
    "unavailable",  # the server says that it has no room: 429, 503, UNAVAILABLE
    "timeout",  # no end within the request's time
    "cut",  # the connection ended in the middle
    "http",  # a status that is not 200
    "rpc",  # a gRPC status that is not OK
    "in_stream",  # an error within a good answer
    "unfinished",  # the stream ended without its final mark
    "wrong_count",  # tokens are not as many as the server or the request says
    "malformed",  # not the protocol
    "cancelled",  # this client gave it up
    "overrun",  # something came after the final mark
]
# Fields with a value for each message.
MESSAGES = ("message_ns", "message_tokens")
CountSource = Literal["usage", "token_ids", "final", "tokenizer"]

MOST_READ, MOST_LETTERS = 4_000, 300  # of what a server says of a failure: looked at, kept


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request failed; `retryable` says that the server may have room later.

    Servers repeat the key that they refuse: the message is kept without credentials.
    """

    kind: FailureKind
    message: str
    retryable: bool = False

    def __post_init__(self) -> None:
        message = mask(self.message[:MOST_READ])[:MOST_LETTERS]
        object.__setattr__(self, "message", message)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What a client saw of one request.

    Times are CLOCK_MONOTONIC in ns, which is one clock for all processes of a machine.

    `message_ns` are the arrivals of messages with output, and `message_tokens` how many tokens
    each one has, or nothing where that is not known. Of `output_tokens`, `count_source` says who
    counted them: the usage that the server sent, the token ids that came, the count with the final
    response, or a tokenizer over the text.
    """

    index: int  # place in the load
    sent_ns: int  # the request's first byte was given to the socket
    ended_ns: int  # final mark, end of the stream or failure
    scheduled_ns: int | None = None  # when an open loop wanted it sent
    first_token_ns: int | None = None  # first message with text, reasoning or token ids
    last_token_ns: int | None = None
    message_ns: Sequence[int] = ()
    message_tokens: Sequence[int] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    count_source: CountSource | None = None
    reasoning_tokens: int | None = None
    requested_tokens: int | None = None
    finish_reason: str | None = None
    text: str | None = None  # kept only where asked for
    failure: Failure | None = None
    status: int | None = None  # HTTP
    server: Mapping[str, float] = field(default_factory=dict)  # what it said of this request
    task: int | None = None
    call: int | None = None
    attempt: int = 0
    cached_tokens: int | None = None

    @property
    def ok(self) -> bool:
        return self.failure is None

    def as_json(self) -> dict[str, Any]:
        """Known values without the many arrivals: one line of requests.jsonl."""
        names = [one.name for one in dataclasses.fields(self) if one.name not in MESSAGES]
        values = ((name, getattr(self, name)) for name in names)
        row = {name: value for name, value in values if value not in (None, {})}
        if self.failure is not None:
            row["failure"] = dataclasses.asdict(self.failure)
        return row

    def packed(self) -> Self:
        """A copy with its arrivals in arrays, which take a fraction of the memory."""
        arrivals, tokens = array("q", self.message_ns), array("l", self.message_tokens)
        return replace(self, message_ns=arrivals, message_tokens=tokens)

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token: from the request's first byte sent to its first output, in ms."""
        first_ns = self.first_token_ns
        return None if first_ns is None else (first_ns - self.sent_ns) / NS_PER_MS

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token: from the first token to the last one, over those after the first,
        in ms; one value per request."""
        if (
            self.first_token_ns is None
            or self.last_token_ns is None
            or (self.output_tokens or 0) < 2
        ):
            return None
        assert self.output_tokens is not None
        return (self.last_token_ns - self.first_token_ns) / (self.output_tokens - 1) / NS_PER_MS

    @property
    def e2e_ms(self) -> float:
        """End-to-end latency: from the request's first byte sent to its final mark, in ms."""
        return (self.ended_ns - self.sent_ns) / NS_PER_MS

    @property
    def late_ms(self) -> float | None:
        """How much later than planned an open loop sent the request, in ms."""
        scheduled_ns = self.scheduled_ns
        return None if scheduled_ns is None else (self.sent_ns - scheduled_ns) / NS_PER_MS

    def gaps_us(self) -> Counter[int]:
        """Inter-token latencies in µs and how often each occurred.

        A message of k tokens after a gap counts as k gaps of a k-th of it, a message with an
        unknown number of tokens as one gap.
        """
        found: Counter[int] = Counter()
        for place in range(1, len(self.message_ns)):
            gap_ns = self.message_ns[place] - self.message_ns[place - 1]
            count = max(self.message_tokens[place], 1) if self.message_tokens else 1
            found[round(gap_ns / count / NS_PER_US)] += count
        return found

    def tokens_between(self, from_ns: int, to_ns: int) -> float:
        """Output tokens that arrived in a time.

        If only their sum is known, it is spread evenly over the messages.
        """
        if not self.message_ns:
            return 0.0
        inside = [from_ns <= at_ns < to_ns for at_ns in self.message_ns]
        if self.message_tokens:
            return float(
                sum(count for count, here in zip(self.message_tokens, inside, strict=True) if here)
            )
        return (self.output_tokens or 0) * sum(inside) / len(inside)
