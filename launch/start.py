"""Follows a server's start in its log: the phase, how long each took, and what failed."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.diagnosis import in_force, judgement
from builder.diagnosis.in_force import InForce
from builder.diagnosis.judgement import Diagnosis
from builder.diagnosis.state import STALL_S
from builder.diagnosis.watch import Watcher
from builder.documents import load_yaml_mapping
from builder.files import parse_json

from .run import SUMMARY, Run

BLOCK_BYTES = 1 << 24  # of a log that are read at once
# In a run's summary: seconds by phase, the expected ones, and the size of the checkpoint.
PHASES, EXPECTED, CHECKPOINT_BYTES = "phases", "phases_expected", "checkpoint_bytes"
_SHARE = re.compile(r"(\d{1,3})(?:\.\d+)?%")
_NO_STEPS = ("serving", "shutdown", "cluster", "disagg")


class Start:
    """One start: what its log told so far, with the seconds that its phases should take.

    `planned` are values of the plan by path, `checkpoint_bytes` is the size of what is loaded.
    """

    def __init__(
        self,
        log: Path,
        expected: Mapping[str, float] | None = None,
        planned: Mapping[str, Any] | None = None,
        checkpoint_bytes: int = 0,
    ) -> None:
        self._log = log
        self._offset = 0
        self._watcher = Watcher(log.name)
        self._began: dict[str, float] = {}  # each phase in its order, by the clock of this process
        self._expected = expected or {}
        self._planned = planned or {}
        self._bytes = checkpoint_bytes
        self._moved_s = time.monotonic()

    @classmethod
    def of_run(cls, run: Run, planned: Mapping[str, Any]) -> Start:
        return cls(run.log, expected(run), planned, run.facts.get(CHECKPOINT_BYTES, 0))

    def advance(self) -> None:
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
        """The phase with its share, rate and time, for a line of progress; empty if unknown."""
        if not self._began:
            return ""
        phase, began_s = list(self._began.items())[-1]
        took_s = time.monotonic() - began_s
        parts = [phase]
        wanted_s = self._expected.get(phase)
        if phase == "load" and (share := self._share()):
            parts[0] += f" {share} %"
            wanted_s = wanted_s or took_s * 100 / share
            if self._bytes and took_s >= 1:
                parts.append(f"{self._bytes * share / 100 / took_s / 1e9:.1f} GB/s")
        parts.append(f"{took_s:.0f} s" + (f" of about {wanted_s:.0f} s" if wanted_s else ""))
        return ", ".join([*parts, *self._silence()])

    @property
    def summary(self) -> str:
        """The phase and the time that it should take: what changes a few times in a start."""
        phase = list(self._began)[-1] if self._began else "no phase yet"
        wanted = f" (about {self._expected[phase]:.0f} s)" if phase in self._expected else ""
        return ", ".join([f"{phase}{wanted}", *self._silence()])

    def _silence(self) -> Iterator[str]:
        minutes = (time.monotonic() - self._moved_s) // 60
        if minutes * 60 >= STALL_S:
            yield f"no new line for {minutes:.0f} min"

    def _share(self) -> int:
        """The percentage on the last line, 0 without one."""
        last = self._watcher.seen.last
        return int([0, *_SHARE.findall(last.text if last else "")][-1])

    def facts(self) -> dict[str, dict[str, float]]:
        """For a run's summary: how long each phase of the start took; the last one ends now."""
        self.advance()
        rows = [(name, s) for name, s in self._began.items() if name not in _NO_STEPS]
        ends = [*(began_s for _, began_s in rows[1:]), time.monotonic()]
        pairs = zip(rows, ends, strict=False)
        took = {name: round(end_s - began_s, 1) for (name, began_s), end_s in pairs}
        return {PHASES: took, EXPECTED: dict(self._expected)}

    def in_force(self) -> list[InForce]:
        """What the engine logged of its options and memory, with the planned values."""
        self.advance()
        return list(in_force.held_against([self._watcher.seen], self._planned))

    def measured(self, bundle: Path) -> dict[str, Any]:
        """The memory that the engine logged, as the plan of a bundle takes it with `--facts`.

        Empty where the KV cache is not in the log, or the plan is not of this machine's memory.
        """
        logged = {row.name: row for row in self.in_force()}
        if "kv_cache_gib" not in logged:
            return {}
        request = load_yaml_mapping(bundle / "deployment.yaml")
        paths = (path for path in self._planned if not path.startswith(("budget.", "environment.")))
        sizes = {
            name: float(row.in_force.replace(",", ""))
            for name, row in logged.items()
            if name in ("kv_cache_gib", "weights_gib", "kv_cache_fraction")
        }
        return {
            "source": f"{self._log.resolve()}:{logged['kv_cache_gib'].line.number}",
            "checkpoint": request["checkpoint"],
            **request["hardware"],
            "engine": request["engine"]["name"],
            "release": request["engine"]["release"],
            **sizes,
            "options": {path: self._planned[path] for path in paths},
        }

    def diagnosis(self, state: Mapping[str, str]) -> Diagnosis:
        """Why it failed, from its whole log."""
        self.advance()
        return judgement.judge([self._watcher.seen], state, self._planned)


def expected(run: Run) -> dict[str, float]:
    """The seconds that phases should take, from runs next to this one that became ready.

    Those of the newest one of the same bundle, target and engine; without one, the load alone, at
    the rate of the newest one of the same target and engine.
    """
    same, other = ("", dict[str, float]()), ("", 0.0)
    size = run.facts.get(CHECKPOINT_BYTES) or 0
    (name, server) = _kind(run.facts)
    for path in run.folder.parent.glob(f"*/{SUMMARY}"):
        try:
            facts = parse_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if not isinstance(facts, dict) or not facts.get("ready") or _kind(facts)[1] != server:
            continue
        ready, phases = str(facts["ready"]), dict(facts.get(PHASES) or {})
        if _kind(facts)[0] == name:
            same = max(same, (ready, phases), key=lambda row: row[0])
        elif (its_size := facts.get(CHECKPOINT_BYTES)) and "load" in phases:
            other = max(other, (ready, phases["load"] * size / its_size))
    if same[0]:
        return same[1]
    return {"load": round(other[1], 1)} if other[1] else {}


def _kind(facts: Mapping[str, Any]) -> tuple[Any, Any]:
    """What makes starts alike: the bundle's name, and target with engine."""
    bundle = facts.get("bundle")
    name = bundle.get("name") if isinstance(bundle, Mapping) else None
    return name, (facts.get("target"), facts.get("engine"))
