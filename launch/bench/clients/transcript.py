"""The transcript of a stream, message by message, and the checks that make a record of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from ...answers import OTHER_FORMS
from ..request import CountSource, Failure, FailureKind, LoadRequest, RequestRecord

MOST_LETTERS = 300  # of an event in a message
MOST_TOKENS = 10**9  # of a request; a larger count is ignored


class Transcript:
    """Each API fills it by its `event` in the order of arrival, then asks for the record.

    `is_final` is for the transport's own mark; a message after `finish_reason` is an overrun.
    """

    def __init__(self, request: LoadRequest) -> None:
        self.request = request
        # Arrival, text, and tokens so far where they are known.
        self.messages: list[tuple[int, str, int | None]] = []
        self.may_be_cumulative = False
        self.finish_reason: str | None = None
        self.is_final = False
        self.failure: Failure | None = None
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.count_source: CountSource | None = None
        self.reasoning_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.server: dict[str, float] = {}

    def take(self, arrived_ns: int, data: bytes) -> None:
        """Takes one event of the stream; an event of an unexpected form fails the request."""
        try:
            self.event(arrived_ns, data)
        except OTHER_FORMS as error:
            what = f"an event of another form: {type(error).__name__}: {error}"
            self.fail("malformed", what[:MOST_LETTERS])

    def event(self, arrived_ns: int, data: bytes) -> None:
        """Reads one event, which may have any form."""
        raise NotImplementedError

    def end(self) -> None:
        """There are no more events."""

    def fail(self, kind: FailureKind, message: str, retryable: bool = False) -> None:
        """Records a failure; the first one is kept."""
        self.failure = self.failure or Failure(kind, message, retryable)

    def record(self, sent_ns: int, ended_ns: int, status: int | None = None) -> RequestRecord:
        request = self.request
        cumulative = self.may_be_cumulative and self._is_cumulative()
        message_ns, message_tokens = self._outputs(cumulative)
        text = None
        if request.keep_text:
            texts = [text for _, text, _ in self.messages]
            text = max(texts, key=len, default="") if cumulative else "".join(texts)
        self._check(message_tokens)
        return RequestRecord(
            index=request.index,
            sent_ns=sent_ns,
            ended_ns=ended_ns,
            first_token_ns=message_ns[0] if message_ns else None,
            last_token_ns=message_ns[-1] if message_ns else None,
            message_ns=message_ns,
            message_tokens=message_tokens,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            count_source=self.count_source if self.output_tokens is not None else None,
            reasoning_tokens=self.reasoning_tokens,
            requested_tokens=request.max_tokens,
            finish_reason=self.finish_reason,
            text=text,
            failure=self.failure,
            status=status,
            server=self.server,
            task=request.task,
            call=request.call,
            attempt=request.attempt,
            cached_tokens=self.cached_tokens,
        )

    def _is_cumulative(self) -> bool:
        """Whether each text continues the one before, as cumulative texts do."""
        texts = [text for _, text, _ in self.messages if text]
        grows = (later.startswith(text) for text, later in itertools.pairwise(texts))
        return len(texts) > 1 and texts[-1] != texts[0] and all(grows)

    def _outputs(self, cumulative: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Arrivals of messages with output, and the tokens of each if known.

        If there are as many tokens as messages, each message has one.
        """
        if not cumulative and all(so_far is None for _, _, so_far in self.messages):
            came_ns = tuple([arrival for arrival, text, _ in self.messages if text])
            return came_ns, (1,) * len(came_ns) if self.output_tokens == len(came_ns) else ()
        arrivals: list[int] = []
        tokens: list[int] = []
        length = counted = 0
        is_counted = bool(self.messages)
        for arrival, text, so_far in self.messages:
            new = len(text) - length if cumulative else len(text)
            more = 0 if so_far is None else so_far - counted
            if new > 0 or more > 0:
                arrivals.append(arrival)
                tokens.append(more)
                is_counted = is_counted and so_far is not None
            length, counted = max(length, len(text)), counted + max(more, 0)
        whole = counted if self.output_tokens is None else self.output_tokens
        if is_counted and sum(tokens) == whole:
            return tuple(arrivals), tuple(tokens)
        if self.output_tokens == len(arrivals):
            return tuple(arrivals), (1,) * len(arrivals)
        return tuple(arrivals), ()

    def _check(self, message_tokens: tuple[int, ...]) -> None:
        request, count = self.request, self.output_tokens
        if not self.is_final:
            self.fail("unfinished", "the stream ended without its final mark")
        counted = max(
            (so_far for _, _, so_far in self.messages if so_far is not None), default=None
        )
        if count is None:
            if request.ignore_eos and self.finish_reason not in (None, "length"):
                what = f"ended with {self.finish_reason}"
                self.fail("wrong_count", f"{what}, {request.max_tokens} tokens are due")
        elif counted is not None and counted != count:
            self.fail("wrong_count", f"{counted} tokens came, the server counts {count}")
        elif count > request.max_tokens or (request.ignore_eos and count != request.max_tokens):
            due = "are due" if request.ignore_eos else "may come"
            self.fail("wrong_count", f"{count} tokens came, {request.max_tokens} {due}")


def text_of(value: Any) -> str:
    """Raises `TypeError` for anything but text or null."""
    if not isinstance(value, str | None):
        raise TypeError(f"{str(value)[:40]} is no text")
    return value or ""


def mapping_of(value: Any) -> Mapping[str, Any]:
    """Raises `TypeError` for anything but an object or null."""
    if not isinstance(value, Mapping | None):
        raise TypeError(f"{str(value)[:40]} is no object")
    return value or {}


def number(value: Any) -> float | None:
    """A finite number, which servers may write as text; `None` for anything else."""
    try:
        found = None if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if found is not None and math.isfinite(found) else None


def whole(value: Any) -> int | None:
    """A count, or `None` for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 0 <= value <= MOST_TOKENS else None
