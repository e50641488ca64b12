"""The way of a request's output to its client: the newest output waits, older ones are part of it.

A response costs a round trip to the server process, a token does not. So the tokens that come while
a request's response is on its way leave together in its next one; nothing waits on purpose, and
nothing piles up for a slow client but the newest output. Sender threads take the requests in the
order in which they had something to say. A request is with one sender at a time, which keeps its
responses in order.

To fall asleep and to be woken, here and in the server process, is most of what a response costs.
The engine gives the tokens of a step one right after another, so senders are woken once for all of
them, and each takes its share of the requests.

What waits for a request is guarded by the lock of the `Delivery`; everything else of a `Stream` is
its sender's, while it has one.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import triton_python_backend_utils as pb_utils

from .inputs import Outcome, RequestError
from .metrics import MetricsRecorder
from .response import Output, SequenceSnapshot, Stream

CLOSE_TIMEOUT_S = 10.0
MOST_AT_ONCE = 32
# A stream with the newest output and the error that wait for it; then also with the response.
Waiting = tuple[Stream, Output | None, RequestError | None]
Part = tuple[Stream, Output | None, Any, RequestError | None]


class Delivery:
    """Sends what streams have to say. A sender calls `on_end` once for each stream, at its end.

    `defer` calls what it is given when all that the engine has at the moment is `put`, such as the
    `call_soon` of the event loop that does so.
    """

    def __init__(
        self,
        metrics: MetricsRecorder,
        threads: int,
        on_end: Callable[[Stream], None],
        defer: Callable[[Callable[[], None]], object] = lambda callback: callback(),
    ) -> None:
        self._metrics = metrics
        self._on_end = on_end
        self._defer = defer
        self._lock = threading.Lock()
        # Guarded by the lock.
        self._ready: deque[Stream] = deque()
        self._share = 1  # how many of them a sender takes at once
        self._num_idle = 0  # senders that sleep, less those for which a wake-up is on its way
        self._is_deferred = False
        self._is_closed = False
        self._wake_ups: SimpleQueue[None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._send_all, name=f"sender {index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, stream: Stream, result: Any) -> None:
        """Take over the present state of the engine's result, on the thread that writes to it."""
        sequences = [SequenceSnapshot(sequence) for sequence in result.outputs]
        output = Output(sequences, result.finished, result.prompt_token_ids)
        with self._lock:
            stream.output = output
            if stream.is_with_sender:
                return
            stream.is_with_sender = True
            self._ready.append(stream)
            if self._is_deferred:
                return
            self._is_deferred = True
        self._defer(self._hand_over)

    def fail(self, stream: Stream, error: RequestError) -> None:
        """End the stream with an error, after what already waits for it."""
        with self._lock:
            stream.error = stream.error or error
            if not stream.is_with_sender:
                stream.is_with_sender = True
                self._ready.append(stream)
        self._hand_over()  # also what was deferred, as the event loop may hang

    def close(self) -> None:
        """End the senders after everything that waits."""
        with self._lock:
            self._is_closed = True
        for _ in self._threads:
            self._wake_ups.put(None)
        for thread in self._threads:
            thread.join(CLOSE_TIMEOUT_S)

    def _hand_over(self) -> None:
        """Divide what is ready among all senders."""
        with self._lock:
            self._is_deferred = False
            self._share = self._equal_share()
        self._wake_senders()

    def _wake_senders(self) -> None:
        """As many as are idle, while there is something ready for each."""
        with self._lock:
            number = min(len(self._ready), self._num_idle)
            self._num_idle -= number
        for _ in range(number):
            self._wake_ups.put(None)

    def _send_all(self) -> None:
        """All is made before anything is sent, and all but firsts and lasts measured after it.

        Each sending puts this thread to sleep: what runs between two of them takes several times
        as long as what runs in a row, and keeps the other senders from the interpreter.
        """
        while batch := self._take():
            parts = [self._part(*waiting) for waiting in batch]
            for part in parts:
                self._send(*part)
            for stream, output, _, _ in parts:
                if output and stream.last_sent_s < stream.sent_s and not stream.has_ended:
                    self._measure(stream, output)
            with self._lock:
                for stream, _, _, error in parts:
                    stream.is_with_sender = not stream.has_ended and bool(
                        stream.output or (stream.error and not error)
                    )
                    if stream.is_with_sender:
                        self._ready.append(stream)

    def _take(self) -> list[Waiting]:
        """What this sender's share of the streams has to say; nothing at the end."""
        while True:
            with self._lock:
                if self._ready:
                    share = min(max(self._share, self._equal_share()), MOST_AT_ONCE)
                    batch: list[Waiting] = []
                    for _ in range(min(share, len(self._ready))):
                        stream = self._ready.popleft()
                        batch.append((stream, stream.output, stream.error))
                        stream.output = None
                    break
                if self._is_closed:
                    return []
                self._num_idle += 1
            self._wake_ups.get()
        if self._ready:
            self._wake_senders()
        return batch

    def _equal_share(self) -> int:
        return -(-len(self._ready) // len(self._threads))

    def _part(self, stream: Stream, output: Output | None, error: RequestError | None) -> Part:
        if output is None or stream.has_ended:
            return stream, None, None, error
        try:
            tensors = stream.builder.tensors(output)
        except Exception as fault:
            pb_utils.Logger.log_error(traceback.format_exc())
            return stream, None, None, _failed(f"the response could not be made: {fault}")
        if tensors is None:
            return stream, None, None, error
        return stream, output, pb_utils.InferenceResponse(output_tensors=tensors), error

    def _send(
        self, stream: Stream, output: Output | None, response: Any, error: RequestError | None
    ) -> None:
        if stream.has_ended:
            return
        try:
            if output:
                stream.sender.send(response, output.final)
                stream.sent_s = time.monotonic()
                if output.final or error or not stream.responses:
                    self._measure(stream, output)
                if output.final:
                    self._metrics.record_finished(stream, output)
                    self._end(stream, "finished")
                    return
            if error:
                stream.sender.fail(error)
                self._end(stream, error.outcome)
        except Exception as fault:
            # Such as shared memory that ran out: this request cannot go on, the others may.
            pb_utils.Logger.log_error(traceback.format_exc())
            try:
                stream.sender.fail(_failed(f"the response could not be sent: {fault}"))
            except Exception:
                pb_utils.Logger.log_error(traceback.format_exc())
            self._end(stream, "failed")

    def _measure(self, stream: Stream, output: Output) -> None:
        stream.responses += 1
        if stream.responses == 1:
            stream.first_sent_s = stream.sent_s
            self._metrics.record_first_response(stream, output)
        else:
            gap_s = stream.sent_s - stream.last_sent_s
            if gap_s > stream.longest_gap_s:
                stream.longest_gap_s = gap_s
        stream.last_sent_s = stream.sent_s
        tokens = 0
        for sequence in output.sequences:
            tokens += sequence.length
        if tokens > stream.tokens:  # the engine takes stop words back at the end
            stream.tokens = tokens

    def _end(self, stream: Stream, outcome: Outcome) -> None:
        stream.has_ended = True
        self._metrics.record_end(outcome, stream)
        self._on_end(stream)


def _failed(message: str) -> RequestError:
    return RequestError(message, "INTERNAL", "failed")
