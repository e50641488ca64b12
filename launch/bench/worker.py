"""A process that sends its share of a load, led over a socket, whose number is its argument.

It is sent a `Job`, then its start, and maybe a stop; it ends when the socket does, so that it
outlives no parent. It answers with `Ready`, records, and `Spent` or `Failed` as the last message.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from builder.diagnostics import Diagnostic
from builder.errors import ToolkitError

from ..smoke.endpoint import Endpoint
from . import load
from .clients import Api, connect, receiver
from .load import LoadPlan
from .record import Record

LENGTH = struct.Struct("<I")
# Records hold no cycles: looking for some among them would only stop the clock.
COLLECTION = (100_000, 50, 1000)
READ_AHEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Job:
    plan: LoadPlan
    endpoint: Endpoint
    api: Api
    core: int | None


@dataclass(frozen=True, slots=True)
class Ready:
    """The server was asked what every request needs."""


@dataclass(frozen=True, slots=True)
class Start:
    start_ns: int  # CLOCK_MONOTONIC


@dataclass(frozen=True, slots=True)
class Stop:
    """What is under way is given up."""


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU time from the start of the load to its end, and memory of the whole process."""

    cpu_s: float
    peak_mib: float


@dataclass(frozen=True, slots=True)
class Failed:
    kind: type[ToolkitError]
    problems: tuple[Diagnostic, ...]


Message = Ready | Record | Spent | Failed


def frame(message: Job | Start | Stop | Message) -> bytes:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)) + data


def main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # the terminal's are for the parent
        signal.signal(number, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.freeze()
    gc.set_threshold(*COLLECTION)
    receiver.run(_work(socket.socket(fileno=int(sys.argv[1]))))


async def _work(parent: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=parent, limit=READ_AHEAD_BYTES)
    try:
        job = await _command(reader)
        if job.core is not None:
            os.sched_setaffinity(0, {job.core})
        last: Message = await _drive(job, reader, lambda one: writer.write(frame(one)))
    except* ToolkitError as faults:
        fault = _first(faults)
        last = Failed(type(fault), tuple(fault.diagnostics))
    writer.write(frame(last))
    writer.close()
    await writer.wait_closed()


async def _drive(job: Job, reader: asyncio.StreamReader, tell: Callable[[Message], None]) -> Spent:
    client = connect(job.endpoint, job.api)
    stopping = asyncio.Event()
    try:
        await client.prepare()
        tell(Ready())
        start = await _command(reader)
        before_s = time.process_time()
        if isinstance(start, Start):
            watch = asyncio.create_task(_watch(reader, stopping))
            await load.drive(job.plan.starting(start.start_ns), client, tell, stopping)
            watch.cancel()
        spent_s = time.process_time() - before_s
    finally:
        await client.close()
    return Spent(spent_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


async def _command(reader: asyncio.StreamReader) -> Any:
    """What the parent says next, which is to stop where it has ended."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return Stop()


async def _watch(reader: asyncio.StreamReader, stopping: asyncio.Event) -> None:
    await _command(reader)
    stopping.set()


def _first(faults: BaseExceptionGroup[ToolkitError]) -> ToolkitError:
    """Streams of a load fail side by side, all for the same reason."""
    fault: BaseException = faults
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    assert isinstance(fault, ToolkitError)
    return fault
