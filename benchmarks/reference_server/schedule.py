"""What a request to the reference server asks for, and when which token is due."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Self

HEADER = "reference"
MS = 1_000_000

Ending = Literal[
    "whole",
    "cut",  # the connection ends in the middle
    "error_event",  # an error within a good stream
    "error_body",  # status 200 with an error in place of a stream
    "unfinished",  # a clean end without the final marks
    "duplicate",  # the final chunk comes twice
    "refused",  # no room: 429
    "stalled",  # nothing comes any more
]


@dataclass(frozen=True, slots=True)
class Trap:
    """How an answer differs from the plain one: a token per event, deltas, a proper end.

    What ends early has sent the share `until` of its tokens.
    """

    tokens_per_event: int = 1
    usage: bool = True
    role_ms: float | None = None
    reasoning: float = 0.0  # the share of tokens that is reasoning
    cumulative: bool = False
    ending: Ending = "whole"
    until: float = 0.5


TRAPS = {
    "plain": Trap(),
    "three_tokens": Trap(tokens_per_event=3),
    "three_tokens_no_usage": Trap(tokens_per_event=3, usage=False),
    "role_only": Trap(role_ms=10),
    "reasoning": Trap(reasoning=0.5),
    "too_many_requests": Trap(ending="refused"),
    "cut": Trap(ending="cut"),
    "error_event": Trap(ending="error_event"),
    "error_body": Trap(ending="error_body"),
    "unfinished": Trap(ending="unfinished"),
    "cumulative": Trap(cumulative=True),
    "duplicate": Trap(ending="duplicate"),
    "silent": Trap(ending="stalled", until=0),
    "stalled": Trap(ending="stalled"),
}


@dataclass(frozen=True, slots=True)
class Schedule:
    """`id` is how the log names the request."""

    ttft_ms: float = 50.0
    itl_ms: float = 5.0
    tokens: int = 16
    trap: str = "plain"
    id: int = -1

    def for_request(self, header: str, tokens: int) -> Self:
        """This one with what a request's header `reference` and its length say: `id=3 trap=cut`."""
        words = dict(word.split("=", 1) for word in header.split())
        return replace(
            self,
            tokens=tokens,
            id=int(words.get("id", self.id)),
            trap=words.get("trap", self.trap),
            ttft_ms=float(words.get("ttft_ms", self.ttft_ms)),
            itl_ms=float(words.get("itl_ms", self.itl_ms)),
        )

    def due(self) -> Iterator[tuple[int, int]]:
        """Of each event that is sent: ns from the arrival, and its tokens.

        An event waits for its last token.
        """
        trap = TRAPS[self.trap]
        until = self.tokens
        if trap.ending not in ("whole", "duplicate"):
            until = int(self.tokens * trap.until)
        for first in range(0, until, trap.tokens_per_event):
            tokens = min(trap.tokens_per_event, until - first)
            after_ms = self.ttft_ms + self.itl_ms * (first + tokens - 1)
            yield int(after_ms * MS), tokens
