"""A load: which requests are sent, and when."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from .clients import LoadClient
from .request import LoadRequest, RequestRecord

# Requests that depend on each other: each one's prompt follows the answer to those before it.
Task = tuple[LoadRequest, ...]
Kind = Literal["concurrency", "poisson", "gamma", "trace", "tasks"]
Emit = Callable[[RequestRecord], None]

NS = 1_000_000_000
CLOSED: tuple[Kind, ...] = ("concurrency", "tasks")
# A call of a task that the server had no room for is sent again after this time, then twice it...
RETRY_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A load, or the share of one process.

    A closed loop keeps `concurrency` requests or tasks under way; with `duration_s` it repeats
    its calls until then, counting on from `period`. An open loop sends at its own times. Both
    start at `start_ns` of CLOCK_MONOTONIC, or at once if that is 0.
    """

    kind: Kind
    calls: tuple[LoadRequest, ...] = ()
    tasks: tuple[Task, ...] = ()
    concurrency: int = 1
    duration_s: float | None = None
    retries: int = 3
    start_ns: int = 0
    period: int = 0

    @property
    def closed(self) -> bool:
        return self.kind in CLOSED

    @property
    def connections(self) -> int:
        return self.concurrency if self.closed else len(self.calls)

    @property
    def size(self) -> int:
        """Requests, not counting repeats and retries."""
        return len(self.calls) + sum(len(task) for task in self.tasks)

    def share(self, number: int, of: int) -> LoadPlan:
        """The share of one of several processes; streams of a closed loop stay equally long."""
        if not self.closed:
            return replace(self, calls=self.calls[number::of])
        streams = range(number, self.concurrency, of)

        def is_in_share(place: int) -> bool:
            return place % self.concurrency in streams

        return replace(
            self,
            calls=tuple(call for place, call in enumerate(self.calls) if is_in_share(place)),
            tasks=tuple(task for place, task in enumerate(self.tasks) if is_in_share(place)),
            concurrency=len(streams),
            period=self.period or len(self.calls) or len(self.tasks),
        )


def arrivals_s(count: int, rate_per_s: float, burstiness: float, seed: int) -> Iterator[float]:
    """Times of arrivals whose gaps are gamma distributed with a mean of 1 / rate.

    `burstiness` is the distribution's shape: 1 gives Poisson arrivals, less gives bursts, more
    gives a steadier flow.
    """
    chance = random.Random(seed)
    at_s = 0.0
    for _ in range(count):
        at_s += chance.gammavariate(burstiness, 1 / (rate_per_s * burstiness))
        yield at_s


async def drive(plan: LoadPlan, client: LoadClient, emit: Emit, stopping: asyncio.Event) -> None:
    """Send the load; `emit` gets every record. If `stopping` is set, it cancels what is running."""
    work = asyncio.ensure_future((_closed if plan.closed else _open)(plan, client, emit))
    stop = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        work.cancel()  # no effect where it is done
        with suppress(asyncio.CancelledError):
            await work


async def _closed(plan: LoadPlan, client: LoadClient, emit: Emit) -> None:
    await _until(plan.start_ns)
    calls = _repeated(plan) if plan.duration_s else plan.calls
    alone = (_send(call, client, emit) for call in calls)
    tasks = (_task(task, plan.retries, client, emit) for task in plan.tasks)
    work = itertools.chain(alone, tasks)

    async def stream() -> None:
        for one in work:  # shared: each stream takes the next one
            await one

    async with asyncio.TaskGroup() as group:
        for _ in range(plan.concurrency):
            group.create_task(stream())


async def _send(call: LoadRequest, client: LoadClient, emit: Emit) -> None:
    emit(await client.send(call))


def _repeated(plan: LoadPlan) -> Iterator[LoadRequest]:
    end_ns = (plan.start_ns or time.monotonic_ns()) + int((plan.duration_s or 0) * NS)
    period = plan.period or len(plan.calls)
    for number, call in enumerate(itertools.cycle(plan.calls)):
        if time.monotonic_ns() >= end_ns:
            return
        yield replace(call, index=call.index + number // len(plan.calls) * period)


async def _open(plan: LoadPlan, client: LoadClient, emit: Emit) -> None:
    start_ns = plan.start_ns or time.monotonic_ns()

    async def send(call: LoadRequest, at_ns: int) -> None:
        emit(replace(await client.send(call), scheduled_ns=at_ns))

    async with asyncio.TaskGroup() as group:
        for call in plan.calls:
            at_ns = start_ns + int(call.at_s * NS)
            await _until(at_ns)
            group.create_task(send(call, at_ns))


async def _task(task: Task, retries: int, client: LoadClient, emit: Emit) -> None:
    """Sends the calls one by one; a call that fails finally ends the task."""
    before: LoadRequest | None = None
    answer = ""
    for number, own in enumerate(task):
        index = (own.task or 0) * len(task) + number
        request = replace(_following(before, answer, own), index=index, call=number, keep_text=True)
        record = await _answered(request, retries, client, emit)
        if not record.ok:
            return
        before, answer = request, record.text or ""


async def _answered(
    request: LoadRequest, retries: int, client: LoadClient, emit: Emit
) -> RequestRecord:
    for attempt in itertools.count():
        record = await client.send(replace(request, attempt=attempt))
        emit(record)
        if record.failure is None or not record.failure.retryable or attempt == retries:
            return record
        await asyncio.sleep(RETRY_WAIT_S * 2**attempt)
    raise AssertionError("unreachable")


def _following(before: LoadRequest | None, answer: str, own: LoadRequest) -> LoadRequest:
    if before is None:
        return own
    if own.messages is not None:
        said = {"role": "assistant", "content": answer}
        return replace(own, messages=(*(before.messages or ()), said, *own.messages))
    return replace(own, prompt=f"{before.prompt}{answer}{own.prompt}")


async def _until(at_ns: int) -> None:
    if (left_ns := at_ns - time.monotonic_ns()) > 0:
        await asyncio.sleep(left_ns / NS)
