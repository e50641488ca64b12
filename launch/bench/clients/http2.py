"""The part of HTTP/2 (RFC 9113) that one request per connection needs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpack import Decoder, Encoder, HPACKError

from .connection import Exchange, Malformed

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM = ACK = 1
END_HEADERS, PADDED, PRIORITY = 4, 8, 32
HEAD_BYTES = 9
STREAM = 1  # the first of a client, and the only one
FRAME_BYTES = 16_384  # the most that any peer takes
FIRST_WINDOW = 65_535  # what may be sent before the peer allows more
MOST = 0x7FFF_FFFF
HEADER_TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW_SIZE = 1, 2, 4


class Frame(NamedTuple):
    """`end` is the offset of the byte after it."""

    kind: int
    flags: int
    stream: int
    payload: bytes
    end: int


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload


def frames(raw: bytes) -> Iterator[Frame]:
    """The complete frames."""
    at = 0
    while (start := at + HEAD_BYTES) <= len(raw):
        at = start + int.from_bytes(raw[start - 9 : start - 6], "big")
        if at > len(raw):
            return
        stream = int.from_bytes(raw[start - 4 : start], "big") & MOST
        yield Frame(raw[start - 6], raw[start - 5], stream, raw[start:at], at)


def content(one: Frame) -> bytes:
    """The payload of data or fields without padding and priority."""
    payload = one.payload
    if one.flags & PADDED and payload:
        payload = payload[1 : len(payload) - payload[0]]
    return payload[5:] if one.kind == HEADERS and one.flags & PRIORITY else payload


def encode_fields(fields: Sequence[tuple[str, str]]) -> bytes:
    """A block of fields as HPACK (RFC 7541), for a peer that keeps no table of them."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return bytes(encoder.encode(fields, huffman=False))


def decode_fields(block: bytes) -> list[tuple[str, str]]:
    """Headers of a peer that keeps no table, as `greeting` asks. Raises `Malformed`."""
    try:
        return [(str(name), str(value)) for name, value in Decoder().decode(block)]
    except HPACKError as error:
        raise Malformed(f"HPACK: {error}") from None


def greeting() -> bytes:
    """The first frames of either side: no header table, and the largest windows."""
    values = {HEADER_TABLE_SIZE: 0, ENABLE_PUSH: 0, INITIAL_WINDOW_SIZE: MOST}
    rows = (name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in values.items())
    more = (MOST - FIRST_WINDOW).to_bytes(4, "big")
    return frame(SETTINGS, 0, 0, b"".join(rows)) + frame(WINDOW, 0, 0, more)


def window(settings: bytes) -> int | None:
    """The initial window in a SETTINGS frame."""
    rows = (settings[at : at + 6] for at in range(0, len(settings), 6))
    found = {row[:2]: int.from_bytes(row[2:], "big") for row in rows}
    return found.get(INITIAL_WINDOW_SIZE.to_bytes(2, "big"))


class Http2Exchange(Exchange):
    """A POST. Data beyond the server's windows is sent as soon as they open.

    After its `data` was read, `fields` are the headers and trailers, and `reset` is the error code
    of a reset stream.
    """

    def __init__(self, fields: Sequence[tuple[str, str]], body: bytes) -> None:
        self._unsent, self.is_long = body, len(body) > FRAME_BYTES
        self._windows = [FIRST_WINDOW, FIRST_WINDOW]  # of the connection and of the stream
        self._first_window = FIRST_WINDOW
        self._unread = b""
        self.fields: dict[str, str] = {}
        self.reset: int | None = None
        self.is_whole = False
        head = frame(HEADERS, END_HEADERS, STREAM, encode_fields(fields))
        super().__init__(PREFACE + greeting() + head + self._allowed())

    def look(self, data: bytes) -> None:
        """Most of what arrives is one frame of data."""
        is_plain = not self._unread and data[3:5] == bytes((DATA, 0))
        if is_plain and len(data) == HEAD_BYTES + int.from_bytes(data[:3], "big"):
            return
        raw, end = self._unread + data, 0
        for one in frames(raw):
            end = one.end
            self._react(one)
        self._unread = raw[end:]
        if len(self._unread) > HEAD_BYTES + FRAME_BYTES:  # no peer was allowed more
            self._lose(OSError(f"a frame had more than {FRAME_BYTES} bytes"))

    def _react(self, one: Frame) -> None:
        if one.kind == RESET or (one.kind in (DATA, HEADERS) and one.flags & END_STREAM):
            self.end(self.arrivals[-1])
        elif one.kind == PING and not one.flags & ACK:
            self.say(frame(PING, ACK, 0, one.payload))
        elif one.kind == SETTINGS and not one.flags & ACK:
            self.say(frame(SETTINGS, ACK, 0))
            if (first := window(one.payload)) is not None:
                self._windows[STREAM] += first - self._first_window
                self._first_window = first
            self._say_allowed()
        elif one.kind == WINDOW and one.stream <= STREAM:
            self._windows[one.stream] += int.from_bytes(one.payload, "big") & MOST
            self._say_allowed()

    def _say_allowed(self) -> None:
        if self._unsent and (data := self._allowed()):
            self.say(data)

    def _allowed(self) -> bytes:
        """Frames with as much data as both windows allow; it then counts as sent."""
        size = max(0, min(*self._windows, len(self._unsent)))
        sent, self._unsent = self._unsent[:size], self._unsent[size:]
        self._windows = [left - size for left in self._windows]
        pieces = [sent[at : at + FRAME_BYTES] for at in range(0, size, FRAME_BYTES)]
        last = len(pieces) - 1
        return b"".join(
            frame(DATA, 0 if self._unsent or place < last else END_STREAM, STREAM, piece)
            for place, piece in enumerate(pieces)
        )

    def data(self) -> Iterator[tuple[int, bytes]]:
        """Each frame of data with the arrival of its last byte. Raises `Malformed`."""
        ends = itertools.accumulate(map(len, self.parts))
        arrivals = zip(self.arrivals, ends, strict=True)
        arrived_ns, part_end = 0, -1
        block = b""
        for one in frames(b"".join(self.parts)):
            while part_end < one.end:
                arrived_ns, part_end = next(arrivals)
            if one.kind == DATA:
                yield arrived_ns, content(one)
            elif one.kind in (HEADERS, CONTINUATION):
                block += content(one) if one.kind == HEADERS else one.payload
                if one.flags & END_HEADERS:
                    self.fields.update(decode_fields(block))
                    block = b""
            elif one.kind == RESET:
                self.reset = int.from_bytes(one.payload, "big")
            if one.kind in (DATA, HEADERS) and one.flags & END_STREAM:
                self.is_whole = True
