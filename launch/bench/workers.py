"""Load processes: each sends its share of a load; their records are merged as they arrive.

A process gets a `Job` over a socket, whose number is its argument, then its start, and maybe a
stop; it ends when the socket closes, so that it never outlives its parent. It answers with "ready",
records, and as its last message `ProcessUsage` or the error that ended it.
"""

from __future__ import annotations

import asyncio
import bisect
import gc
import os
import pickle
import resource
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, Self

from builder.diagnostics import Diagnostic
from builder.errors import ChecksFailed, ToolkitError

from ..endpoint import Endpoint
from . import load
from .clients import Api, LoadClient, connect, connection
from .load import LoadPlan
from .request import RequestRecord

LENGTH = struct.Struct("<I")
# Records hold no cycles: looking for some among them would only stop the clock.
COLLECTION = (100_000, 50, 1000)
READ_AHEAD_BYTES = 1 << 20
SAMPLE_S = 0.2  # between two samples of the CPU time


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """The resources that a process used for its load: CPU time and peak memory.

    `samples` are pairs of CLOCK_MONOTONIC and the process's own CPU time until then, in ns.
    """

    cpu_s: float
    peak_mib: float
    samples: tuple[tuple[int, int], ...] = ()

    def share_of_core(self, from_ns: int, to_ns: int) -> float | None:
        """CPU time over wall time, for the part of the interval in which the load ran."""
        if not self.samples:
            return None
        start_ns, end_ns = max(from_ns, self.samples[0][0]), min(to_ns, self.samples[-1][0])
        if end_ns <= start_ns:
            return None
        return (self._cpu_ns(end_ns) - self._cpu_ns(start_ns)) / (end_ns - start_ns)

    def _cpu_ns(self, at_ns: int) -> float:
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
    connection.run(_work(socket.socket(fileno=int(sys.argv[1]))))


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
    """The peak memory of this process; `getrusage` includes the parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def _sample(samples: list[tuple[int, int]]) -> None:
    while True:
        await asyncio.sleep(SAMPLE_S)
        samples.append(_cpu_sample())


def _cpu_sample() -> tuple[int, int]:
    return time.monotonic_ns(), time.process_time_ns()


async def _command(reader: asyncio.StreamReader) -> Any:
    """The next message of the parent; "stop" if it has ended."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return "stop"


async def _watch(reader: asyncio.StreamReader, stopping: asyncio.Event) -> None:
    await _command(reader)
    stopping.set()


def _first(faults: BaseExceptionGroup[ToolkitError]) -> ToolkitError:
    """The first of several errors, which all have the same reason."""
    fault: BaseException = faults
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    assert isinstance(fault, ToolkitError)
    return fault


TOOLKIT = Path(__file__).parents[2]
# Not as the main module, whose classes would be others than the parent's.
PROGRAM = "from launch.bench.workers import main; main()"
LEAD_NS = 50_000_000  # between the word to start and the start
POLL_S = 0.1  # how soon a stop is seen
STOP_S = 10.0  # for a worker to hand over what it has
READ_BYTES = 1 << 20

OnRecord = Callable[[RequestRecord], None]


def run(
    plan: LoadPlan,
    endpoint: Endpoint,
    api: Api,
    processes: int,
    on_record: OnRecord,
    stop: threading.Event,
    cores: Sequence[int] = (),
    on_look: Callable[[], None] = lambda: None,
) -> tuple[ProcessUsage, ...]:
    """Send the load, pass on each record as it arrives, and return what each process used.

    Ends early if `stop` is set. On any exception, also an interrupt, it stops the processes and
    passes on what they measured. `cores` pins the processes, and `on_look` is called several times
    a second. Raises `NotReady` or `BadInput` of a worker's client, and `ChecksFailed` if a worker
    died.
    """
    with ExitStack() as stack:
        workers = [
            stack.enter_context(_Worker(number + 1, processes)) for number in range(processes)
        ]
        for number, worker in enumerate(workers):
            core = cores[number % len(cores)] if cores else None
            worker.send((plan.share(number, processes), endpoint, api, core))
        try:
            return _collect(workers, on_record, on_look, stop)
        except BaseException:
            _drain(workers, on_record)
            raise


