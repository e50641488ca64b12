"""The running requests of this model: each is a task of one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import traceback
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb_utils
from model_engine import Engine, blames_request
from model_request import Request
from model_response import Deltas, Reply, Tensors

# How long an aborted request may take to end while the model is unloaded.
ABORT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Running:
    request_id: str
    reply: Reply


class Generations:
    """Starts, watches, cancels and drains requests; only the loop's thread touches its state."""

    def __init__(self, engine: Engine, tensors: Tensors, check_period_s: float) -> None:
        self._engine = engine
        self._tensors = tensors
        self._check_period_s = check_period_s
        self._running: dict[asyncio.Task[None], Running] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="generations", daemon=True)
        self._thread.start()

    def start(self, request_id: str, request: Request, reply: Reply) -> None:
        """Generate for `request` and answer through `reply`, on the loop's thread."""
        self._loop.call_soon_threadsafe(self._start, request_id, request, reply)

    def stop(self, request_id: str, reply: Reply) -> None:
        """Cancel every running request with this id, and say so through `reply`."""
        self._loop.call_soon_threadsafe(self._stop, request_id, reply)

    def drain(self, timeout_s: float) -> int:
        """Wait for running requests, cancel those that take longer, and end the loop.

        Returns how many requests had to be cancelled.
        """
        late = asyncio.run_coroutine_threadsafe(self._drain(timeout_s), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ABORT_TIMEOUT_S)
        return late

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        watch = self._loop.create_task(self._watch_clients())
        self._loop.run_forever()
        watch.cancel()
        self._loop.run_until_complete(asyncio.gather(watch, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _start(self, request_id: str, request: Request, reply: Reply) -> None:
        task = self._loop.create_task(self._generate(request, reply))
        self._running[task] = Running(request_id, reply)
        task.add_done_callback(self._ended)

    def _stop(self, request_id: str, reply: Reply) -> None:
        tasks = [
            task for task, running in self._running.items() if running.request_id == request_id
        ]
        for task in tasks:
            task.cancel()
        if tasks:
            reply.fail(pb_utils.TritonError.CANCELLED, f"request {request_id} is cancelled")
        else:
            reply.fail(pb_utils.TritonError.NOT_FOUND, f"no request {request_id} is running")

    async def _generate(self, request: Request, reply: Reply) -> None:
        result = self._engine.submit(request)
        try:
            await self._deliver(result, request, reply)
        except asyncio.CancelledError:
            result.abort()
            raise

    async def _deliver(self, result: Any, request: Request, reply: Reply) -> None:
        deltas, wanted = Deltas(), request.outputs
        async for output in result:
            sequences = output.outputs
            if not request.streaming:
                if output.finished:
                    texts = [sequence.text for sequence in sequences]
                    reply.send(self._tensors.build(texts, sequences, wanted), final=True)
                    return
                continue
            texts = deltas.take(sequences)
            # A step without new text, such as half of a character, waits for the next one.
            if output.finished or any(texts):
                reply.send(self._tensors.build(texts, sequences, wanted), final=output.finished)
            if output.finished:
                return
        raise RuntimeError("the engine ended the request without a final output")

    def _ended(self, task: asyncio.Task[None]) -> None:
        reply = self._running.pop(task).reply
        if task.cancelled():
            reply.fail(pb_utils.TritonError.CANCELLED, "the request was cancelled")
        elif (fault := task.exception()) is None:
            return
        elif blames_request(fault):
            reply.fail(pb_utils.TritonError.INVALID_ARG, str(fault))
        else:
            pb_utils.Logger.log_error("".join(traceback.format_exception(fault)))
            reply.fail(pb_utils.TritonError.INTERNAL, f"{type(fault).__name__}: {fault}")

    async def _watch_clients(self) -> None:
        """Cancel what clients no longer wait for.

        Every question is a round trip to the server process, so that they are asked now and then
        and not per token, and in another thread.
        """
        while True:
            await asyncio.sleep(self._check_period_s)
            if not self._running:
                continue
            try:
                running = dict(self._running)
                for task in await self._loop.run_in_executor(None, _abandoned, running):
                    task.cancel()
            except Exception:
                pb_utils.Logger.log_error(traceback.format_exc())

    async def _drain(self, timeout_s: float) -> int:
        if not self._running:
            return 0
        _, late = await asyncio.wait(self._running, timeout=timeout_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=ABORT_TIMEOUT_S)
        return len(late)


def _abandoned(running: dict[asyncio.Task[None], Running]) -> list[asyncio.Task[None]]:
    return [task for task, entry in running.items() if entry.reply.is_cancelled()]
