"""HTTP/1.1: one request; its answer, a stream of server-sent events, is read after its end."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from builder.diagnostics import Diagnostic
from builder.errors import NotReady

from ...answers import MAX_VALUES, read_json
from ..request import Failure, FailureKind, RequestRecord
from .connection import PREPARE_TIMEOUT_S, Connector, Exchange, Malformed
from .transcript import Transcript

OK = 200
BUSY = (429, 503)
GATEWAY = (502, 504)
MAX_HEAD_BYTES = 1 << 20
HEAD_END = b"\r\n\r\n"
LAST_CHUNK = b"\r\n0\r\n\r\n"  # with the end of the chunk before it
FIELD = b"data: "
MOST_DIGITS = 18  # of the length of a body
CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,16})[ \t]*(?:;|$)")
MOST_CHUNKS = 1_000_000  # a token has one, of which an answer may have a quarter of it
LONG_EVENT_BYTES = 1 << 16  # whose values are counted before they are read
SLICE = 128  # events that are read between two looks at what arrives
EVENT = re.compile(rb"^data: ?([^\r\n]*)\r?\n", re.MULTILINE)
_read_json = json.JSONDecoder().raw_decode


class HttpExchange(Exchange):
    """Reading its answer after the end may raise `Malformed`."""

    def __init__(self, request: bytes) -> None:
        super().__init__(request)
        self.head: Head | None = None
        self.is_whole = False  # as soon as it was read to its end
        self._is_chunked = False

    def look(self, data: bytes) -> None:
        if self._is_chunked:
            if data.endswith(LAST_CHUNK) or len(data) < len(LAST_CHUNK):
                self._look_for_last_chunk()
        else:
            self._look_for_head()

    def _look_for_head(self) -> None:
        if self.head is None:
            try:
                self.head = head(b"".join(self.parts))
            except Malformed:
                self.end(self.arrivals[-1])
                return
            if self.head is None:
                if self.nbytes > MAX_HEAD_BYTES:
                    self.end(self.arrivals[-1])
                return
            self._is_chunked = self.head.is_chunked
        if self._is_chunked:
            self._look_for_last_chunk()
        elif self.head.length is not None and self.nbytes >= self.head.end + self.head.length:
            self.end(self.arrivals[-1])

    def _look_for_last_chunk(self) -> None:
        if b"".join(self.parts[-len(LAST_CHUNK) :]).endswith(LAST_CHUNK):
            self.end(self.arrivals[-1])

    def body(self) -> bytes:
        return b"".join(piece for piece, _ in self._pieces())

    def events(self) -> Iterator[tuple[int, bytes]]:
        """The arrival of every event's last byte, and its data; an incomplete event is left out."""
        parts, arrivals = self.parts, self.arrivals
        part, end = 0, len(parts[0]) if parts else 0
        begun = bytearray()  # of a line that is not whole yet
        for piece, raw_end in self._pieces():
            if not begun and piece.startswith(FIELD) and piece.find(b"\n") == len(piece) - 2:
                # One whole event, as most pieces are.
                while end < raw_end:
                    part += 1
                    end += len(parts[part])
                yield arrivals[part], piece[len(FIELD) : -2]
                continue
            begun += piece
            if not (size := begun.rfind(b"\n", -len(piece)) + 1 if piece else 0):
                continue
            raw_start = raw_end - len(begun)
            lines = bytes(begun[:size])
            del begun[:size]
            for event in EVENT.finditer(lines):
                while end < raw_start + event.end():
                    part += 1
                    end += len(parts[part])
                yield arrivals[part], event[1]

    def _pieces(self) -> Iterator[tuple[bytes, int]]:
        """The body as it was sent, each piece with the offset of its end. What was cut of a chunk
        is left out."""
        raw = b"".join(self.parts)
        if (found := head(raw)) is None:
            return
        if found.is_chunked:
            yield from self._chunks(raw, found.end)
            return
        end = len(raw) if found.length is None else found.end + found.length
        self.is_whole = self.lost if found.length is None else len(raw) >= end
        yield raw[found.end : end], min(end, len(raw))

    def _chunks(self, raw: bytes, at: int) -> Iterator[tuple[bytes, int]]:
        for number in itertools.count(1):
            if (line_end := raw.find(b"\r\n", at)) < 0:
                return
            if not (line := CHUNK_SIZE.match(raw, at, line_end)):
                raise Malformed(f"a chunk begins with {raw[at : at + 40]!r}")
            if number > MOST_CHUNKS:
                raise Malformed(f"it came in more than {MOST_CHUNKS:,} chunks")
            if not (size := int(line[1], 16)):
                self.is_whole = True
                return
            at = line_end + 2 + size
            if at > len(raw):
                return
            yield raw[line_end + 2 : at], at
            at += 2

    def failure(self) -> Failure | None:
        if self.head is not None and self.head.status != OK:
            status = self.head.status
            kind: FailureKind = "unavailable" if status in BUSY else "http"
            said = self.body().decode("utf-8", errors="replace")[:200].strip()
            return Failure(kind, f"{status}: {said}", status in (*BUSY, *GATEWAY))
        if not self.is_whole:
            why = self.fault or "the connection ended"
            return Failure("cut", f"{why} after {len(self.parts)} parts", retryable=True)
        return None


