"""What no hostile input may bring about: a traceback, a hang, hunger, or forged lines."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tests import prefork

# Guards against hangs and hunger; a sound run takes a third of either. For one that takes longer,
# the speed of the machine at that moment counts.
MOST_CPU_S = 5.0
USUAL_S, COUNTED = 0.03, 1_000_000
MOST_PEAK_MB = 500.0
# What can move a cursor, colour a line, turn the direction of writing or stand there unseen.
CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0001-\U000e007f]"
)
REFUSED = (2, 3, 4)
# The beginning of every line that a refusal prints.
LINE = re.compile(r"(error|warning|note): ")


def listen(path: Path) -> None:
    """Makes a socket in the place of a file."""
    short = Path(f"/tmp/{os.getpid()}.socket")  # the name of a socket has at most 107 letters
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(short))
    server.close()
    shutil.move(short, path)


def slowness() -> float:
    """How many times slower this machine counts now than the one of the bounds; at least 1."""
    begun = time.process_time()
    for _ in range(COUNTED):
        pass
    return max(1.0, (time.process_time() - begun) / USUAL_S)


def survive(*arguments: str | Path, cwd: Path, **expected: Any) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE ARGUMENTS`, which ends as `measured` says."""
    return measured(*arguments, cwd=cwd, **expected).done


def measured(
    *arguments: str | Path,
    cwd: Path,
    codes: Collection[int] = REFUSED,
    lines: bool = True,
    most_s: float = MOST_CPU_S,
    most_mb: float = MOST_PEAK_MB,
    module: str = "builder",
) -> prefork.Measured:
    """`python -m MODULE ARGUMENTS`, which ends with one of these codes and says why.

    `lines`: each line of what it says begins as one of its own does.
    """
    ran = prefork.shared().run(list(map(str, arguments)), cwd, module)
    done, said = ran.done, ran.done.stdout + ran.done.stderr
    assert "a bug in this toolkit" not in said and "Traceback" not in said, said[:2000]
    assert done.returncode in codes, (done.returncode, said[:2000])
    assert not CONTROL.search(said), f"raw control characters: {said[:2000]!r}"
    assert ran.seconds < most_s or ran.seconds < most_s * slowness(), f"{ran.seconds:.1f} s"
    assert ran.peak_mb < most_mb, f"{ran.peak_mb:.0f} MB"
    if done.returncode in REFUSED and lines:
        rows = done.stderr.splitlines()
        assert rows and all(map(LINE.match, rows)), done.stderr[:2000]
    return ran
