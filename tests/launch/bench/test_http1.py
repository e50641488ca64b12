"""An HTTP answer is taken apart alike however it was cut on its way."""

from __future__ import annotations

import asyncio

import pytest

from launch.bench.clients.connection import Malformed
from launch.bench.clients.http1 import HttpExchange, event_object
from launch.bench.clients.transcript import Transcript
from launch.bench.request import LoadRequest

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = (
    b"data: one\n\n",
    b'data: {"a": "0"}\r\n\r\n',
    b": ping\n\n",
    b"data: two\ndata: three\n\n",
)
# The third event comes in two chunks.
CHUNKS = (EVENTS[0], EVENTS[1] + EVENTS[2], EVENTS[3][:5], EVENTS[3][5:])
BODY = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in CHUNKS)
RAW = HEAD + BODY + b"0\r\n\r\n"
DATA = [b"one", b'{"a": "0"}', b"two", b"three"]


def answer(raw: bytes, size: int, lost: bool = False) -> HttpExchange:
    """Cut into parts of a size, of which each arrives at the offset of its end."""

    async def received() -> HttpExchange:
        exchange = HttpExchange(b"")
        for at in range(0, len(raw), size):
            part = raw[at : at + size]
            exchange.received(at + len(part), part)
        if lost:
            exchange.received(len(raw), b"")
        return exchange

    return asyncio.run(received())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 50, len(RAW)])
def test_events_are_the_same_however_they_are_cut(size: int) -> None:
    found = answer(RAW, size)
    assert [data for _, data in found.events()] == DATA
    assert found.is_whole


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 16, 50, len(RAW)])
def test_the_end_is_seen_however_the_last_chunk_is_cut(size: int) -> None:
    found = answer(RAW, size)
    assert found.ended.done()
    assert found.ended_ns == len(RAW)
    assert not answer(RAW[:-1], size).ended.done()


@pytest.mark.parametrize("size", [1, 2, 7, 60])
def test_the_end_of_a_body_of_known_length_is_seen(size: int) -> None:
    raw = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ndata: {}\n"
    assert answer(raw, size).ended.done()
    assert not answer(raw[:-1], size).ended.done()


def test_an_event_arrives_with_its_last_byte() -> None:
    arrivals = [arrived for arrived, _ in answer(RAW, 1).events()]
    assert arrivals[0] == RAW.index(b"one\n\n") + len(b"one\n\n")
    assert arrivals[1] == RAW.index(b'"0"}\r\n') + len(b'"0"}\r\n')
    assert arrivals[2] == RAW.index(b"two\n") + len(b"two\n")


@pytest.mark.parametrize("left", [5, 6, 12])
def test_an_answer_without_its_last_chunk_is_cut(left: int) -> None:
    found = answer(RAW[:-left], 10, lost=True)
    assert len(list(found.events())) >= len(DATA) - 2
    assert not found.is_whole


def test_a_body_ends_where_its_length_says() -> None:
    head = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 3\r\n\r\n"
    whole, cut = answer(head + b"abc", 9), answer(head + b"ab", 9, lost=True)
    assert (whole.body(), whole.is_whole, whole.head and whole.head.status) == (b"abc", True, 429)
    assert (cut.body(), cut.is_whole) == (b"ab", False)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    raw = b"HTTP/1.0 200 OK\r\n\r\ndata: one\n\n"
    for lost in (True, False):
        found = answer(raw, 9, lost)
        assert [data for _, data in found.events()] == [b"one"]
        assert found.is_whole is lost


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-server\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        HEAD + b"zz\r\n",
    ],
)
def test_what_is_not_http_is_malformed(raw: bytes) -> None:
    with pytest.raises(Malformed):
        list(answer(raw, 100).events())


@pytest.mark.parametrize(
    "data",
    [b"[" * 200_000, b"{", b"[]", b"\xff"],
    ids=["deep", "cut", "a list", "no text"],
)
def test_an_event_that_is_no_object_fails_its_request_alone(data: bytes) -> None:
    transcript = Transcript(LoadRequest("Hi", 10))
    assert event_object(data, transcript) is None
    assert transcript.failure and transcript.failure.kind == "malformed"
