"""The way of a request's output to its client: the newest output waits, older ones are part of it.

A response costs a round trip to the server process, a token does not. So the tokens that come while
a request's response is on its way leave together in its next one; nothing waits on purpose, and
nothing piles up for a slow client but the newest output. Sender threads take the requests in the
order in which they had something to say. A request is with one sender at a time, which keeps its
responses in order.

What waits for a request is guarded by the lock of the `Delivery`; everything else of a `Stream` is
its sender's, while it has one.
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import triton_python_backend_utils as pb_utils
from model_metrics import Meter, Outcome
from model_reply import Reply
from model_request import Request
from model_response import Answer

CLOSE_TIMEOUT_S = 10.0
MOST_AT_ONCE = 32


class SequenceNow:
    """One output sequence as it was at one step: the engine goes on writing to its own.

    Lists that only grow, such as `token_ids`, are the engine's and may be some steps ahead.
    """

    __slots__ = ("_sequence", "finish_reason", "length", "stop_reason", "text")

    def __init__(self, sequence: Any) -> None:
        self._sequence = sequence
        self.text: str = sequence.text
        self.length = len(sequence.token_ids)
        self.finish_reason = sequence.finish_reason
        self.stop_reason = sequence.stop_reason

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sequence, name)


class Output(NamedTuple):
    """What the engine had for a request after one step."""

    sequences: list[SequenceNow]
    final: bool
    prompt_token_ids: Sequence[int]


class Part(NamedTuple):
    """A response with output that was made but not sent."""

    output: Output
    response: Any


class Failure(NamedTuple):
    """The error that ends a request; `code` is one of `pb_utils.TritonError`."""

    code: int
    message: str
    outcome: Outcome


@dataclass(eq=False, slots=True)
class Stream:
    """One request on its way to its client."""

    request_id: str
    request: Request
    reply: Reply
    answer: Answer
    task: asyncio.Task[None] | None = None  # the loop's, in which the engine's results are read
    asked_s: float = 0.0  # the watch's: when the client was last asked whether it gave up
    arrival_s: float = field(default_factory=time.monotonic)
    responses: int = 0
    tokens: int = 0
    first_sent_s: float = 0.0
    last_sent_s: float = 0.0
    longest_gap_s: float = 0.0
    counted: tuple[int, int] = (0, 0)  # the meter's: of its responses and tokens
    # Guarded by the delivery's lock.
    output: Output | None = None
    failure: Failure | None = None
    is_with_sender: bool = False
    has_ended: bool = False


class Delivery:
    """Sends what streams have to say. A sender calls `on_end` once for each stream, at its end."""

    def __init__(self, meter: Meter, threads: int, on_end: Callable[[Stream], None]) -> None:
        self._meter = meter
        self._on_end = on_end
        self._lock = threading.Lock()
        self._ready: SimpleQueue[Stream | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._send_all, name=f"sender {index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, stream: Stream, result: Any) -> None:
        """Take over the present state of the engine's result, on the thread that writes to it."""
        sequences = [SequenceNow(sequence) for sequence in result.outputs]
        output = Output(sequences, result.finished, result.prompt_token_ids)
        with self._lock:
            stream.output = output
            if stream.is_with_sender:
                return
            stream.is_with_sender = True
        self._ready.put(stream)

    def fail(self, stream: Stream, failure: Failure) -> None:
        """End the stream with an error, after what already waits for it."""
        with self._lock:
            stream.failure = stream.failure or failure
            if stream.is_with_sender:
                return
            stream.is_with_sender = True
        self._ready.put(stream)

    def close(self) -> None:
        """End the senders after everything that waits."""
        for _ in self._threads:
            self._ready.put(None)
        for thread in self._threads:
            thread.join(CLOSE_TIMEOUT_S)

    def _send_all(self) -> None:
        while batch := self._take():
            parts = [self._part(stream) for stream in batch]
            for stream, (part, failure) in zip(batch, parts, strict=True):
                if not stream.has_ended:
                    self._send(stream, part, failure)
                with self._lock:
                    more = not stream.has_ended and bool(
                        stream.output or (stream.failure and not failure)
                    )
                    stream.is_with_sender = more
                if more:
                    self._ready.put(stream)

    def _take(self) -> list[Stream]:
        """This sender's share of the streams that have something to say; none at the end.

        Several at once, as the making of many parts in a row takes much less time than between
        the sendings, which put this thread to sleep.
        """
        batch: list[Stream] = []
        share = 1
        while len(batch) < share:
            try:
                stream = self._ready.get(block=not batch)
            except Empty:
                break
            if stream is None:
                if batch:
                    self._ready.put(None)
                break
            batch.append(stream)
            if len(batch) == 1:
                share += min(self._ready.qsize() // len(self._threads), MOST_AT_ONCE - 1)
        return batch

    def _part(self, stream: Stream) -> tuple[Part | None, Failure | None]:
        with self._lock:
            output, stream.output = stream.output, None
            failure = stream.failure
        if output is None or stream.has_ended:
            return None, failure
        try:
            # A step without new text, such as half of a character, waits for the next one.
            tensors = stream.answer.part(output.sequences, output.final, output.prompt_token_ids)
        except Exception as fault:
            pb_utils.Logger.log_error(traceback.format_exc())
            message = f"the response could not be made: {fault}"
            return None, Failure(pb_utils.TritonError.INTERNAL, message, "failed")
        if tensors is None:
            return None, failure
        return Part(output, pb_utils.InferenceResponse(output_tensors=tensors)), failure

    def _send(self, stream: Stream, part: Part | None, failure: Failure | None) -> None:
        try:
            if part:
                stream.reply.send(part.response, part.output.final)
                self._measure(stream, part.output)
            if part and part.output.final:
                self._end(stream, "finished")
            elif failure:
                stream.reply.fail(failure.code, failure.message)
                self._end(stream, failure.outcome)
        except Exception as fault:
            # Such as shared memory that ran out: this request cannot go on, the others may.
            pb_utils.Logger.log_error(traceback.format_exc())
            self._give_up(stream, f"the response could not be sent: {fault}")

    def _measure(self, stream: Stream, output: Output) -> None:
        now_s = time.monotonic()
        stream.responses += 1
        if stream.responses > 1:
            stream.longest_gap_s = max(stream.longest_gap_s, now_s - stream.last_sent_s)
        stream.last_sent_s = now_s
        tokens = sum(sequence.length for sequence in output.sequences)
        stream.tokens = max(stream.tokens, tokens)  # the engine takes stop words back at the end
        if stream.responses == 1:
            stream.first_sent_s = now_s
            self._meter.began(stream, output)
        if output.final:
            self._meter.finished(stream, output)

    def _give_up(self, stream: Stream, message: str) -> None:
        try:
            stream.reply.fail(pb_utils.TritonError.INTERNAL, message)
        except Exception:
            pb_utils.Logger.log_error(traceback.format_exc())
        self._end(stream, "failed")

    def _end(self, stream: Stream, outcome: Outcome) -> None:
        stream.has_ended = True
        self._meter.ended(outcome, stream)
        self._on_end(stream)
