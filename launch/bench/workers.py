"""Processes that send one load together: started, led, and their records merged as they come."""

from __future__ import annotations

import os
import pickle
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Self

from builder.diagnostics import Diagnostic
from builder.errors import ChecksFailed, ToolkitError

from ..endpoint import Endpoint
from .clients import Api
from .load import LoadPlan
from .request import RequestRecord
from .worker import LENGTH, Command, Job, Message, ProcessUsage, frame

TOOLKIT = Path(__file__).parents[2]
# Not as the main module, whose classes would be others than the parent's.
PROGRAM = "from launch.bench.worker import main; main()"
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
    """Send the load, each record handed over as it comes, and give what each process spent.

    Ends early if `stop` is set. Where anything is raised, an interrupt of the user's as well, the
    processes are stopped first and what they had measured is handed over. `cores` are where they
    run alone, and `on_look` is called several times a second. Raises `NotReady` or `BadInput` of a
    worker's client, and `ChecksFailed` where a worker died.
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
    """How much of the CPU time that it could have the busiest process used between these times.

    That is a core's, or its part of all `cpus` where there are more processes than these.
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
    """What was measured until now; whoever does not end in time is killed afterwards."""
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
    """What the workers say until the last one has ended, and `None` whenever they are silent.

    Raises `ChecksFailed` where one ends without a last word.
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
        """A worker that has ended hears nothing; `messages` says so."""
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
    """Where workers find this program, wherever they are started."""
    return os.pathsep.join(filter(None, (str(TOOLKIT), os.environ.get("PYTHONPATH"))))
