"""Progress of a benchmark: a line that changes on a terminal, JSON lines elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from ..run import now
from .request import RequestRecord

# A terminal is written anew so often, and other readers get a line.
TERMINAL_S = 0.2
LINE_S = 5.0
WIDTH = 79


class Progress:
    """Says how far a point is. Every point has a first and a last line for readers of a log.

    Without `lines` nothing is said where there is no terminal.
    """

    def __init__(self, stream: TextIO = sys.stderr, lines: bool = True) -> None:
        self._stream, self._lines = stream, lines
        self._live = stream.isatty()
        self._label = ""
        self._total: int | None = None
        self._done = self._failed = self._tokens = 0
        self._start_s = self._said_s = 0.0

    def begin(self, label: str, total: int | None) -> None:
        """A point of so many requests, if their number is known."""
        self._label, self._total = label, total
        self._done = self._failed = self._tokens = 0
        self._start_s = self._said_s = time.monotonic()
        self._say("begins")

    def on_request(self, one: RequestRecord) -> None:
        self._done += 1
        self._failed += not one.ok
        self._tokens += one.output_tokens or 0
        if time.monotonic() - self._said_s >= (TERMINAL_S if self._live else LINE_S):
            self._say("runs")

    def end(self, point: Mapping[str, Any] | None) -> None:
        """The point's own measures take the place of what was said on the way."""
        self._say("ended", point)
        self.close()

    def close(self) -> None:
        """Leave the line on a terminal, if there is one."""
        if self._live and self._label:
            self._stream.write("\n")
            self._stream.flush()
        self._label = ""

    def _say(self, state: str, point: Mapping[str, Any] | None = None) -> None:
        self._said_s = time.monotonic()
        elapsed_s = self._said_s - self._start_s
        per_s = self._tokens / elapsed_s if elapsed_s > 0 else 0.0
        if point and point.get("output_tokens_per_s") is not None:
            per_s = point["output_tokens_per_s"]
        if self._live:
            self._stream.write(self._live_line(elapsed_s, per_s))
        elif self._lines:
            self._stream.write(self._row(state, elapsed_s, per_s))
        self._stream.flush()

    def _live_line(self, elapsed_s: float, per_s: float) -> str:
        of = f"/{self._total}" if self._total else ""
        failed = f", {self._failed} failed" if self._failed else ""
        text = f"{self._label}: {self._done}{of} requests{failed}, {per_s:,.1f} tokens/s"
        return f"\r{text}, {elapsed_s:.0f} s"[:WIDTH].ljust(WIDTH)

    def _row(self, state: str, elapsed_s: float, per_s: float) -> str:
        row = {
            "time": now(),
            "point": self._label,
            "state": state,
            "done": self._done,
            "requests": self._total,
            "failed": self._failed,
            "elapsed_s": round(elapsed_s, 1),
            "output_tokens_per_s": round(per_s, 1),
        }
        return json.dumps(row) + "\n"
