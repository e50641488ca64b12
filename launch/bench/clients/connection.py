"""One request per connection: what arrives is kept with its time, and read later.

A token that goes through callbacks costs three times as much, and waking up for each one costs as
much as all else that is done for it. So the event loop of a load reads the streams itself, sleeps a
little between two looks, and the kernel stamps the data. Everything else is asyncio as usual."""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import socket
import ssl
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from selectors import SelectorKey
from typing import Any
from urllib.parse import urlsplit

from builder.diagnostics import Diagnostic
from builder.errors import NotReady

from ...access import Access
from ..request import Failure, FailureKind

READ_BYTES = 1 << 13  # at a time; room for more costs time for each token
# Only Linux tells of a TCP stream when its data stamp; elsewhere it has come when it is read.
STAMPS = sys.platform == "linux"
SO_TIMESTAMPNS = 35  # has no name in `socket`
STAMP = struct.Struct("@ll")  # seconds and ns of CLOCK_REALTIME
STAMP_SPACE = socket.CMSG_SPACE(STAMP.size)
NS_PER_S = 1_000_000_000
# Between two readings of clocks that follow each other at once.
CLOCKS_NS = 20_000
NAP_S = 0.001 if STAMPS else 0.0


def ask_for_stamps(stream: socket.socket) -> None:
    """Ask the kernel to stamp incoming data, on a socket or on all that it accepts."""
    if STAMPS:
        stream.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


def read_clocks() -> tuple[int, int]:
    """CLOCK_MONOTONIC, and by how much CLOCK_REALTIME is ahead of it.

    Read again if the process had to wait between the two: all arrivals would look earlier."""
    while True:
        now_ns = time.monotonic_ns()
        ahead_ns = time.time_ns() - now_ns
        if time.monotonic_ns() - now_ns < CLOCKS_NS:
            return now_ns, ahead_ns


def arrival_ns(control: Sequence[tuple[int, int, bytes]], now_ns: int, clocks_ns: int) -> int:
    """The arrival of data: the kernel's stamp in `control`, or else now."""
    if not control:
        return now_ns
    stamp: tuple[int, int] = STAMP.unpack(control[0][2])
    return min(now_ns, stamp[0] * NS_PER_S + stamp[1] - clocks_ns)


# Takes data with its arrival: nothing at the end of the connection, or the error that broke it.
# Says whether that was all.
Sink = Callable[[int, bytes | OSError], bool]


