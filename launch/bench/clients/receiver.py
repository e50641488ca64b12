"""The event loop of a load: what arrives on a stream is kept at once, past the loop's machinery.

A token that goes through callbacks costs three times as much, and waking up for each one costs as
much as all else that is done for it. So the loop sleeps a little between two looks, and the kernel
tells when data stamp. Everything else is asyncio as usual.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from selectors import SelectorKey
from typing import Any

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
    """Have the kernel tell when data comes, on a socket or on all that it accepts."""
    if STAMPS:
        stream.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


def read_clocks() -> tuple[int, int]:
    """CLOCK_MONOTONIC, and by how much CLOCK_REALTIME is ahead of it: read again where the process
    had to wait between the two, which would make all that came seem earlier by that."""
    while True:
        now_ns = time.monotonic_ns()
        ahead_ns = time.time_ns() - now_ns
        if time.monotonic_ns() - now_ns < CLOCKS_NS:
            return now_ns, ahead_ns


def arrival_ns(control: Sequence[tuple[int, int, bytes]], now_ns: int, clocks_ns: int) -> int:
    """When data came by the kernel's `control` messages with it, or now, by `read_clocks`."""
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
        """What is ready besides streams; nothing at the end of one, which its owner waits for."""
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
    """As `asyncio.run`, in such a loop."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main)
