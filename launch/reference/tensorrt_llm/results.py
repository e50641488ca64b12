"""What a request gives back, step by step, to a thread or to an asyncio loop, and its times."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Lock
from typing import Any, Literal

from .sampling import Logprob, SamplingParams

FinishReason = Literal["stop", "length", "timeout", "cancelled"]


class RequestError(RuntimeError):
    """One request failed; the engine goes on."""


Logprobs = list[dict[int, Logprob]]


def steady_time() -> timedelta:
    """The steady clock, as the engine reports points in time."""
    return timedelta(seconds=time.monotonic())


@dataclass(slots=True)
class TimingMetrics:
    """Points on the steady clock."""

    arrival_time: timedelta
    first_scheduled_time: timedelta = timedelta()
    first_token_time: timedelta = timedelta()
    last_token_time: timedelta = timedelta()
    kv_cache_size: int = 0


@dataclass(slots=True)
class KvCacheMetrics:
    """Blocks of the KV cache that the request took; the reference engine reuses none."""

    num_total_allocated_blocks: int = 0
    num_new_allocated_blocks: int = 0
    num_reused_blocks: int = 0
    num_missed_blocks: int = 0
    kv_cache_hit_rate: float = 0.0


@dataclass(slots=True)
class SpeculativeDecodingMetrics:
    total_accepted_draft_tokens: int = 0
    total_draft_tokens: int = 0

    @property
    def acceptance_rate(self) -> float:
        if not self.total_draft_tokens:
            return 0.0
        return self.total_accepted_draft_tokens / self.total_draft_tokens


@dataclass(slots=True)
class RequestPerfMetrics:
    timing_metrics: TimingMetrics
    kv_cache_metrics: KvCacheMetrics = field(default_factory=KvCacheMetrics)
    speculative_decoding: SpeculativeDecodingMetrics = field(
        default_factory=SpeculativeDecodingMetrics
    )
    first_iter: int | None = None
    last_iter: int | None = None

    def latencies_s(self, num_tokens: int) -> dict[str, float]:
        """Latencies in seconds, by the words of `builder/data/metrics` for their histograms."""
        timing = self.timing_metrics

        def between(start: timedelta, end: timedelta) -> float:
            return (end - start).total_seconds()

        found = {
            "e2e": between(timing.arrival_time, timing.last_token_time),
            "ttft": between(timing.arrival_time, timing.first_token_time),
            "queue": between(timing.arrival_time, timing.first_scheduled_time),
        }
        if num_tokens > 1:
            found["itl"] = (found["e2e"] - found["ttft"]) / (num_tokens - 1)
        return found


@dataclass(slots=True)
class CompletionOutput:
    """One completion: cumulative fields, and `*_diff` for what the last step added.

    The engine thread sends a new object for each step, with what the step adds.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: Logprobs = field(default_factory=list)
    prompt_logprobs: Logprobs = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    generation_logits: Any = None
    disaggregated_params: Any = None
    request_perf_metrics: RequestPerfMetrics | None = None

    # Lengths of text, tokens and log probabilities before the last step.
    _seen: tuple[int, int, int] = field(default=(0, 0, 0), init=False, repr=False)

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def text_diff(self) -> str:
        return self.text[self._seen[0] :]

    @property
    def token_ids_diff(self) -> list[int]:
        return self.token_ids[self._seen[1] :]

    @property
    def logprobs_diff(self) -> Logprobs:
        return self.logprobs[self._seen[2] :]

    def mark(self) -> None:
        """Begin a step: what is there now is no longer new."""
        self._seen = len(self.text), len(self.token_ids), len(self.logprobs)

    def apply(self, update: CompletionOutput) -> None:
        self.text += update.text
        self.token_ids += update.token_ids
        self.logprobs += update.logprobs
        self.cumulative_logprob = update.cumulative_logprob
        self.prompt_logprobs = update.prompt_logprobs or self.prompt_logprobs
        self.finish_reason = update.finish_reason
        self.stop_reason = update.stop_reason
        self.request_perf_metrics = update.request_perf_metrics


# What a step adds to one completion with the number of iterations that it took, or a failure.
Item = tuple[CompletionOutput, int] | Exception


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class RequestOutput:
    """A request under way: the same object is given again and again with its outputs advanced.

    The `*_diff` properties of its outputs are valid until the next step is taken.
    """

    def __init__(
        self,
        request_id: int,
        prompt: str | None,
        prompt_token_ids: list[int],
        sampling_params: SamplingParams,
        streaming: bool,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.sampling_params = sampling_params
        self.streaming = streaming
        self.decoding_iter = 0
        self._items: deque[Item] = deque()
        self._lock = Lock()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._aborted = False
        self._done = False
        self.outputs = [CompletionOutput(index) for index in range(sampling_params.n)]

    @property
    def id(self) -> int:
        return self.request_id

    @property
    def finished(self) -> bool:
        return self._done

    @property
    def avg_decoded_tokens_per_iter(self) -> float | None:
        if not self.decoding_iter:
            return None
        return self.output_length / self.decoding_iter

    @property
    def output_length(self) -> int:
        """Tokens of all outputs so far."""
        return sum(output.length for output in self.outputs)

    def abort(self) -> None:
        """End the request at the engine's next step; may be called at any time, from any thread."""
        self._aborted = True

    def aborted(self) -> bool:
        return self._aborted

    def put(self, item: Item) -> None:
        """Hand over an item, on the thread of the engine."""
        with self._lock:
            self._items.append(item)
            waiter, self._waiter = self._waiter, None
        if waiter:
            loop, future = waiter
            # A loop that is closed has no consumer left to wake.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_wake, future)

    async def _next_item(self) -> Item:
        while True:
            loop = asyncio.get_running_loop()
            with self._lock:
                if self._items:
                    return self._items.popleft()
                future: asyncio.Future[None] = loop.create_future()
                self._waiter = (loop, future)
            await future

    async def _take(self) -> None:
        item = await self._next_item()
        if isinstance(item, Exception):
            self._done = True
            raise item
        for output in self.outputs:
            output.mark()
        update, iterations = item
        self.outputs[update.index].apply(update)
        self.decoding_iter += iterations
        self._done = all(output.finish_reason for output in self.outputs)

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Wait in this thread until the request is done. Raises `TimeoutError`, `RequestError`."""
        return asyncio.run(asyncio.wait_for(self.aresult(), timeout))

    async def aresult(self) -> RequestOutput:
        """Wait in this coroutine until the request is done. Raises `RequestError`."""
        while not self._done:
            await self._take()
        return self

    def __iter__(self) -> RequestOutput:
        return self

    def __next__(self) -> RequestOutput:
        if self._done:
            raise StopIteration
        return asyncio.run(self.__anext__())

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._done:
            raise StopAsyncIteration
        await self._take()
        return self
