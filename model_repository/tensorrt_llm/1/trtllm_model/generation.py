"""Runs the requests of this model: each is a task of one event loop in a separate thread.

The loop's thread alone starts and ends tasks and reads the engine's results; it never waits for a
client, since what comes of the engine goes to the `Delivery`. The set of running requests is
guarded by the lock of `_changed`: a request is in it from its arrival until its last response.
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import triton_python_backend_utils as pb_utils

from .delivery import Delivery
from .engine import LlmEngine, blames_request
from .inputs import RequestError
from .metrics import MetricsRecorder
from .request import Request
from .response import ResponseBuilder, ResponseSender, Stream
from .settings import Settings
from .termination import EngineFailure

# How long an aborted request may take to end while the model is unloaded.
ABORT_TIMEOUT_S = 10.0
KV_CACHE_PERIOD_S = 1.0
# How often it is seen whether clients are there while the model is unloaded.
CLIENTS_PERIOD_S = 0.5


class Generations:
    """Starts, cancels and drains requests. `metrics_labels` are the model's name and version."""

    def __init__(
        self,
        engine: LlmEngine,
        dtypes: Mapping[str, Any],
        settings: Settings,
        metrics_labels: Mapping[str, str],
    ) -> None:
        self._engine = engine
        self._dtypes = dtypes
        self._settings = settings
        self._changed = threading.Condition()
        self._running: set[Stream] = set()
        self.progress_s = time.monotonic()  # when the engine last gave a sign of life
        self.failure = EngineFailure(self._fail_all)
        self.metrics = MetricsRecorder(metrics_labels, engine.version, self.running)
        self._loop = asyncio.new_event_loop()
        self._delivery = Delivery(
            self.metrics, settings.sender_threads, self._ended, self._loop.call_soon
        )
        # One thread: a tokenizer does not bear two, and a long prompt holds up no streams from it.
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        most = settings.max_unary_http_running
        self._unwatched = asyncio.Semaphore(most) if most else None
        self._thread = threading.Thread(target=self._run_loop, name="generations", daemon=True)
        self._thread.start()

    def start(self, request_id: str, request: Request, sender: ResponseSender) -> None:
        """Generate for `request` and answer through `sender`.

        Raises `RequestError` where as many requests run and wait as may, or the engine has failed.
        """
        stream = Stream(request_id, request, sender, ResponseBuilder(self._dtypes, request))
        with self._changed:
            self._refuse_if_full(request)
            if not self._running:
                self.progress_s = stream.arrival_s
            self._running.add(stream)
        self._loop.call_soon_threadsafe(self._start, stream)

    def _refuse_if_full(self, request: Request) -> None:
        limit, unwatched = self._settings.max_requests, self._settings.max_unary_http_requests
        if self.failure.reason is not None:
            raise refused(f"the engine is dead: {self.failure.reason}; the server ends")
        if limit is not None and len(self._running) >= limit:
            raise refused(f"{limit} requests are running or waiting, no more may; retry later")
        if unwatched is not None and request.is_unwatched:
            others = sum(stream.request.is_unwatched for stream in self._running)
            if others >= unwatched:
                what = f"{unwatched} requests over HTTP that are not streamed"
                why = "are running or waiting, no more may"
                raise refused(f"{what} {why}; stream the answer, use gRPC, or retry later")

    def stop(self, request_id: str, sender: ResponseSender) -> None:
        """Cancel every running request with this id, and say so through `sender`."""
        self._loop.call_soon_threadsafe(self._stop, request_id, sender)

    def running(self) -> list[Stream]:
        with self._changed:
            return list(self._running)

    def cancel(self, streams: Iterable[Stream]) -> None:
        """Abort what the engine still does for these."""
        self._loop.call_soon_threadsafe(_cancel, list(streams))

    def drain(self, timeout_s: float, has_clients: Callable[[], bool] = lambda: True) -> int:
        """Wait for running requests, cancel any that take longer or whose client has left, and end
        all threads.

        Returns how many requests had to be cancelled.
        """
        end_s = time.monotonic() + timeout_s
        late = self.running()
        while late and has_clients() and (left_s := end_s - time.monotonic()) > 0:
            late = self._wait_until_idle(min(left_s, CLIENTS_PERIOD_S))
        if late:
            self.cancel(late)
            self._wait_until_idle(ABORT_TIMEOUT_S)
        self._delivery.close()
        self._preparing.shutdown(wait=False, cancel_futures=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        if self.failure.reason is None:  # else the loop may hang with the engine
            self._thread.join(ABORT_TIMEOUT_S)
        self.metrics.close()
        return len(late)

    def _wait_until_idle(self, timeout_s: float) -> list[Stream]:
        with self._changed:
            self._changed.wait_for(lambda: not self._running, timeout_s)
            return list(self._running)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        watch = self._loop.create_task(self._watch_kv_cache())
        self._loop.run_forever()
        watch.cancel()
        self._loop.run_until_complete(asyncio.gather(watch, return_exceptions=True))
        self._loop.close()

    def _start(self, stream: Stream) -> None:
        stream.task = self._loop.create_task(self._generate(stream))
        stream.task.add_done_callback(lambda task: self._task_ended(stream, task))

    def _stop(self, request_id: str, sender: ResponseSender) -> None:
        found = [stream for stream in self.running() if stream.request_id == request_id]
        _cancel(found)
        if found:
            sender.fail(_cancelled(f"request {request_id} is cancelled"))
        else:
            sender.fail(RequestError(f"no request {request_id} is running", "NOT_FOUND"))

    async def _generate(self, stream: Stream) -> None:
        limit_s = self._limit_s(stream.request)
        try:
            async with asyncio.timeout(limit_s) as limit:
                arguments = await self._loop.run_in_executor(
                    self._preparing, self._engine.prepare, stream.request
                )
                async with (stream.request.is_unwatched and self._unwatched) or nullcontext():
                    await self._take_results(stream, arguments)
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"the request took longer than its limit of {limit_s:g} s"
            self._delivery.fail(stream, _cancelled(message))

    async def _take_results(self, stream: Stream, arguments: Mapping[str, Any]) -> None:
        result = self._engine.submit(arguments)
        try:
            async for output in result:
                self.progress_s = time.monotonic()
                if stream.request.streaming or output.finished:
                    self._delivery.put(stream, output)
                if output.finished:
                    return
        except asyncio.CancelledError:
            result.abort()
            raise
        raise RuntimeError("the engine ended the request without a final output")

    def _task_ended(self, stream: Stream, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._delivery.fail(stream, _cancelled("the request was cancelled"))
        elif (fault := task.exception()) is None:
            return
        elif blames_request(fault):
            error = fault if isinstance(fault, RequestError) else RequestError(str(fault))
            self._delivery.fail(stream, error)
        else:
            message = f"{type(fault).__name__}: {fault}"
            if self.failure.reason is None:
                pb_utils.Logger.log_error("".join(traceback.format_exception(fault)))
            if not self._engine.is_alive():
                self.failure.declare(message)
            self._delivery.fail(stream, RequestError(message, "INTERNAL", "failed"))

    def _ended(self, stream: Stream) -> None:
        with self._changed:
            self._running.discard(stream)
            self._changed.notify_all()

    def _fail_all(self, reason: str) -> None:
        message = f"the engine is dead: {reason}; the server ends, retry elsewhere or later"
        for stream in self.running():
            self._delivery.fail(stream, RequestError(message, "UNAVAILABLE", "failed"))

    def _limit_s(self, request: Request) -> float | None:
        limits = (request.timeout_s, self._settings.max_seconds_per_request)
        return min((limit for limit in limits if limit is not None), default=None)

    async def _watch_kv_cache(self) -> None:
        while True:
            await asyncio.sleep(KV_CACHE_PERIOD_S)
            try:
                used = await self._engine.kv_cache_utilization()
            except Exception:
                pb_utils.Logger.log_warn(traceback.format_exc())
                return
            if used is not None:
                self.progress_s = time.monotonic()
                self.metrics.kv_cache_utilization = used


def _cancel(streams: Iterable[Stream]) -> None:
    for stream in streams:
        if stream.task is not None:
            stream.task.cancel()


def refused(message: str) -> RequestError:
    """Not now, but perhaps later or elsewhere."""
    return RequestError(message, "UNAVAILABLE", "refused")


def _cancelled(message: str) -> RequestError:
    return RequestError(message, "CANCELLED", "cancelled")
