"""A stand-in engine that emits at a given rate and whose tokens carry their time of emission.

It has the parts of TensorRT-LLM's interface that a server uses. The prompt is the workload, see
`PromptWorkload`: once all streams of a batch are there, a thread of the engine's own takes the
steps. Every step queues one token per stream and wakes the event loop once for all of them, as the
engine's own result queues do.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from typing import Any

from benchmarks import stamps
from benchmarks.prompt_workload import PromptWorkload

SHUTDOWN_TIMEOUT_S = 5.0


class SamplingParams:
    def __init__(self, **parameters: Any) -> None:
        vars(self).update(parameters)


class CompletionOutput:
    """`text` is all text so far, `text_diff` that of the last step."""

    def __init__(self) -> None:
        self.index = 0
        self.text = ""
        self.text_diff = ""
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | None = None
        self.cumulative_logprob: float | None = None
        self.logprobs: list[Any] = []
        self.request_perf_metrics: Any = None

    @property
    def length(self) -> int:
        return len(self.token_ids)


class RequestOutput:
    """Iterated asynchronously it gives itself, one step further each time."""

    def __init__(self, prompt: str, tokens: int) -> None:
        self.prompt = prompt
        self.prompt_token_ids = list(range(8))
        self.outputs = [CompletionOutput()]
        self.finished = False
        self.aborted = False
        self._tokens = tokens
        self._queue: deque[str] = deque()
        self._queued = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def abort(self) -> None:
        self.aborted = True

    def put(self, text: str) -> asyncio.AbstractEventLoop | None:
        """Queue one step, on the engine's thread; gives the loop that may wait for it."""
        if not self.aborted:
            self._queue.append(text)
        return self._loop

    def wake(self) -> None:
        if self._queue:
            self._queued.set()

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        self._loop = asyncio.get_running_loop()
        while not self._queue:
            self._queued.clear()
            await self._queued.wait()
        [output] = self.outputs
        output.text_diff = self._queue.popleft()
        output.text += output.text_diff
        output.token_ids.append(output.length)
        if output.length == self._tokens:
            self.finished, output.finish_reason = True, "length"
        return self


class LLM:
    def __init__(self, model: str, **options: Any) -> None:
        self._batches: dict[str, list[RequestOutput]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def generate_async(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        streaming: bool = False,
        **_: Any,
    ) -> RequestOutput:
        workload = PromptWorkload.read(inputs)
        result = RequestOutput(inputs, workload.tokens)
        with self._lock:
            batch = self._batches.setdefault(workload.batch, [])
            batch.append(result)
            if len(batch) == workload.streams:
                del self._batches[workload.batch]
                thread = threading.Thread(target=self._run, args=(workload, batch), daemon=True)
                self._threads = [one for one in self._threads if one.is_alive()] + [thread]
                thread.start()
        return result

    def shutdown(self) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join(SHUTDOWN_TIMEOUT_S)

    def _run(self, workload: PromptWorkload, batch: list[RequestOutput]) -> None:
        """Take the steps when they are due; those that are late are taken at once."""
        start = time.monotonic()
        for index in range(workload.tokens):
            wait_s = start + (index + 1) * workload.step_ms / 1000 - time.monotonic()
            if wait_s > 0 and self._closed.wait(wait_s):
                return
            text = stamps.write(index, time.monotonic_ns())
            loops = {result.put(text) for result in batch}
            for loop in loops - {None}:
                assert loop is not None
                loop.call_soon_threadsafe(_wake, batch)


def _wake(batch: list[RequestOutput]) -> None:
    for result in batch:
        result.wake()
