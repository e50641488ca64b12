"""An HTTP answer is taken apart alike however it was cut on its way."""

from __future__ import annotations

import asyncio
import time

import pytest

from launch.bench.clients import http1
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


@pytest.mark.parametrize(
    "size",
    [
        *(
            b"-6",
            b"-4",
            b"-1",
            b"+5",
            b"0x5",
            b"1_0",
            b" 5",
            b"",
            b"f" * 17,
            b"5 5",
            b"\xb2",
            b"5\x00",
        )
    ],
    ids=repr,
)
def test_the_size_of_a_chunk_is_a_number_of_hexadecimal_digits(size: bytes) -> None:
    raw = HEAD + b"5\r\ndata:\r\n" + size + b"\r\ndata: x\n\n\r\n0\r\n\r\n"
    with pytest.raises(Malformed, match="a chunk begins with"):
        list(answer(raw, len(raw)).events())


@pytest.mark.parametrize("size", [b"9;name=value", b"9 ", b"009", b"9\t; a"])
def test_a_chunk_may_have_extensions(size: bytes) -> None:
    raw = HEAD + size + b"\r\ndata: x\n\n\r\n0\r\n\r\n"
    assert [data for _, data in answer(raw, len(raw)).events()] == [b"x"]


@pytest.mark.parametrize("length", ["9" * 19, "9" * 5000, "-1", "\u0663", "1 2", ""])
def test_the_length_of_a_body_is_a_number(length: str) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode("latin-1", "replace")
    with pytest.raises(Malformed, match="content-length"):
        list(answer(head, len(head)).events())


def test_an_event_in_many_chunks_is_read_in_one_pass() -> None:
    """A million pieces of one line: what was read of it is not read again for each of them."""
    count = 200_000
    raw = HEAD + b"1\r\nx\r\n" * count + b"7\r\n\ndata:y\r\n1\r\n\n\r\n0\r\n\r\n"
    found = answer(raw, len(raw))
    begun_s = time.process_time()
    assert [data for _, data in found.events()] == [b"y"]
    assert time.process_time() - begun_s < 40 * per_chunk_s(count)


def per_chunk_s(count: int) -> float:
    """What so many small events take, each of which has a chunk."""
    raw = HEAD + b"9\r\ndata: x\n\n\r\n" * count + b"0\r\n\r\n"
    found = answer(raw, len(raw))
    begun_s = time.process_time()
    assert sum(1 for _ in found.events()) == count
    return time.process_time() - begun_s


def test_more_chunks_than_any_answer_has_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "MOST_CHUNKS", 10)
    raw = HEAD + b"1\r\nx\r\n" * 11
    with pytest.raises(Malformed, match="more than 10 chunks"):
        list(answer(raw, len(raw)).events())


@pytest.mark.parametrize("count", [1000, http1.LONG_EVENT_BYTES])
def test_an_event_of_too_many_values_is_not_read(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(http1, "MAX_VALUES", 2000)
    transcript = Transcript(LoadRequest("Hi"))
    found = http1.event_object(b'{"a": [' + b"1," * count + b"1]}", transcript)
    assert (found is None) is (count > 2000)
    assert (transcript.failure is not None) is (count > 2000)
