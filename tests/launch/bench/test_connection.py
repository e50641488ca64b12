"""The loop of a load reads streams past asyncio, and still does all else that asyncio does."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from launch.bench.clients import connection

MOST_LOOKS = 2_000  # of which a millisecond is between two; without an end it looks for ever
TIMER_S = 0.05


@pytest.mark.skipif(not connection.STAMPS, reason="only Linux has this selector")
def test_a_stream_with_data_always_there_keeps_no_timer_waiting() -> None:
    looks = list[float]()

    async def wait() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, connection.Loop)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)

        def more(_: int, data: bytes | OSError) -> bool:
            assert data and isinstance(data, bytes)
            looks.append(time.monotonic())
            assert len(looks) < MOST_LOOKS, "no timer came"
            theirs.send(data)
            return False

        theirs.send(b"x")
        watch(loop, ours, more)
        try:
            await asyncio.sleep(TIMER_S)
        finally:
            loop.receiver.unwatch(ours)
            ours.close()
            theirs.close()
        return time.monotonic()

    with asyncio.Runner(loop_factory=connection.Loop) as runner:
        ended_s = runner.run(wait())
    assert len(looks) > 3
    assert ended_s - looks[0] < MOST_LOOKS * connection.NAP_S


def watch(loop: connection.Loop, stream: socket.socket, sink: connection.Sink) -> None:
    """As for TCP, which alone knows of acknowledgements."""
    loop.receiver._streams[stream.fileno()] = (stream, sink)
    loop.receiver._epoll.register(stream, 1)
