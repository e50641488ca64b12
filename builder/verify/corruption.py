"""What is wrong with a file of a bundle, and the first byte where."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ..diagnostics import Diagnostic

REMEDY = "render again, or restore the file"

# Where only a digest tells what a file held, a changed byte is found by trying: all values in a
# file of the first size, one changed bit in one of the second. Both take seconds at most.
TRIED_BYTES, TRIED_BITS_BYTES = 4096, 32_768


@dataclass(frozen=True, slots=True)
class Place:
    """The first byte that is wrong, counted from 0; `line` and `column` are counted from 1.

    `found` or `expected` is `None` past the end of what is there or of what should be.
    """

    offset: int
    line: int
    column: int
    found: int | None
    expected: int | None

    @classmethod
    def between(cls, found: bytes, expected: bytes | None) -> Place | None:
        """Where two contents begin to differ."""
        if expected is None or found == expected:
            return None
        pairs = enumerate(zip(found, expected, strict=False))
        offset = next((at for at, (a, b) in pairs if a != b), min(len(found), len(expected)))
        before = expected[:offset]
        line = before.rpartition(b"\n")[2].decode(errors="replace")
        values = (data[offset] if offset < len(data) else None for data in (found, expected))
        return cls(offset, before.count(b"\n") + 1, len(line) + 1, *values)

    def __str__(self) -> str:
        found, expected = _shown(self.found), _shown(self.expected)
        return (
            f"first at byte {self.offset}, line {self.line} column {self.column}: "
            f"{found}, expected {expected}"
        )


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with a file, and where in it if that can be known."""

    file: str
    message: str
    fix: str = REMEDY
    place: Place | None = None

    @property
    def problem(self) -> Diagnostic:
        where = f"; {self.place}" if self.place else ""
        return Diagnostic(self.file, f"{self.message}{where}", self.fix)


def _shown(value: int | None) -> str:
    if value is None:
        return "the end"
    return f'"{chr(value)}"' if 0x20 < value < 0x7F else f"byte 0x{value:02x}"


def mended(data: bytes, digest: str) -> bytes | None:
    """The content that has the digest and differs in one byte, found by trying; else `None`."""
    if len(data) > TRIED_BITS_BYTES:
        return None
    changes = range(1, 256) if len(data) <= TRIED_BYTES else [1 << bit for bit in range(8)]
    before = hashlib.sha256()
    for offset, value in enumerate(data):
        rest = data[offset + 1 :]
        for change in changes:
            tried = before.copy()
            tried.update(bytes((value ^ change,)) + rest)
            if tried.hexdigest() == digest:
                return data[:offset] + bytes((value ^ change,)) + rest
        before.update(data[offset : offset + 1])
    return None