class Receiver(selectors.EpollSelector):
    """A selector that reads the sockets of `watch` itself and reports all others."""

    def __init__(self) -> None:
        super().__init__()
        # The same epoll, asked without the keys and events that the selector makes of each token.
        self._epoll = select.epoll.fromfd(os.dup(self.fileno()))
        self._streams: dict[int, tuple[socket.socket, Sink]] = {}

    def watch(self, stream: socket.socket, sink: Sink) -> None:
        """Until `unwatch`, or the end of the stream."""
        ask_for_stamps(stream)
        if STAMPS:
            # A packet that only acknowledges a token costs as much as reading it.
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        self._streams[stream.fileno()] = (stream, sink)
        self._epoll.register(stream, select.EPOLLIN)

    def unwatch(self, stream: socket.socket) -> None:
        if self._streams.pop(stream.fileno(), None) is not None:
            self._epoll.unregister(stream)

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Ready sockets other than streams; an empty list when a stream ends."""
        streams, keys = self._streams, self.get_map()
        deadline = None if timeout is None else time.monotonic() + max(timeout, 0)
        while True:
            left_s = None if deadline is None else max(0, deadline - time.monotonic())
            fired = self._epoll.poll(left_s)
            now_ns, clocks_ns = read_clocks()
            ready, ended = [], False
            for number, mask in fired:
                if (stream := streams.get(number)) is not None:
                    ended = self._read(*stream, now_ns, clocks_ns) or ended
                elif (key := keys.get(number)) is not None:
                    events = selectors.EVENT_WRITE if mask & ~select.EPOLLIN else 0
                    events |= selectors.EVENT_READ if mask & ~select.EPOLLOUT else 0
                    ready.append((key, events & key.events))
            is_over = deadline is not None and time.monotonic() >= deadline
            if ready or ended or not fired or is_over:  # timers wait for it
                return ready
            if NAP_S and (deadline is None or deadline - time.monotonic() > NAP_S):
                time.sleep(NAP_S)

    def close(self) -> None:
        self._epoll.close()
        super().close()

    def _read(self, stream: socket.socket, sink: Sink, now_ns: int, clocks_ns: int) -> bool:
        try:
            data, control, _, _ = stream.recvmsg(READ_BYTES, STAMP_SPACE)
        except BlockingIOError:
            return False
        except OSError as error:
            self.unwatch(stream)
            return sink(now_ns, error)
        if not data:
            self.unwatch(stream)
        return sink(arrival_ns(control, now_ns, clocks_ns), data)


class Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.receiver = Receiver()
        super().__init__(self.receiver)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Like `asyncio.run`, in a `Loop`."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main)


PREPARE_TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 64 << 20  # a token takes some 300 bytes of a stream


class Malformed(ValueError):
    """The answer is not of the expected protocol."""


class Exchange(asyncio.Protocol):
    """`ended` is set by what looks like the end, or by the end of the connection.

    `sent_ns` is when the request was given to the socket; before that, when it was tried.
    """

    is_long = False  # whether the request is larger than what a socket takes in one write

    def __init__(self, request: bytes) -> None:
        self.sent_ns = time.monotonic_ns()
        self.arrivals: list[int] = []
        self.parts: list[bytes] = []
        self.nbytes = 0
        self.ended_ns = 0
        self.is_connected = self.lost = False
        self.fault: Exception | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._transport: asyncio.WriteTransport | None = None
        self._stream: socket.socket | None = None

    async def over(self, stream: socket.socket, address: tuple[str, int], loop: Loop) -> None:
        """Ends when the request was sent. Raises `OSError`."""
        self._stream, self._loop = stream, loop
        await loop.sock_connect(stream, address)
        self.is_connected, self.sent_ns = True, time.monotonic_ns()
        await loop.sock_sendall(stream, self._request)
        loop.receiver.watch(stream, self.received)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self.is_connected, self.sent_ns = True, time.monotonic_ns()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.received(time.monotonic_ns(), data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(exc)

    def received(self, arrived_ns: int, data: bytes | OSError) -> bool:
        """Takes data, nothing at the end of the connection, or an error. True at the end."""
        if not data or isinstance(data, OSError):
            self._lose(data if isinstance(data, OSError) else None)
            return True
        self.arrivals.append(arrived_ns)
        self.parts.append(data)
        self.nbytes += len(data)
        if self.nbytes > MAX_ANSWER_BYTES:
            self._lose(OSError(f"it had more than {MAX_ANSWER_BYTES >> 20} MiB"))
            return True
        self.look(data)
        return self.ended.done()

    def close(self) -> None:
        """Stops waiting and closes the connection."""
        if self._transport is not None:
            self._transport.abort()
        if self._stream is not None:
            self._loop.receiver.unwatch(self._stream)
            self._stream.close()
        self.end(time.monotonic_ns())

    def look(self, data: bytes) -> None:
        """Calls `end` if the bytes that have just arrived complete the answer."""
        raise NotImplementedError

    def say(self, data: bytes) -> None:
        """Send a little more."""
        if self._transport is not None:
            self._transport.write(data)
        elif self._stream is not None:
            try:
                self._stream.send(data)
            except OSError as error:
                self._lose(error)

    def end(self, at_ns: int) -> None:
        if not self.ended.done():
            self.ended_ns = at_ns
            self.ended.set_result(None)

    def _lose(self, fault: Exception | None) -> None:
        if not self.ended.done():
            self.lost, self.fault = True, fault
            self.end(time.monotonic_ns())


@dataclass(slots=True)
class Connector:
    """Where requests go; the name is looked up once. Its answers are read one after the other."""

    url: str
    access: Access
    protocol: str = "http/1.1"
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _address: tuple[str, int] | None = None
    _family: int = socket.AF_INET
    _tls: ssl.SSLContext | None = None

    async def prepare(self) -> None:
        """Raises `NotReady`."""
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise NotReady(Diagnostic(self.url, f"cannot be looked up: {error}")) from None
        self._family, _, _, _, address = found[0]
        self._address = (str(address[0]), port)
        if parts.scheme == "https":
            self._tls = tls(self.access, self.protocol)

    @asynccontextmanager
    async def exchange(self, exchange: Exchange, timeout_s: float) -> AsyncIterator[Failure | None]:
        """Entered when the exchange has ended, with the reason if its answer cannot be read.

        Answers that end together are read one after the other.
        """
        failure = None
        try:
            async with asyncio.timeout(timeout_s):
                await self._connect(exchange)
                await exchange.ended
        except TimeoutError:
            failure = Failure("timeout", f"no end within {timeout_s:g} s")
        except OSError as error:
            kind: FailureKind = "cut" if exchange.is_connected else "refused"
            failure = Failure(kind, _reason(error), retryable=True)
        except asyncio.CancelledError:
            exchange.close()
            raise
        async with self._reading:
            exchange.close()
            yield failure

    async def _connect(self, exchange: Exchange) -> None:
        if self._address is None:
            await self.prepare()
        assert self._address is not None
        loop = asyncio.get_running_loop()
        if isinstance(loop, Loop) and self._tls is None and not exchange.is_long:
            stream = socket.socket(self._family, socket.SOCK_STREAM)
            stream.setblocking(False)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await exchange.over(stream, self._address, loop)
            return
        name = (self.access.server_name or urlsplit(self.url).hostname) if self._tls else None
        await loop.create_connection(
            lambda: exchange, *self._address, ssl=self._tls, server_hostname=name
        )


def tls(access: Access, protocol: str) -> ssl.SSLContext:
    context = ssl.create_default_context(
        cadata=access.root.decode("ascii") if access.root else None
    )
    context.set_alpn_protocols([protocol])
    if access.certificate and access.certificate_key:
        with tempfile.NamedTemporaryFile() as file:  # OpenSSL reads only files
            file.write(access.certificate_key + b"\n" + access.certificate)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _reason(error: OSError) -> str:
    """The system's message; asyncio's repeats the address as a Python tuple."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return error.strerror or str(error)
