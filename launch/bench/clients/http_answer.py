"""An HTTP answer that came in pieces, taken apart after its end: the arrival of every event."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

HEAD_END = b"\r\n\r\n"
LAST_CHUNK = b"\r\n0\r\n\r\n"  # with the end of the chunk before it
FIELD = b"data: "
EVENT = re.compile(rb"^data: ?([^\r\n]*)\r?\n", re.MULTILINE)


class Malformed(ValueError):
    """This is not HTTP/1.1."""


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
    if text is not None and not text.isdecimal():
        raise Malformed(f"content-length is {text[:40]!r}")
    return None if text is None else int(text)


class Answer:
    """`parts` are what arrived, each at its time of `arrivals`; `lost` says that the connection has
    ended. Raises `Malformed`, as reading it may."""

    def __init__(self, parts: Sequence[bytes], arrivals: Sequence[int], lost: bool) -> None:
        self._parts, self._arrivals, self._lost = parts, arrivals, lost
        self._raw = b"".join(parts)
        self.head = head(self._raw)
        self.is_whole = False  # as soon as it was read to its end

    def body(self) -> bytes:
        return b"".join(piece for piece, _ in self._pieces())

    def events(self) -> Iterator[tuple[int, bytes]]:
        """The arrival of every event's last byte, and its data. One that was cut is left out."""
        parts, arrivals = self._parts, self._arrivals
        part, end = 0, len(parts[0]) if parts else 0
        rest = b""
        for piece, raw_end in self._pieces():
            if not rest and piece.startswith(FIELD) and piece.find(b"\n") == len(piece) - 2:
                # One whole event, as most pieces are.
                while end < raw_end:
                    part += 1
                    end += len(parts[part])
                yield arrivals[part], piece[len(FIELD) : -2]
                continue
            data, used = rest + piece, 0
            for event in EVENT.finditer(data):
                used = event.end()
                while end < raw_end - len(data) + used:
                    part += 1
                    end += len(parts[part])
                yield arrivals[part], event[1]
            rest = data[used:].lstrip(b"\r\n")

    def _pieces(self) -> Iterator[tuple[bytes, int]]:
        """The body as it was sent, each piece with the offset of its end. What was cut of a chunk
        is left out."""
        raw, found = self._raw, self.head
        if found is None:
            return
        if found.is_chunked:
            yield from self._chunks(found.end)
            return
        end = len(raw) if found.length is None else found.end + found.length
        self.is_whole = self._lost if found.length is None else len(raw) >= end
        yield raw[found.end : end], min(end, len(raw))

    def _chunks(self, at: int) -> Iterator[tuple[bytes, int]]:
        raw = self._raw
        while (line_end := raw.find(b"\r\n", at)) >= 0:
            try:
                size = int(raw[at:line_end].partition(b";")[0], 16)
            except ValueError:
                raise Malformed(f"a chunk begins with {raw[at : at + 40]!r}") from None
            if not size:
                self.is_whole = True
                return
            at = line_end + 2 + size
            if at > len(raw):
                return
            yield raw[line_end + 2 : at], at
            at += 2
