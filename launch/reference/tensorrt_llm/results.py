"""What a request gives back, step by step, to a thread or to an asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from threading import Condition
from typing import Any, Literal

from .metrics import RequestPerfMetrics
from .sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "timeout", "cancelled"]


class RequestError(RuntimeError):
    """One request failed; the engine goes on."""


@dataclass(slots=True)
class Logprob:
    """The log probability of a token and its rank in the vocabulary, 1 for the likeliest."""

    logprob: float
    rank: int | None = None


Logprobs = list[dict[int, Logprob]]


@dataclass(frozen=True, slots=True)
class Update:
    """What one step adds to one completion of a request."""

    index: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: Logprobs = field(default_factory=list)
    prompt_logprobs: Logprobs | None = None
    cumulative_logprob: float | None = None
    decoding_iter: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    request_perf_metrics: RequestPerfMetrics | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One completion: cumulative fields, and `*_diff` for what the last step added."""

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

    _last_text_len: int = field(default=0, init=False, repr=False)
    _last_token_ids_len: int = field(default=0, init=False, repr=False)
    _last_logprobs_len: int = field(default=0, init=False, repr=False)

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def text_diff(self) -> str:
        return self.text[self._last_text_len :]

    @property
    def token_ids_diff(self) -> list[int]:
        return self.token_ids[self._last_token_ids_len :]

    @property
    def logprobs_diff(self) -> Logprobs:
        return self.logprobs[self._last_logprobs_len :]

    def mark(self) -> None:
        """Begin a step: what is there now is no longer new."""
        self._last_text_len = len(self.text)
        self._last_token_ids_len = len(self.token_ids)
        self._last_logprobs_len = len(self.logprobs)

    def apply(self, update: Update) -> None:
        self.text += update.text
        self.token_ids += update.token_ids
        self.logprobs += update.logprobs
        self.cumulative_logprob = update.cumulative_logprob
        self.prompt_logprobs = update.prompt_logprobs or self.prompt_logprobs
        self.finish_reason = update.finish_reason
        self.stop_reason = update.stop_reason
        self.request_perf_metrics = update.request_perf_metrics


class Mailbox:
    """Items from the engine thread to one consumer: a thread that blocks, or a coroutine."""

    def __init__(self) -> None:
        self._items: deque[Update | Exception] = deque()
        self._changed = Condition()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def put(self, item: Update | Exception) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify()
            waiter, self._waiter = self._waiter, None
        if waiter:
            loop, future = waiter
            # A loop that is closed has no consumer left to wake.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_wake, future)

    def get(self, timeout_s: float | None) -> Update | Exception:
        """Raises `TimeoutError`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._items, timeout_s):
                raise TimeoutError("the request gave no result in time")
            return self._items.popleft()

    async def aget(self) -> Update | Exception:
        while True:
            loop = asyncio.get_running_loop()
            with self._changed:
                if self._items:
                    return self._items.popleft()
                future: asyncio.Future[None] = loop.create_future()
                self._waiter = (loop, future)
            await future


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
        self.cached_tokens = 0
        self.mailbox = Mailbox()
        self._aborted = False
        self._done = False
        self._outputs = [CompletionOutput(index) for index in range(sampling_params.best_of or 1)]

    @property
    def id(self) -> int:
        return self.request_id

    @property
    def outputs(self) -> list[CompletionOutput]:
        """The `n` completions; of more than `n`, the likeliest ones once all have ended."""
        wanted = self.sampling_params.n
        if not self._done or wanted == len(self._outputs):
            return self._outputs[:wanted]
        return sorted(self._outputs, key=_likelihood, reverse=True)[:wanted]

    @property
    def finished(self) -> bool:
        return self._done

    @property
    def avg_decoded_tokens_per_iter(self) -> float | None:
        if not self.decoding_iter:
            return None
        return sum(output.length for output in self._outputs) / self.decoding_iter

    def abort(self) -> None:
        """End the request at the engine's next step; may be called at any time, from any thread."""
        self._aborted = True

    def aborted(self) -> bool:
        return self._aborted

    def _take(self, item: Update | Exception) -> None:
        if isinstance(item, Exception):
            self._done = True
            raise item
        for output in self._outputs:
            output.mark()
        self._outputs[item.index].apply(item)
        self.decoding_iter += item.decoding_iter
        self._done = all(output.finish_reason for output in self._outputs)
        if self._done and self.sampling_params.n < len(self._outputs):
            for rank, output in enumerate(sorted(self._outputs, key=_likelihood, reverse=True)):
                output.index = rank

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Wait in this thread until the request is done. Raises `TimeoutError`, `RequestError`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._done:
            left_s = None if deadline is None else deadline - time.monotonic()
            self._take(self.mailbox.get(left_s))
        return self

    async def aresult(self) -> RequestOutput:
        """Wait in this coroutine until the request is done. Raises `RequestError`."""
        while not self._done:
            self._take(await self.mailbox.aget())
        return self

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        return self.aresult().__await__()

    def __iter__(self) -> RequestOutput:
        return self

    def __next__(self) -> RequestOutput:
        if self._done:
            raise StopIteration
        self._take(self.mailbox.get(None))
        return self

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._done:
            raise StopAsyncIteration
        self._take(await self.mailbox.aget())
        return self

    def __repr__(self) -> str:
        return (
            f"RequestOutput(request_id={self.request_id}, prompt={self.prompt!r}, "
            f"outputs={self.outputs}, finished={self._done})"
        )


def _likelihood(output: CompletionOutput) -> float:
    value = output.cumulative_logprob
    return float("-inf") if value is None else value
