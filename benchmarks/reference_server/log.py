"""The log of the reference server: when it received and sent what, a line for each request."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

PATIENCE_S = 60.0
POLL_S = 0.01


@dataclass(slots=True)
class LogEntry:
    """Times are CLOCK_MONOTONIC in ns; what was not sent has none."""

    id: int
    trap: str
    tokens: int
    arrived_ns: int
    first_ns: int | None = None
    last_ns: int | None = None

    def write(self, file: IO[str]) -> None:
        file.write(json.dumps(asdict(self)) + "\n")
        file.flush()


def read(path: Path, count: int, after: int = 0) -> Mapping[int, LogEntry]:
    """The requests behind the first `after` lines, by their id. Waits for as many as `count`.

    Raises `TimeoutError`.
    """
    deadline = time.monotonic() + PATIENCE_S
    while len(lines := path.read_text().splitlines()[after:]) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the reference server logged {len(lines)} of {count} requests")
        time.sleep(POLL_S)
    entries = (LogEntry(**json.loads(line)) for line in lines)
    return {entry.id: entry for entry in entries}
