"""The files of a checkpoint folder: sizes, digests that others computed, and safetensors headers.

Weights are never read for this. Their digests come from a `SHA256SUMS` in the folder, else from the
metadata that the Hugging Face client keeps next to its downloads. Format of safetensors: eight
bytes of little-endian header length, a JSON header, then the tensor data
(https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ..bundle import SUMS, read_sums
from ..diagnostics import Diagnostic
from ..documents import scan_yaml
from ..errors import BadFacts
from ..files import NotRegularFile, parse_json, reason, regular_file

# What is smaller is hashed: configuration, tokenizer, code and index, but no weights of a model
# that anyone would serve.
HASHED_BYTES = 32 << 20

# huggingface_hub 2.4.0, _local_folder.py: three lines for each file of a folder that it filled: the
# commit, the file's ETag, which is its SHA-256 where it is stored as a large file, and the time.
# `read_download_metadata` there allows the same second.
CARD = "README.md"
METADATA = ".cache/huggingface/download"
MTIME_SLACK_S = 1.0

# The command that makes the digests which are not known.
COMMAND = f"sha256sum -- *.safetensors > {SUMS}"

_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file; `digest_source` says who made the digest. Both are `None` if it is unknown."""

    name: str
    nbytes: int
    sha256: str | None
    digest_source: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a checkpoint and, where known, their commit on the hub and the license in the
    model card."""

    files: tuple[CheckpointFile, ...] = ()
    revision: str | None = None
    license: str | None = None

    @property
    def unknown(self) -> tuple[CheckpointFile, ...]:
        """Files whose digest is not known."""
        return tuple(file for file in self.files if file.sha256 is None)


NO_FILES = Listing()


def read(folder: Path) -> Listing:
    """The files of a folder. Raises `BadFacts` where one is not what the folder's list says."""
    try:
        return _read(folder)
    except OSError as error:
        what = f"cannot be read: {reason(error)}"
        diagnostic = Diagnostic(str(error.filename or folder), what, "check its owner and mode")
        raise BadFacts(diagnostic) from None


def _read(folder: Path) -> Listing:
    sums = folder / SUMS
    summed = read_sums(sums.read_bytes()) if sums.is_file() else {}
    files, commits, diagnostics = [], set(), []
    for name, path in _paths(folder):
        commit, downloaded = _downloaded(folder, name, path)
        commits.add(commit)
        found = _file(name, path, summed.get(name), downloaded)
        files.append(found)
        if (wanted := summed.get(name)) and found.sha256 != wanted:
            what = f"has the digest {found.sha256}, {SUMS} says {wanted}"
            diagnostics.append(Diagnostic(str(path), what, "copy it again, or make the list again"))
    if diagnostics:
        raise BadFacts(diagnostics)
    commit = commits.pop() if len(commits) == 1 else None
    return Listing(tuple(files), commit, _license(folder / CARD))


def _paths(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file by its name in the folder, without hidden ones and the list itself."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if (
            path.is_file()
            and name.as_posix() != SUMS
            and not any(part.startswith(".") for part in name.parts)
        ):
            yield name.as_posix(), path


def _file(name: str, path: Path, summed: str | None, downloaded: str | None) -> CheckpointFile:
    nbytes = path.stat().st_size
    if nbytes <= HASHED_BYTES:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return CheckpointFile(name, nbytes, digest, "its content")
    if summed:
        return CheckpointFile(name, nbytes, summed, SUMS)
    if downloaded:
        return CheckpointFile(name, nbytes, downloaded, "Hugging Face download")
    return CheckpointFile(name, nbytes, None, None)


def _downloaded(folder: Path, name: str, path: Path) -> tuple[str | None, str | None]:
    """The commit and the digest that the hub's client recorded, if the file has not changed since.

    In the client's cache, the file is a link to `blobs/DIGEST` from `snapshots/COMMIT`.
    """
    target = path.resolve()
    if target.parent.name == "blobs" and folder.resolve().parent.name == "snapshots":
        return _only(_COMMIT, folder.resolve().name), _only(_SHA256, target.name)
    note = folder / METADATA / f"{name}.metadata"
    try:
        commit, etag, time = note.read_text(encoding="utf-8").split()
        unchanged = path.stat().st_mtime - MTIME_SLACK_S <= float(time)
    except (OSError, ValueError):  # no note, or none of this client
        return None, None
    return (_only(_COMMIT, commit), _only(_SHA256, etag)) if unchanged else (None, None)


def _license(card: Path) -> str | None:
    """The license in the head of a model card: `license_name` if `license` says `other`."""
    if not card.is_file() or card.stat().st_size > HASHED_BYTES:
        return None
    front = re.match(r"---\r?\n(.*?)\n---", card.read_text(errors="replace"), re.DOTALL)
    documents = scan_yaml(front[1]) if front else []
    fields = documents[0].data if documents else None
    if not isinstance(fields, dict):
        return None
    found = fields.get("license_name") or fields.get("license")
    return found if isinstance(found, str) else None


def _only(pattern: re.Pattern[str], text: str) -> str | None:
    return text if pattern.fullmatch(text) else None


DTYPE_BYTES = {
    "F32": 4,
    "BF16": 2,
    "F16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U8": 1,
    "I8": 1,
    "I16": 2,
    "I32": 4,
    "I64": 8,
    "BOOL": 1,
}
# The format allows 100 MB. Of published checkpoints, none has a header of a tenth of this: the
# largest keep a thousand tensors in each file.
MAX_HEADER_BYTES = 32_000_000
MAX_DIMENSIONS = 8


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
        with regular_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8) or b"", "little")
            if size < 8 or not 2 <= length <= MAX_HEADER_BYTES:
                raise bad(f"not a safetensors file (header length {length}, file of {size} bytes)")
            if 8 + length > size:
                end = 8 + length
                raise bad(f"truncated: the header ends at byte {end}, the file at byte {size}")
            raw = file.read(length)
    except NotRegularFile as error:
        raise bad(str(error)) from None
    except OSError as error:
        raise bad(f"cannot be read: {reason(error)}") from None
    try:
        header = parse_json(raw)
        tensors, end = [], 0
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            tensor = Stored(name, entry["dtype"], _shape(entry["shape"]))
            first, last = _shape(entry["data_offsets"])
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
        raise bad(f"unreadable header ({str(error)[:200]})") from error
    if 8 + length + end != size:
        raise bad(
            f"truncated: its tensors end at byte {8 + length + end}, the file at byte {size}"
            if 8 + length + end > size
            else f"{size - 8 - length - end} bytes follow the last tensor"
        )
    return tensors


def _shape(numbers: Any) -> tuple[int, ...]:
    """A few whole numbers. Raises `ValueError` for anything else."""
    if not isinstance(numbers, list) or len(numbers) > MAX_DIMENSIONS:
        raise ValueError("a shape or offsets that no tensor has")
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
        raise ValueError(f"{numbers} are not sizes")
    return tuple(numbers)


def write_safetensors(path: Path, tensors: Iterable[tuple[Stored, bytes]]) -> None:
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