def request_bytes(
    url: str, method: str, path: str, headers: Mapping[str, str], body: bytes
) -> bytes:
    parts = urlsplit(url)
    lines = {
        "Host": parts.netloc,
        "Connection": "close",
        **({"Content-Type": "application/json"} if body else {}),
        "Content-Length": str(len(body)),
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {parts.path}{path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


async def document(server: Connector, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """A JSON object with facts about the server. Raises `NotReady`."""
    exchange = HttpExchange(request_bytes(server.url, "GET", path, headers, b""))
    what = "no JSON object"
    async with server.exchange(exchange, PREPARE_TIMEOUT_S) as failure:
        try:
            found = read_json(exchange.body())
            failure = failure or exchange.failure()
            if failure is None and isinstance(found, dict):
                return found
        except ValueError:
            what = "no JSON"
    raise NotReady(Diagnostic(f"{server.url}{path}", failure.message if failure else what))


@dataclass(frozen=True, slots=True)
class Head:
    """`end` is where the body begins, and `length` that of a body whose end is not marked."""

    status: int
    end: int
    is_chunked: bool
    length: int | None


def head(raw: bytes) -> Head | None:
    """`None` while it is not all there. Raises `Malformed`."""
    end = raw.find(HEAD_END)
    if end < 0:
        if not b"HTTP/1.".startswith(raw[:7]):
            raise Malformed(f"the answer begins with {raw[:40]!r}")
        return None
    first, *lines = raw[:end].decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
        raise Malformed(f"the answer begins with {first[:40]!r}")
    fields = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
    return Head(int(rest[:3]), end + len(HEAD_END), is_chunked, _length(headers))


def _length(headers: Mapping[str, str]) -> int | None:
    text = headers.get("content-length")
    if text is not None and not (text.isdecimal() and len(text) <= MOST_DIGITS):
        raise Malformed(f"content-length is {text[:40]!r}")
    return None if text is None else int(text)


class EventPattern:
    """An event without its text: an event that differs only in its text needs no JSON parser, which
    is most of what reading a token costs."""

    def __init__(self) -> None:
        self._before = self._behind = b""

    def learn(self, data: bytes, text: str) -> None:
        """Remembers the parts before and after `text`, if its position is certain."""
        before, found, behind = data.partition(f'"{text}"'.encode())
        if found and found not in behind and b"\\" not in data:
            self._before, self._behind = before + b'"', b'"' + behind

    def text(self, data: bytes) -> str | None:
        """The text of an event of this pattern, `None` for any other."""
        before, behind = self._before, self._behind
        if not (before and data.startswith(before) and data.endswith(behind)):
            return None
        text = data[len(before) : -len(behind)]
        if b'"' in text or b"\\" in text or len(data) < len(before) + len(behind):
            return None
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError:
            return None


async def send(
    server: Connector,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    transcript: Transcript,
) -> RequestRecord:
    request = transcript.request
    all_headers = {**headers, **request.headers}
    exchange = HttpExchange(request_bytes(server.url, "POST", path, all_headers, body))
    async with server.exchange(exchange, request.timeout_s) as failure:
        status, events = None, 0
        try:
            if exchange.head is not None:
                status = exchange.head.status
            if status in (None, OK):
                events = await _read(exchange, transcript)
            failure = failure or exchange.failure()
            if failure is None and not events:
                transcript.take(exchange.ended_ns, exchange.body())
        except Malformed as error:
            transcript.fail("malformed", str(error))
        transcript.end()
        transcript.failure = transcript.failure or failure
        return transcript.record(exchange.sent_ns, exchange.ended_ns, status)


async def _read(exchange: HttpExchange, transcript: Transcript) -> int:
    events = 0
    for arrived_ns, data in exchange.events():
        transcript.take(arrived_ns, data)
        events += 1
        if not events % SLICE:
            await asyncio.sleep(0)
    return events


def event_object(data: bytes, transcript: Transcript) -> dict[str, Any] | None:
    """The JSON object of an event. Anything else, and an error, fails the transcript."""
    if len(data) > LONG_EVENT_BYTES and sum(map(data.count, b"[{,:")) > MAX_VALUES:
        transcript.fail("malformed", f"an event of more than {MAX_VALUES:,} values")
        return None
    try:
        found = _read_json(data.decode("utf-8"))[0]
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        transcript.fail("malformed", f"no JSON object: {data[:80]!r}")
        return None
    if "error" in found or found.get("object") == "error":
        error = found.get("error") or found
        details: Mapping[str, Any] = error if isinstance(error, dict) else {"message": error}
        transcript.fail(
            "in_stream", str(details.get("message", details)), details.get("code") in BUSY
        )
        return None
    return found
