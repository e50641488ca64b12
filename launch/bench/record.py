"""A record: one request as its client saw it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
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
CountSource = Literal["usage", "token_ids", "final", "tokenizer"]


@dataclass(frozen=True, slots=True)
class Failure:
    kind: Kind
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """Times are CLOCK_MONOTONIC in ns, which is one clock for all processes of a machine.

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
    message_ns: tuple[int, ...] = ()
    message_tokens: tuple[int, ...] = ()
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
        """Fields that say something: one line of requests.jsonl."""
        values = ((one.name, getattr(self, one.name)) for one in dataclasses.fields(self))
        row = {name: value for name, value in values if value not in (None, (), {})}
        if self.failure is not None:
            row["failure"] = dataclasses.asdict(self.failure)
        return row

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Record:
        """Raises `TypeError` for a row that is no record."""
        values = dict(row)
        for name in ("message_ns", "message_tokens"):
            if name in values:
                values[name] = tuple(values[name])
        if "failure" in values:
            values["failure"] = Failure(**values["failure"])
        return cls(**values)
