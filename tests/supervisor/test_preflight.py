"""A checkpoint before the long job: whatever lies in its folder ends in a diagnostic, and soon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor import preflight
from tests.conftest import ROOT

INDEX, SHARD = "model.safetensors.index.json", "model.safetensors"
Put = Callable[[Path], Any]


def tensor_file(header: bytes, after: int = 0, length: int | None = None) -> bytes:
    stated = len(header) if length is None else length
    return stated.to_bytes(8, "little") + header + b"\0" * after


def shard(header: Any, after: int = 4) -> Put:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return lambda folder: (folder / SHARD).write_bytes(tensor_file(data, after))


def offsets(*values: Any) -> Put:
    return shard({"w": {"dtype": "U8", "shape": [4], "data_offsets": list(values)}})


def index(content: Any) -> Put:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return lambda folder: (folder / INDEX).write_bytes(data)


def config(data: bytes) -> Put:
    return lambda folder: (folder / "config.json").write_bytes(data)


def folder_named(name: str) -> Put:
    return lambda folder: (folder / name).mkdir()


def pipe_named(name: str) -> Put:
    return lambda folder: os.mkfifo(folder / name)


def link(name: str, target: str) -> Put:
    return lambda folder: (folder / name).symlink_to(target)


def sparse(folder: Path) -> None:
    """415 GB, whose header has 200."""
    with (folder / SHARD).open("wb") as file:
        file.write((200 << 30).to_bytes(8, "little"))
        file.truncate(415 << 30)


def many_names(folder: Path) -> None:
    names = {f"w{n}": f"{n}.safetensors" for n in range(100_000)}
    index({"weight_map": names})(folder)


HOSTILE: dict[str, tuple[Put, str]] = {
    "empty file": (lambda folder: (folder / SHARD).touch(), "has 0 bytes, not 8|no header"),
    "header of a list": (shard([]), "no header of a safetensors file"),
    "header of null": (shard(None), "no header of a safetensors file"),
    "header that is no JSON": (shard(b"{" * 9), "no header of a safetensors file"),
    "header not in UTF-8": (shard(b"\xff" * 64), "no header of a safetensors file"),
    "deep header": (shard(b'{"a":' * 90_000), "no header of a safetensors file"),
    "header of many lists": (shard(b'{"a":[' + b"[]," * 5_000_000 + b"0]}"), "no header"),
    "header of gigabytes": (sparse, "has a header of"),
    "tensor as a list": (shard({"w": []}), "no header of a safetensors file"),
    "tensor without offsets": (shard({"w": {}}), "no header of a safetensors file"),
    "one offset": (offsets(0), "no header of a safetensors file"),
    "offsets in words": (offsets("0", "4"), "no header of a safetensors file"),
    "offsets as null": (offsets(0, None), "no header of a safetensors file"),
    "offset below 0": (offsets(0, -4), "no header of a safetensors file"),
    "offset as a fraction": (offsets(0, 4.0), "no header of a safetensors file"),
    "offset as true": (offsets(0, True), "no header of a safetensors file"),
    "huge offset": (offsets(0, 10**30), "bytes, not 1000000"),
    "index of a list": (index([]), "has no weight_map"),
    "index that is no JSON": (index(b"{"), "has no weight_map"),
    "index of nothing": (index({"weight_map": {}}), "has no weight_map"),
    "index of text": (index({"weight_map": "all"}), "has no weight_map"),
    "index of lists": (index({"weight_map": {"w": ["a"]}}), "not the name of a file"),
    "index of numbers": (index({"weight_map": {"w": 7}}), "not the name of a file"),
    "index of other folders": (
        index({"weight_map": {"w": "../../etc/passwd"}}),
        "not the name of a file",
    ),
    "index of a whole path": (
        index({"weight_map": {"w": "/etc/passwd"}}),
        "not the name of a file",
    ),
    "index with an escape": (
        index({"weight_map": {"w": "\x1b[2J.safetensors"}}),
        "not the name of a file",
    ),
    "index with a null byte": (index({"weight_map": {"w": "a\0b"}}), "not the name of a file"),
    "index of many lists": (index(b'{"a":[' + b"[]," * 10_000_000 + b"0]}"), "has no weight_map"),
    "index as a pipe": (pipe_named(INDEX), "has no weight_map"),
    "index as a folder": (folder_named(INDEX), "has no weight_map"),
    "index that points to itself": (link(INDEX, INDEX), "Too many levels|no weight_map"),
    "index of many names": (many_names, "names 100000 files"),
    "weights as a pipe": (pipe_named(SHARD), "is missing"),
    "weights as a folder": (folder_named(SHARD), "is missing"),
    "weights as a device": (link(SHARD, "/dev/zero"), "is missing"),
    "weights that point nowhere": (link(SHARD, "nowhere"), "is missing"),
    "config as a list": (config(b"[]"), "is no JSON object"),
    "config that is no JSON": (config(b"\0" * 64), "is no JSON object"),
    "config of many lists": (config(b'{"a":[' + b"[]," * 1_000_000 + b"0]}"), "is no JSON object"),
}


@pytest.mark.parametrize(("put", "error"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_checkpoint_ends_in_a_diagnostic(tmp_path: Path, put: Put, error: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    put(tmp_path)
    began = time.process_time()
    found = preflight.checkpoint_errors(tmp_path)
    assert time.process_time() - began < 5
    assert found and any(part in found[0] for part in error.split("|")), found[:3]
    assert all(one.isprintable() for one in found)


MEASURED = """
import re, sys
from pathlib import Path
from supervisor import preflight
def peak_kib():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak_kib()
assert preflight.checkpoint_errors(Path(sys.argv[1]))
print((peak_kib() - before) // 1024)
"""


@pytest.mark.parametrize(
    "case", ["index of many lists", "header of many lists", "header of gigabytes"]
)
def test_a_hostile_checkpoint_takes_little_memory(tmp_path: Path, case: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    HOSTILE[case][0](tmp_path)
    command = [sys.executable, "-c", MEASURED, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert int(done.stdout) < 200


@pytest.mark.parametrize("size", [0, 1, 4, 5])
def test_the_bytes_of_a_file_are_counted_exactly(tmp_path: Path, size: int) -> None:
    """The length that its header needs; one byte more or less is another file."""
    shard({"w": {"data_offsets": [0, 2]}, "v": {"data_offsets": [2, 4]}}, size)(tmp_path)
    error = preflight.safetensors_error(tmp_path / SHARD)
    assert (error is None) == (size == 4), error


@pytest.mark.parametrize(("files", "is_too_many"), [(2, False), (3, True)])
def test_an_index_names_so_many_files_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, is_too_many: bool
) -> None:
    monkeypatch.setattr(preflight, "MOST_FILES", 2)
    (tmp_path / "config.json").write_text("{}")
    rows = {"weight_map": {str(one): f"{one}.safetensors" for one in range(files)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(rows))
    [first, *_] = preflight.checkpoint_errors(tmp_path)
    assert ("more than any model has" in first) is is_too_many


def test_a_service_that_cannot_be_read_is_an_error_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "service.json").write_text('{"format": 1}')
    command = [sys.executable, "-B", str(ROOT / "supervisor"), "preflight", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error: KeyError: 'name'" in done.stderr and "Traceback" not in done.stderr
