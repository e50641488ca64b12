"""How the server of a run started: its phases, options in force, and causes of a failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..diagnosis_text import edit_lines
from ..start import EXPECTED, PHASES
from . import results
from .results import JsonObject


@dataclass(frozen=True, slots=True)
class OptionInForce:
    """A quantity of the plan and what the engine logged of it."""

    name: str
    planned: str
    in_force: str
    difference: str
    unit: str
    differs: bool


@dataclass(frozen=True, slots=True)
class ShownCause:
    """The cause of a failure; `evidence` are places and lines of logs."""

    cause: str
    fix: str
    edit: str
    confidence: str
    source: str
    evidence: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StartEvidence:
    """What `run.json` keeps of a start; `failed` says what was wrong, empty if nothing was."""

    ready_after_s: float | None
    phases: Mapping[str, float | None]
    expected: Mapping[str, float | None]
    options: tuple[OptionInForce, ...]
    failed: str
    causes: tuple[ShownCause, ...]
    first_error: tuple[tuple[str, str], ...]


def read(path: Path) -> StartEvidence:
    """The start in a `run.json`. Raises `BadInput` for values of a wrong type."""
    run = JsonObject(results.read_json(path), str(path))
    diagnosis = run.child("diagnosis")
    verdict, phase = diagnosis.text("verdict") or "", diagnosis.text("phase")
    found = StartEvidence(
        run.number("ready_after_s"),
        _seconds(run.child(PHASES)),
        _seconds(run.child(EXPECTED)),
        tuple(row.read(OptionInForce) for row in run.children("options")),
        "" if verdict == "healthy" else f"{verdict} in phase {phase}" if phase else verdict,
        tuple(map(_cause, diagnosis.children("causes"))),
        (_line(diagnosis.child("first_error")),) if "first_error" in diagnosis else (),
    )
    run.check()
    return found


def _seconds(phases: JsonObject) -> dict[str, float | None]:
    return {name: phases.number(name) for name in phases.values}


def _cause(row: JsonObject) -> ShownCause:
    row.require("cause")
    edit: Any = row.child("edit").values
    lines = tuple(map(_line, row.children("evidence")))
    return row.read(ShownCause, edit="\n".join(edit_lines(edit)), evidence=lines)


def _line(row: JsonObject) -> tuple[str, str]:
    return f"{row.text('file')}:{row.count('line')}", row.text("text") or ""
