"""Follows a server's start in its log: the phase, how long each took, and what failed."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Mapping
from typing import Any

from builder.diagnosis import judgement
from builder.diagnosis.judgement import Diagnosis
from builder.diagnosis.state import STALL_S
from builder.diagnosis.watch import Watcher
from builder.files import parse_json

from .run import SUMMARY, Run

BLOCK_BYTES = 1 << 24  # of a log that are read at once
PHASES = "phases"  # in a run's summary: seconds by phase
_SHARE = re.compile(r"(\d{1,3})(?:\.\d+)?%")
_NO_STEPS = ("serving", "shutdown", "cluster", "disagg")


class Start:
    """One start: what its log told so far, beside the seconds that an earlier one took."""

    def __init__(self, run: Run) -> None:
        self._log = run.log
        self._offset = 0
        self._watcher = Watcher(run.log.name)
        self._began: dict[str, float] = {}  # each phase in its order, by the clock of this process
        self._earlier = earlier(run)
        self._moved_s = time.monotonic()

    def advance(self) -> None:
        """Reads the whole lines that are new."""
        with self._log.open("rb") as log:
            log.seek(self._offset)
            while block := log.read(BLOCK_BYTES):
                whole, newline, _ = block.rpartition(b"\n")
                if not newline:
                    break
                self._offset += len(whole) + 1
                log.seek(self._offset)
                self._watcher.read(io.BytesIO(whole + newline))
                self._moved_s = time.monotonic()
        for mark in self._watcher.seen.marks:
            self._began.setdefault(mark.step.phase, self._moved_s)

    @property
    def words(self) -> str:
        """The phase with its share and time, for a line of progress; empty if none is known."""
        if not self._began:
            return ""
        phase, began_s = list(self._began.items())[-1]
        last = self._watcher.seen.last
        share = _SHARE.findall(last.text) if last and phase == "load" else []
        took = f"{time.monotonic() - began_s:.0f} s"
        if phase in self._earlier:
            took += f" of about {self._earlier[phase]:.0f} s"
        words = " ".join([phase, *(f"{each} %," for each in share[-1:]), took])
        silent_s = time.monotonic() - self._moved_s
        return f"{words}, no new line for {silent_s / 60:.0f} min" if silent_s > STALL_S else words

    def facts(self) -> dict[str, dict[str, float]]:
        """For a run's summary: how long each phase of the start took; the last one ends now."""
        self.advance()
        rows = [(name, s) for name, s in self._began.items() if name not in _NO_STEPS]
        ends = [*(began_s for _, began_s in rows[1:]), time.monotonic()]
        pairs = zip(rows, ends, strict=False)
        return {PHASES: {name: round(end_s - began_s, 1) for (name, began_s), end_s in pairs}}

    def diagnosis(self, state: Mapping[str, str]) -> Diagnosis:
        """Why it failed, as far as its whole log tells."""
        self.advance()
        return judgement.judge([self._watcher.seen], state)


def earlier(run: Run) -> dict[str, float]:
    """The seconds by phase of the newest run beside this one that became ready in the same way."""
    wanted = _kind(run.facts)
    found: list[tuple[str, dict[str, float]]] = []
    for path in run.folder.parent.glob(f"*/{SUMMARY}"):
        try:
            facts = parse_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(facts, dict) and facts.get("ready") and _kind(facts) == wanted:
            found.append((str(facts["ready"]), dict(facts.get(PHASES) or {})))
    return max(found, key=lambda row: row[0], default=("", {}))[1]


def _kind(facts: Mapping[str, Any]) -> str:
    """What makes starts alike: bundle, target and engine."""
    bundle = facts.get("bundle")
    name = bundle.get("name") if isinstance(bundle, Mapping) else None
    return json.dumps([name, facts.get("target"), facts.get("engine")], sort_keys=True)