def share_of_limit(
    usage: Sequence[ProcessUsage], from_ns: int, to_ns: int, cpus: int
) -> float | None:
    """The share of its available CPU time that the busiest process used between these times.

    One core is available to a process, or its part of all `cpus` if there are more processes.
    """
    shares = (one.share_of_core(from_ns, to_ns) for one in usage)
    known = [share for share in shares if share is not None]
    return max(known) / min(1, cpus / len(usage)) if known else None


def _collect(
    workers: Sequence[_Worker],
    on_record: OnRecord,
    on_look: Callable[[], None],
    stop: threading.Event,
) -> tuple[ProcessUsage, ...]:
    ready, usage, stopped = 0, [], False
    for message in _messages(workers):
        on_look()
        match message:
            case RequestRecord():
                on_record(message)
            case ProcessUsage():
                usage.append(message)
            case ToolkitError():
                raise message
            case "ready":
                ready += 1
                if ready == len(workers):
                    _send(workers, time.monotonic_ns() + LEAD_NS)
        if stop.is_set() and not stopped:
            stopped = True
            _send(workers, "stop")
    return tuple(usage)


def _drain(workers: Sequence[_Worker], on_record: OnRecord) -> None:
    """Collect what was measured so far; processes that do not end in time are killed later."""
    _send(workers, "stop")
    deadline = time.monotonic() + STOP_S
    with suppress(ChecksFailed):  # something else ended the load already
        for message in _messages(workers):
            if isinstance(message, RequestRecord):
                on_record(message)
            if time.monotonic() > deadline:
                return


def _send(workers: Sequence[_Worker], command: Command) -> None:
    for worker in workers:
        worker.send(command)


def _messages(workers: Sequence[_Worker]) -> Iterator[Message | None]:
    """Messages of the workers until the last one has ended, and `None` while they are silent.

    Raises `ChecksFailed` if one ends without its last message.
    """
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            if not worker.ended:
                selector.register(worker.socket, selectors.EVENT_READ, worker)
        while selector.get_map():
            ready = selector.select(POLL_S)
            if not ready:
                yield None
            for key, _ in ready:
                yield from key.data.messages()
                if key.data.ended:
                    selector.unregister(key.data.socket)


class _Worker:
    """One process. Leaving kills it if it still runs."""

    def __init__(self, number: int, of: int) -> None:
        self.ended = False
        self._name = f"load process {number} of {of}"
        self._data = bytearray()
        self._said_last = False

    def __enter__(self) -> Self:
        self.socket, child = socket.socketpair()
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        with child:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(child.fileno())],
                env=os.environ | {"PYTHONPATH": _path()},
                pass_fds=(child.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        try:
            self._process.wait(0 if not self.ended else STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def send(self, command: Job | Command) -> None:
        """Send a command; `messages` reports a worker that has ended."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(frame(command))

    def messages(self) -> Iterator[Message]:
        """The messages so far. Raises `ChecksFailed` if a worker ended without its last message."""
        try:
            data = self.socket.recv(READ_BYTES)
        except ConnectionResetError:
            data = b""
        self.ended = not data
        self._data += data
        while len(self._data) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._data)
            end = LENGTH.size + length
            if len(self._data) < end:
                break
            message: Message = pickle.loads(self._data[LENGTH.size : end])
            del self._data[:end]
            self._said_last = isinstance(message, ProcessUsage | ToolkitError)
            yield message
        if self.ended and not self._said_last:
            raise ChecksFailed(Diagnostic(self._name, self._death()))

    def _death(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", errors="replace").split("\n")
        # A group of errors ends with a ruler.
        said = (line for line in reversed(lines) if any(map(str.isalnum, line)))
        return f"died with status {status}: {next(said, 'without a word').strip(' |')}"


def _path() -> str:
    return os.pathsep.join(filter(None, (str(TOOLKIT), os.environ.get("PYTHONPATH"))))
