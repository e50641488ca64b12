"""Which part of a server its CPU time goes to, as `perf` samples it: the file whose code runs."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from builder.diagnostics import Diagnostic
from builder.errors import BadInput, ChecksFailed

PROGRAM = "perf"
SAMPLES_PER_S = 2000
START_POLL_S = 0.02
# The files of each part; the first that matches counts. The interpreter's is what runs the model,
# the engine, the event loop and Triton's own module.
PARTS: Mapping[str, re.Pattern[str]] = {
    "kernel: sleep, wake, network": re.compile(r"\[kernel"),
    "Python backend, shared memory": re.compile(r"libtriton_python\.so|python_backend_stub"),
    "Triton's core, gRPC": re.compile(r"tritonserver"),
    "Python": re.compile(r"python3|cpython|numpy"),
    "C library": re.compile(""),
}
ROW = re.compile(r"\s*([0-9.]+)%\s*;(.*)")


def is_installed() -> bool:
    return shutil.which(PROGRAM) is not None


def check_program() -> None:
    """Raises `BadInput` where there is none."""
    if not is_installed():
        fix = "install the distribution's package of it (linux-perf, linux-tools)"
        raise BadInput(Diagnostic("--profile", f"there is no {PROGRAM} here", fix))


@contextmanager
def sampled(pids: Iterable[int]) -> Iterator[dict[str, float]]:
    """The share of each part in the CPU time of these processes, filled at the end.

    It begins when `perf` has found them.
    """
    parts: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "perf.data"
        clock = ("-e", "cpu-clock", "-F", str(SAMPLES_PER_S))
        words = [*clock, "-o", str(file), "-p", ",".join(map(str, pids))]
        with subprocess.Popen(
            [PROGRAM, "record", "-q", *words], stderr=subprocess.PIPE, text=True
        ) as recorder:
            try:
                while not file.exists() and recorder.poll() is None:
                    time.sleep(START_POLL_S)
                yield parts
            finally:
                recorder.terminate()  # a shell may have SIGINT ignored in what it runs behind it
                _, said = recorder.communicate()
        if not file.exists():
            raise ChecksFailed(Diagnostic("--profile", f"{PROGRAM} has no samples: {said.strip()}"))
        parts.update(shares(_report(file)))


def shares(lines: Iterable[str]) -> dict[str, float]:
    """Of the parts, in the lines of a report by file."""
    found = dict.fromkeys(PARTS, 0.0)
    for line in lines:
        if row := ROW.fullmatch(line):
            part = next(part for part, files in PARTS.items() if files.search(row[2]))
            found[part] += float(row[1]) / 100
    return found


def text(rows: Mapping[tuple[str, int, str], Mapping[str, float]]) -> str:
    """CPU time in µs per token of each part, by case, number of streams and variant."""
    widths = [max(8, len(part)) for part in PARTS]
    head = [f"{part:>{width}}" for part, width in zip(PARTS, widths, strict=True)]
    lines = ["  ".join([f"{'CPU µs per token of':<29}", *head])]
    for (case, streams, variant), parts in rows.items():
        cells = [f"{parts[part]:>{width}.1f}" for part, width in zip(PARTS, widths, strict=True)]
        lines.append("  ".join([f"{case:<9}  {streams:<7}  {variant:<9}", *cells]))
    return "\n".join(lines)


def _report(file: Path) -> Sequence[str]:
    words = ["-i", str(file), "--stdio", "-q", "--no-children", "--sort", "dso", "-t", ";"]
    done = subprocess.run(
        [PROGRAM, "report", *words], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    return done.stdout.splitlines()
