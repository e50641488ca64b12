"""Reads untrusted files within limits, and writes files atomically.

Only regular files of bounded size and JSON of bounded content are read.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from errno import EAGAIN, EISDIR, ENXIO
from pathlib import Path
from typing import Any, BinaryIO

from .diagnostics import Diagnostic
from .errors import BadFacts, BadInput, ToolkitError

MANIFEST = "manifest.json"  # the file that makes a folder a bundle
# What a person writes. The index of a checkpoint with hundreds of thousands of tensors is larger.
MAX_BYTES = 10_000_000
MAX_JSON_BYTES = 64_000_000
MAX_JSON_DIGITS = 1000  # of a whole number; Python refuses a few thousand, in words of its own
MAX_JSON_VALUES = 1_500_000  # each takes up to 80 bytes and more once it is read

_HERE = Path(__file__).parent


def resource_root(name: str) -> Path:
    """A folder that is next to `builder` in a checkout and inside it in a wheel."""
    inside = _HERE / name
    return inside if inside.is_dir() else _HERE.parent / name


def is_folder(path: Path) -> bool:
    """Whether it is a folder; false for impossible names."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def is_there(path: Path) -> bool:
    """Whether the path exists; false for impossible names."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def without_links(path: Path) -> Path:
    """The path with links resolved. A link to itself stays, and fails when opened."""
    return Path(os.path.realpath(path))  # `Path.resolve` raises `RuntimeError` for one


_DEVICES = Path("/dev")
READER_S = 3.0  # that whoever reads a pipe may take to open it


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A new file that replaces another: readers see the old one or the new one, never half.

    Nothing is replaced if the block raises. A device or pipe, such as `/dev/stdout`, is written to
    and never replaced. Raises `OSError`.
    """
    if not path.name:
        raise IsADirectoryError(EISDIR, "is a folder", str(path))
    if path.parent == _DEVICES or (is_there(path) and not path.is_file() and not path.is_dir()):
        with _reader(path):
            yield path
        return
    new = path.with_name(f".{path.name}.new")
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


@contextmanager
def _reader(path: Path) -> Iterator[None]:
    """Keeps a pipe open until its reader is there; opening it without one would block forever."""
    if not path.is_fifo():
        yield
        return
    end_s = time.monotonic() + READER_S
    while (writer := _writer(path)) is None:
        if time.monotonic() > end_s:
            raise OSError(ENXIO, "nobody reads this pipe", str(path))
        time.sleep(0.02)
    try:
        yield
    finally:
        os.close(writer)


def _writer(path: Path) -> int | None:
    """The writing end of a pipe, or `None` if it has no reader."""
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == ENXIO:
            return None
        raise


def write_text(path: Path, text: str) -> None:
    """Replaces a text file as a whole; letters that UTF-8 cannot hold become escapes."""
    with whole_file(path) as new:
        new.write_text(text, encoding="utf-8", errors="backslashreplace")


def reason(error: BaseException) -> str:
    """What the system says about a failure, as the end of a sentence."""
    return (getattr(error, "strerror", None) or str(error)).lower()


@contextmanager
def reported(
    where: object, what: str, fix: str = "", error: type[ToolkitError] = BadInput
) -> Iterator[None]:
    """Turns an `OSError` of the block into one diagnostic: `what` was impossible, and why."""
    try:
        yield
    except OSError as fault:
        raise error(Diagnostic(str(where), f"{what}: {reason(fault)}", fix)) from None


def save(path: Path, text: str, option: str) -> None:
    """Writes the text file that an option of the command line names, with its folder."""
    with reported(path, "cannot be written", f"choose another file with {option}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


class NotRegularFile(OSError):
    """Raised for a folder, pipe, socket or device."""


@contextmanager
def regular_file(path: Path) -> Iterator[BinaryIO]:
    """A file open for reading; never blocks on a pipe. Raises `OSError`."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device, pipe or socket"
        raise NotRegularFile(f"is {kind}")
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        yield file


def read_bytes(
    path: Path, error: type[ToolkitError] = BadInput, max_bytes: int = MAX_BYTES
) -> bytes:
    """The content of a file of at most `max_bytes`; each failure becomes one diagnostic."""
    try:
        with regular_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(max_bytes + 1)
            if data is None:  # the kernel's own logs, where nothing is in them
                raise BlockingIOError(EAGAIN, "nothing is there to read now")
    except NotRegularFile as failure:
        raise error(Diagnostic(str(path), str(failure), "give a file")) from None
    except (OSError, ValueError) as failure:  # ValueError: a name that no file can have
        what = f"cannot be read: {reason(failure)}"
        raise error(Diagnostic(str(path), what, "check the path")) from None
    if len(data) > max_bytes:
        limit = f"files of up to {max_bytes // 1_000_000} MB are read"
        raise error(Diagnostic(str(path), f"{max(size, len(data))} bytes is too large", limit))
    return data


def read_text(path: Path, error: type[ToolkitError] = BadInput, max_bytes: int = MAX_BYTES) -> str:
    """The text of a file of at most `max_bytes`; each failure becomes one diagnostic."""
    try:
        text = read_bytes(path, error, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise error(Diagnostic(str(path), "is not UTF-8 text", "give a text file")) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_json(
    text: str | bytes,
    unique_keys: bool = False,
    max_values: int = MAX_JSON_VALUES,
    constant: Callable[[str], Any] | None = None,
) -> Any:
    """The value of a JSON text; `constant` converts NaN and infinities.

    Raises `ValueError`, also for more values than should fit into memory.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    if sum(map(text.count, "[{,:")) > max_values:
        raise ValueError(f"it has more than {max_values} values")
    try:
        pairs = _unique if unique_keys else None
        return json.loads(text, object_pairs_hook=pairs, parse_int=_whole, parse_constant=constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _whole(digits: str) -> int:
    if len(digits) > MAX_JSON_DIGITS:
        raise ValueError(f"it has a number of {len(digits)} digits")
    return int(digits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)} is given twice")
    return found


def load_json_mapping(path: Path, error: type[ToolkitError] = BadFacts) -> Mapping[str, Any]:
    """A JSON object from a checkpoint or data file; each failure becomes one diagnostic."""
    text = read_text(path, error, MAX_JSON_BYTES)
    try:
        document = parse_json(text)
    except ValueError as fault:
        raise error(Diagnostic(str(path), f"is not JSON: {fault}", "copy it again")) from None
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise error(Diagnostic(str(path), f"holds a {kind}, not an object", "copy it again"))
    return document
