"""Safetensors files without weights in memory: headers read, small files written.

Format: eight bytes of little-endian header length, a JSON header, then the tensor data
(https://github.com/huggingface/safetensors). Only the standard library is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ..diagnostics import Diagnostic
from ..errors import BadFacts

DTYPE_BYTES = {
    "F32": 4,
    "BF16": 2,
    "F16": 2,
    "F8_E4M3": 1,
    "U8": 1,
    "I8": 1,
    "I32": 4,
    "I64": 8,
    "BOOL": 1,
}
MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as it lies in a file; a scalar has the shape `()`."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


def read_header(path: Path) -> list[Stored]:
    """The tensors of a file, checked against the file's size.

    Raises `BadFacts` if the file is truncated, is not safetensors, or contradicts itself.
    """

    def bad(what: str) -> BadFacts:
        return BadFacts(Diagnostic(str(path), what, "copy or download this file again"))

    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= MAX_HEADER_BYTES:
                raise bad(f"not a safetensors file (header length {length}, file of {size} bytes)")
            if 8 + length > size:
                end = 8 + length
                raise bad(f"truncated: the header ends at byte {end}, the file at byte {size}")
            raw = file.read(length)
    except OSError as error:
        raise bad(f"cannot be read: {(error.strerror or str(error)).lower()}") from None
    try:
        header = json.loads(raw)
        tensors, end = [], 0
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            tensor = Stored(name, entry["dtype"], tuple(entry["shape"]))
            first, last = entry["data_offsets"]
            if tensor.dtype not in DTYPE_BYTES:
                raise bad(f"tensor {name} has the unknown dtype {tensor.dtype}")
            if last - first != tensor.nbytes:
                raise bad(
                    f"tensor {name} spans {last - first} bytes, "
                    f"its shape {list(tensor.shape)} needs {tensor.nbytes}"
                )
            end = max(end, last)
            tensors.append(tensor)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise bad(f"unreadable header ({error})") from error
    if 8 + length + end != size:
        raise bad(
            f"truncated: its tensors end at byte {8 + length + end}, the file at byte {size}"
            if 8 + length + end > size
            else f"{size - 8 - length - end} bytes follow the last tensor"
        )
    return tensors


def write(path: Path, tensors: Iterable[tuple[Stored, bytes]]) -> None:
    """Write tensors in the order given; the same input gives the same bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blobs, offset = [], 0
    for tensor, data in tensors:
        if len(data) != tensor.nbytes:
            raise ValueError(f"{tensor.name}: {len(data)} bytes given, {tensor.nbytes} needed")
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        blobs.append(data)
        offset += len(data)
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little"))
        file.write(raw)
        file.writelines(blobs)
