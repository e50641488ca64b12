"""A process that sends its share of a load, led over a socket, whose number is its argument.

It is sent a `Job`, then its start, and maybe a stop; it ends when the socket does, so that it
outlives no parent. It answers with "ready", records, and as its last message `ProcessUsage` or the
error that ended it.
"""

from __future__ import annotations

import asyncio
import bisect
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from builder.errors import ToolkitError

from ..endpoint import Endpoint
from . import load
from .clients import Api, LoadClient, connect, receiver
from .load import LoadPlan
from .request import RequestRecord

LENGTH = struct.Struct("<I")
# Records hold no cycles: looking for some among them would only stop the clock.
COLLECTION = (100_000, 50, 1000)
READ_AHEAD_BYTES = 1 << 20
SAMPLE_S = 0.2  # between two samples of the CPU time


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What a process spent on its load: CPU time from its start to its end, and peak memory.

    `samples` are pairs of CLOCK_MONOTONIC and the process's own CPU time until then, in ns.
    """

    cpu_s: float
    peak_mib: float
    samples: tuple[tuple[int, int], ...] = ()

    def share_of_core(self, from_ns: int, to_ns: int) -> float | None:
        """CPU time over wall time, for the part of this interval in which the load ran."""
        if not self.samples:
            return None
        start_ns, end_ns = max(from_ns, self.samples[0][0]), min(to_ns, self.samples[-1][0])
        if end_ns <= start_ns:
            return None
        return (self._cpu_ns(end_ns) - self._cpu_ns(start_ns)) / (end_ns - start_ns)

    def _cpu_ns(self, at_ns: int) -> float:
        """Between two samples, in proportion to the time."""
        place = max(1, bisect.bisect_left(self.samples, (at_ns, 0)))
        (before_ns, before_cpu_ns), (after_ns, after_cpu_ns) = self.samples[place - 1 : place + 1]
        share = (at_ns - before_ns) / (after_ns - before_ns)
        return before_cpu_ns + share * (after_cpu_ns - before_cpu_ns)


# The last one is the core of this process, if it has a dedicated one.
Job = tuple[LoadPlan, Endpoint, Api, int | None]
# "ready" is sent once the server has answered what every request needs.
Message = Literal["ready"] | RequestRecord | ProcessUsage | ToolkitError
# When to start by CLOCK_MONOTONIC in ns, or "stop": what is under way is given up.
Command = int | Literal["stop"]


def frame(message: Job | Command | Message) -> bytes:
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
        plan, endpoint, api, core = await _command(reader)
        if core is not None:
            os.sched_setaffinity(0, {core})
        client = connect(endpoint, api)
        last: Message = await _drive(plan, client, reader, lambda one: writer.write(frame(one)))
    except* ToolkitError as faults:
        last = _first(faults)
    writer.write(frame(last))
    writer.close()
    await writer.wait_closed()


async def _drive(
    plan: LoadPlan,
    client: LoadClient,
    reader: asyncio.StreamReader,
    emit: Callable[[Message], None],
) -> ProcessUsage:
    stopping = asyncio.Event()
    await client.prepare()
    emit("ready")
    start = await _command(reader)
    samples = [_cpu_sample()]
    if start != "stop":
        tasks = (_watch(reader, stopping), _sample(samples))
        beside = [asyncio.create_task(task) for task in tasks]
        await load.drive(replace(plan, start_ns=start), client, emit, stopping)
        for task in beside:
            task.cancel()
    samples.append(_cpu_sample())
    cpu_s = (samples[-1][1] - samples[0][1]) / 1e9
    return ProcessUsage(cpu_s, peak_mib(), tuple(samples))


def peak_mib() -> float:
    """The process's own; `getrusage` begins with that of the one that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def _sample(samples: list[tuple[int, int]]) -> None:
    while True:
        await asyncio.sleep(SAMPLE_S)
        samples.append(_cpu_sample())


def _cpu_sample() -> tuple[int, int]:
    return time.monotonic_ns(), time.process_time_ns()


async def _command(reader: asyncio.StreamReader) -> Any:
    """What the parent says next, which is to stop where it has ended."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return "stop"


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
