"""Progress of a benchmark: a line that changes on a terminal, lines of text or JSON elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal, TextIO

from ..run import now
from .request import RequestRecord

# Seconds between updates of a terminal, and between lines elsewhere.
TERMINAL_S = 0.2
LINE_S = 5.0
WIDTH = 79
LINE_WIDTH = 100  # elsewhere

Form = Literal["text", "json", "none"]
# Longer times left are shown in minutes.
SECONDS_SHOWN = 120


class Progress:
    """Shows how far a point is; in a log every point has a first and a last line.

    In the form `json` a terminal gets lines too; in the form `none`, only a terminal gets anything.
    """

    def __init__(self, stream: TextIO = sys.stderr, form: Form = "text") -> None:
        self._stream, self._form = stream, form
        self._live = stream.isatty() and form != "json"
        self._label = self._of = ""
        self._total: int | None = None
        self._duration_s: float | None = None
        self._done = self._failed = self._tokens = 0
        self._start_s = self._said_s = 0.0

    def begin(
        self, label: str, total: int | None, duration_s: float | None = None, of: str = ""
    ) -> None:
        """Begin a point of `total` requests or of `duration_s`; `of` is like "2 of 7"."""
        self._label, self._of = label, of
        self._total, self._duration_s = total, duration_s
        self._done = self._failed = self._tokens = 0
        self._start_s = self._said_s = time.monotonic()
        self._say("begins")

    def on_request(self, one: RequestRecord) -> None:
        self._done += 1
        self._failed += not one.ok
        self._tokens += one.output_tokens or 0

    def on_look(self) -> None:
        """Called several times a second, so that times advance while no request ends."""
        if time.monotonic() - self._said_s >= (TERMINAL_S if self._live else LINE_S):
            self._say("runs")

    def end(self, point: Mapping[str, Any] | None) -> None:
        """Show the measures of the point instead of the running estimate."""
        self._say("ended", point)
        self.close()

    def close(self) -> None:
        """End the line on a terminal."""
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
        left_s = None if state == "ended" else self._left_s(elapsed_s)
        if self._form == "json":
            row = {
                "time": now(),
                "point": self._label,
                "state": state,
                "done": self._done,
                "requests": self._total,
                "failed": self._failed,
                "elapsed_s": round(elapsed_s, 1),
                "left_s": None if left_s is None else round(left_s, 1),
                "output_tokens_per_s": round(per_s, 1),
            }
            self._stream.write(json.dumps(row) + "\n")
        elif self._live:
            text = self._text("runs", elapsed_s, left_s, per_s)
            self._stream.write(f"\r{text[:WIDTH].ljust(WIDTH)}")
        elif self._form == "text":
            self._stream.write(f"{self._text(state, elapsed_s, left_s, per_s)[:LINE_WIDTH]}\n")
        self._stream.flush()

    def _left_s(self, elapsed_s: float) -> float | None:
        if self._duration_s is not None:
            return max(0.0, self._duration_s - elapsed_s)
        if not self._total or not self._done:
            return None
        return elapsed_s * (self._total - self._done) / self._done

    def _text(self, state: str, elapsed_s: float, left_s: float | None, per_s: float) -> str:
        """The least important parts come last, where a line may be cut."""
        total = f"/{self._total}" if self._total else ""
        text = f"{self._label}: " + ("" if state == "runs" else f"{state}, ")
        text += f"{self._done}{total} requests"
        text += f", {self._failed} failed" if self._failed else ""
        text += f", {elapsed_s:.0f} s"
        if left_s is not None:
            minutes = left_s >= SECONDS_SHOWN
            text += f", about {left_s / 60:.0f} min left" if minutes else f", {left_s:.0f} s left"
        text += f", {per_s:,.1f} tokens/s"
        text += f", point {self._of}" if self._of else ""
        return text
