"""Lines of logs: what programs and carriers write before a message, and logs of any size."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.diagnosis import log, watch
from builder.diagnosis.log import of_text
from tests.conftest import ROOT

MESSAGE = "Executor worker returned error"


@pytest.mark.parametrize(
    ("raw", "level", "rank"),
    [
        (f"[09/14/2026-12:10:42] [TRT-LLM] [RANK 1] [E] {MESSAGE}", "error", "1"),
        (f"[09/14/2026-12:10:42] [TRT-LLM] [E] [_torch][RANK 4] {MESSAGE}", "error", "4"),
        (f"[09/14/2026-12:10:42] [TRT-LLM] [I] {MESSAGE}", "information", ""),
        (f"[TensorRT-LLM][WARNING] {MESSAGE}", "warning", ""),
        (
            f"(EngineCore pid=7) ERROR 09-14 12:49:41 [core.py:1100] {MESSAGE}",
            "error",
            "EngineCore",
        ),
        (f"INFO 09-14 12:49:41 [core.py:69] {MESSAGE}", "information", ""),
        (f'E0914 10:25:16.134080 2494 pb_stub.cc:736] "{MESSAGE}', "error", ""),
        (f"2026-09-14T12:10:42.123456789Z [TensorRT-LLM][ERROR] {MESSAGE}", "error", ""),
        (f"[pod/llm-0/main] [TensorRT-LLM][ERROR] {MESSAGE}", "error", ""),
        (f"2026-09-14T12:10:42.1Z ERROR dynamo_runtime: {MESSAGE}", "error", ""),
        (f"Sep 14 12:10:42 n1 llm[8]: [TensorRT-LLM][ERROR] {MESSAGE}", "error", ""),
        (
            f"(EngineCore pid=7) (Ray pid=9, ip=10.0.0.1) ERROR 09-14 12:49:41 [a.py:1] {MESSAGE}",
            "error",
            "Ray",
        ),
        (f"[rank3]:[E914 12:49:41.12 ProcessGroupNCCL.cpp:690] {MESSAGE}", "error", "3"),
        (f"llm-1  | [TensorRT-LLM][ERROR] {MESSAGE}", "error", ""),
        (f"3: [TensorRT-LLM][ERROR] {MESSAGE}", "error", ""),
        (f"\x1b[31m[TensorRT-LLM][ERROR]\x1b[0m {MESSAGE}", "error", ""),
        (f"Loading:  1%|#\rLoading: 2%|##\r[TensorRT-LLM][ERROR] {MESSAGE}", "error", ""),
    ],
)
def test_a_line_is_read_without_what_is_before_its_message(raw: str, level: str, rank: str) -> None:
    line = of_text("server.log", 3, raw.encode())
    assert (line.message.removeprefix("dynamo_runtime: "), line.level, line.rank) == (
        MESSAGE,
        level,
        rank,
    )


def test_a_line_without_a_time_has_that_of_the_line_before_it() -> None:
    text = b"[09/14/2026-12:10:42] [TRT-LLM] [I] a\n\nerror: b c\n"
    [found] = [
        line
        for line, count in log.Reader(lambda kind: b"error" in kind).read(io.BytesIO(text), "x")
        if count
    ]
    assert found.number == 3
    assert found.moment_s == of_text("x", 1, b"[09/14/2026-12:10:42] [TRT-LLM] [I] a").moment_s


class Endless(io.RawIOBase):
    """A log of many kinds of lines, made while it is read."""

    def __init__(self, size: int) -> None:
        self._lines = self._make(size)

    def _make(self, size: int) -> Iterator[bytes]:
        for index in range(size // 80):
            kind = bytes(97 + (index * 7 + place) % 26 for place in range(index % 40))
            yield b"[09/14/2026-12:10:42] [TRT-LLM] [I] %s iter = %d\n" % (kind, index)
        yield b"error: the end of it\n"

    def read(self, size: int = -1) -> bytes:
        block = bytearray()
        for line in self._lines:
            block += line
            if len(block) >= size:
                break
        return bytes(block)


def test_every_line_counts_and_the_last_error_is_found() -> None:
    seen = watch.watch(Endless(4_000_000), "big.log")  # type: ignore[arg-type]
    assert seen.lines == 50_001
    assert [line.number for line in seen.errors] == [50_001]


ANNOUNCED = """[09/14/2026-12:10:42] [TRT-LLM] [E] Error in a hook
Traceback (most recent call last):
  File "a.py", line 1
lib.errors.Refused: not permitted
"""


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        (ANNOUNCED, [4]),
        (ANNOUNCED.replace("in a hook", "in a hook: not permitted"), [1, 4]),
        ("  Warning  FailedScheduling  2m  default-scheduler  0/1 nodes are available\n", [1]),
        ('{"level":"ERROR","message":"lost"}\n{"level":"INFO","message":"an error: x"}\n', [1]),
        ("n1:7:7 [0] init.cc:1 NCCL WARN Duplicate GPU detected\n", [1]),
        ("x" * 9_000_000 + "\n\nerror: at last\n", [3]),
        ("ready\nenroot-x: failed to set capabilities: Operation not permitted\n", [2]),
        ("INFO:     a.py: No such file or directory\na.py: no such file or directory yet\n", []),
    ],
)
def test_first_errors_have_their_numbers(text: str, errors: list[int]) -> None:
    seen = watch.watch(io.BytesIO(text.encode()), "server.log")
    assert [line.number for line in seen.errors] == errors


def test_a_line_without_an_end_does_not_grow_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "one.log"
    with path.open("wb") as file:
        for _ in range(200):
            file.write(b"x" * 1_000_000)
    code = f"""from pathlib import Path
from builder.diagnosis import watch
watch.watch(open({str(path)!r}, "rb"), "one")
print(Path("/proc/self/status").read_text())"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    [peak_kb] = re.findall(r"VmHWM:\s+(\d+) kB", done.stdout)
    assert int(peak_kb) < 120_000
