"""A whole `python -m builder` process, with its seconds and its peak memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# VmHWM counts from the start of this program; the peak that the process is charged with also holds
# that of the one which started it.
_PROGRAM = """\
import atexit, pathlib, re, runpy, sys
usage = pathlib.Path(sys.argv.pop(1))
def write():
    peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
    usage.write_text(peak)
atexit.register(write)
runpy.run_module("builder", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True, slots=True)
class Measured:
    done: subprocess.CompletedProcess[str]
    seconds: float
    peak_mb: float


def run(*arguments: str, cwd: Path) -> Measured:
    with tempfile.NamedTemporaryFile() as usage:
        command = [sys.executable, "-c", _PROGRAM, usage.name, *arguments]
        start = time.perf_counter()
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, check=False, timeout=60
        )
        seconds = time.perf_counter() - start
        return Measured(done, seconds, int(Path(usage.name).read_text()) / 1000)
