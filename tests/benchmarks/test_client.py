"""The client's times are right, and it notices every token that is not as it was emitted."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from benchmarks import stamps
from benchmarks.client import StreamLoad, token_times
from tests.conftest import ROOT

TOKENS = 6
EMITTED_US = 10**12
LOAD = StreamLoad("sse", "127.0.0.1:0", cumulative=False, streams=1, tokens=TOKENS, step_ms=1)

Texts = list[str]


def texts(count: int = TOKENS) -> Texts:
    return [stamps.write(index, (EMITTED_US + index) * 1000) for index in range(count)]


def received(parts: Sequence[str], after_us: int = 50) -> list[tuple[int, str]]:
    return [((EMITTED_US + after_us) * 1000, part) for part in parts]


def cumulated(parts: Sequence[str]) -> Texts:
    return ["".join(parts[: count + 1]) for count in range(len(parts))]


def test_latency_is_the_time_from_emission_to_receipt() -> None:
    times = list(token_times(received(texts()), LOAD))
    assert [latency_us for _, latency_us in times] == [50, 49, 48, 47, 46, 45]
    assert [emitted_us - EMITTED_US for emitted_us, _ in times] == [0, 1, 2, 3, 4, 5]


def test_tokens_may_share_a_message_and_be_cut_by_one() -> None:
    whole = "".join(texts())
    assert len(list(token_times(received([whole[:25], "", whole[25:]]), LOAD))) == TOKENS


def test_cumulative_messages_count_every_token_once() -> None:
    load = dataclasses.replace(LOAD, cumulative=True)
    assert len(list(token_times(received(cumulated(texts())), load))) == TOKENS


def lost(parts: Texts) -> Texts:
    return [*parts[:3], *parts[4:]]


def repeated(parts: Texts) -> Texts:
    return [*parts[:3], *parts[2:-1]]


def cut(parts: Texts) -> Texts:
    return parts[:-1]


def added(parts: Texts) -> Texts:
    return [*parts, texts(TOKENS + 1)[-1]]


def swapped(parts: Texts) -> Texts:
    return [parts[1], parts[0], *parts[2:]]


def late(parts: Texts) -> Texts:
    return [*parts[:-1], stamps.write(TOKENS - 1, (EMITTED_US + 10**6) * 1000)]


FAULTS = (lost, repeated, cut, added, swapped, late)


@pytest.mark.parametrize("cumulative", [False, True], ids=["deltas", "cumulative"])
@pytest.mark.parametrize("violation", FAULTS)
def test_wrong_text_is_noticed(violation: Callable[[Texts], Texts], cumulative: bool) -> None:
    parts = violation(texts())
    messages = received(cumulated(parts) if cumulative else parts)
    with pytest.raises(stamps.WrongText):
        list(token_times(messages, dataclasses.replace(LOAD, cumulative=cumulative)))


def test_a_cumulative_message_that_takes_text_back_is_noticed() -> None:
    messages = cumulated(texts())
    messages.insert(3, messages[1])
    with pytest.raises(stamps.WrongText):
        list(token_times(received(messages), dataclasses.replace(LOAD, cumulative=True)))


@contextmanager
def sse_server(events: Sequence[str]) -> Iterator[str]:
    """The address of a server that answers every request with these texts."""
    loop = asyncio.new_event_loop()
    body = "".join(f"data: {json.dumps({'text_output': text})}\n\n" for text in events)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(f"HTTP/1.1 200 OK\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(server.wait_closed())
        loop.close()


def measure(address: str) -> subprocess.CompletedProcess[str]:
    load = json.dumps(dataclasses.asdict(dataclasses.replace(LOAD, address=address)))
    command = [sys.executable, "-m", "benchmarks.client", load]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_measurement_of_a_server_that_loses_a_token_fails() -> None:
    now = [stamps.write(index, time.monotonic_ns()) for index in range(TOKENS)]
    with sse_server(now) as address:
        whole = measure(address)
    with sse_server(lost(now)) as address:
        broken = measure(address)
    assert (whole.returncode, json.loads(whole.stdout)["messages_per_token"]) == (0, 1)
    assert broken.returncode == 1
    assert broken.stderr.startswith("WrongText: token 3 reads '004")
