"""HPACK (RFC 7541) as far as gRPC needs it: no table is kept between two blocks of fields.

Who sends `HEADER_TABLE_SIZE` 0 is never sent a reference to such a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

# Of the static table only the status is of interest here; any other name is its number.
STATIC = 61
STATUS = {8: "200", 9: "204", 10: "206", 11: "304", 12: "400", 13: "404", 14: "500"}
# The printable characters of appendix B by the length of their codes, which are canonical.
LENGTHS = {
    5: "012aceiost",
    6: " %-./3456789=A_bdfghlmnpru",
    7: ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: "&*,;XZ",
    10: '!"()?',
    11: "'+|",
    12: "#>",
    13: "\0$@[]~",
    14: "^}",
    15: "<`{",
}
INDEXED, INCREMENTAL, RESIZE, HUFFMAN = 0x80, 0x40, 0x20, 0x80


def encode(fields: Iterable[tuple[str, str]]) -> bytes:
    """Every field by its name and value, in no table."""
    texts = (text.encode("latin-1") for field in fields for text in field)
    strings = (_number(len(text), 7) + text for text in texts)
    return b"".join(b"\0" + name + next(strings) for name in strings)


def decode(block: bytes) -> Iterator[tuple[str, str]]:
    """Raises `ValueError`."""
    at = 0
    while at < len(block):
        first = block[at]
        if first & INDEXED:
            index, at = _read_number(block, at, 7)
            yield _name(index), STATUS.get(index, "")
        elif not first & INCREMENTAL and first & RESIZE:
            _, at = _read_number(block, at, 5)
        else:
            index, at = _read_number(block, at, 6 if first & INCREMENTAL else 4)
            name = _name(index)
            if not index:
                name, at = _read_text(block, at)
            value, at = _read_text(block, at)
            yield name, value


def _name(index: int) -> str:
    if index > STATIC:
        raise ValueError(f"HPACK refers to the field {index} of a table that is not kept")
    return ":status" if index in STATUS else str(index)


def _number(value: int, bits: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes([value])
    value, octets = value - most, [most]
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*octets, value])


def _read_number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value, at, shift = block[at] & most, at + 1, 0
    if value < most:
        return value, at
    while True:
        if at >= len(block):
            raise ValueError("HPACK ends within a number")
        value, shift, at = value + ((block[at] & 0x7F) << shift), shift + 7, at + 1
        if not block[at - 1] & 0x80:
            return value, at


def _read_text(block: bytes, at: int) -> tuple[str, int]:
    if at >= len(block):
        raise ValueError("HPACK ends before a text")
    coded = block[at] & HUFFMAN
    length, at = _read_number(block, at, 7)
    raw, end = block[at : at + length], at + length
    if len(raw) < length:
        raise ValueError("HPACK ends within a text")
    return (_huffman(raw) if coded else raw.decode("latin-1")), end


def _huffman(raw: bytes) -> str:
    """What is left at the end is padding. Characters that no field needs are no text."""
    text, code, length = [], 0, 0
    for octet in raw:
        for bit in range(7, -1, -1):
            code, length = code << 1 | octet >> bit & 1, length + 1
            if (found := CODES.get((length, code))) is not None:
                text.append(found)
                code = length = 0
            elif length > max(LENGTHS):
                raise ValueError("HPACK holds a text that cannot be printed")
    return "".join(text)


def _codes() -> Iterator[tuple[tuple[int, int], str]]:
    code = before = 0
    for length, characters in LENGTHS.items():
        code, before = code << length - before, length
        for character in characters:
            yield (length, code), character
            code += 1


CODES = dict(_codes())
