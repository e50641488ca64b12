"""A diagnosis as JSON and as text for a terminal."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from builder.diagnosis.in_force import InForce
from builder.diagnosis.judgement import Diagnosis, Evidence, FailureCause

WIDTH = 80
ERROR_WIDTH = 76  # below an error, whose lines are indented


def document(diagnosis: Diagnosis, in_force: Sequence[InForce]) -> dict[str, Any]:
    """A diagnosis as JSON, with the options and the memory that the engine logged."""
    first = diagnosis.first_error
    return {
        "verdict": diagnosis.verdict,
        "phase": diagnosis.phase,
        "causes": [_cause(cause) for cause in diagnosis.causes],
        "first_error": _evidence(first) if first else None,
        "seconds": dict(diagnosis.seconds),
        "options": options(in_force),
    }


def options(in_force: Sequence[InForce]) -> list[dict[str, Any]]:
    """Planned values and those in force as JSON."""
    return [
        {
            "name": row.name,
            "planned": row.planned,
            "in_force": row.in_force,
            "difference": row.difference,
            "unit": row.unit,
            "differs": row.differs,
        }
        for row in in_force
    ]


def _cause(cause: FailureCause) -> dict[str, Any]:
    row = cause.signature
    return {
        "id": row.id,
        "cause": cause.cause,
        "fix": cause.fix,
        "edit": dict(row.edit or {}),
        "evidence": [_evidence(line) for line in cause.evidence],
        "confidence": cause.confidence,
        "source": row.source,
    }


def _evidence(line: Evidence) -> dict[str, Any]:
    return {"file": line.file, "line": line.line, "text": line.text}


def text(diagnosis: Diagnosis, in_force: Sequence[InForce] = (), width: int = WIDTH) -> str:
    """A diagnosis for a terminal of `width` columns."""
    where = f" in phase {diagnosis.phase}" if diagnosis.phase else ""
    lines = [f"{diagnosis.verdict}{where}"]
    for cause in diagnosis.causes:
        lines += ["", *_of_cause(cause, width)]
    if not diagnosis.causes and diagnosis.verdict != "healthy":
        lines += _without_cause(diagnosis, width)
    if diagnosis.seconds:
        spent = ", ".join(f"{name} {took:.0f} s" for name, took in diagnosis.seconds.items())
        lines += ["", *_wrapped(spent, "phases: ", width)]
    if in_force:
        lines += ["", *_table(in_force)]
    return "\n".join(lines)


def below_error(diagnosis: Diagnosis) -> tuple[str, ...]:
    """The lines of a diagnosis below the error that it explains; none where nothing failed."""
    if diagnosis.verdict not in ("failed", "stalled"):
        return ()
    return tuple(filter(None, text(diagnosis, width=ERROR_WIDTH).splitlines()))


def _without_cause(diagnosis: Diagnosis, width: int) -> Iterator[str]:
    if diagnosis.silence_s:
        yield f"silent for {diagnosis.silence_s / 60:.0f} min while the process lives"
    first = diagnosis.first_error
    yield "first error: " + ("none" if first is None else "")
    yield from _lines([first] if first else [], width)
    yield from _wrapped(
        "The cause is unknown. Whoever looks into it needs the whole log, the deployment file "
        "and the versions of engine, driver and GPU.",
        "",
        width,
    )


def _table(in_force: Sequence[InForce]) -> Iterator[str]:
    yield f"{'OPTION':20} {'PLANNED':>13} {'IN FORCE':>13} {'DIFFERENCE':>13}"
    for row in in_force:
        mark = "  warning" if row.differs else ""
        yield (
            f"{row.name:20} {row.planned:>13} {row.in_force:>13} {row.difference:>13}"
            f" {row.unit:8}{mark}".rstrip()
        )


def _of_cause(cause: FailureCause, width: int) -> list[str]:
    row = cause.signature
    lines = _wrapped(cause.cause, "cause: ", width)
    lines += _lines(cause.evidence, width)
    lines += _wrapped(cause.fix, "fix: ", width)
    if row.edit:
        lines += [f"  {line}" for line in edit_lines(row.edit)]
    return [*lines, *_wrapped(f"{row.id}, {cause.confidence}; {row.source}", "source: ", width)]


def edit_lines(edit: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """An edit of an option file as YAML."""
    for key, value in edit.items():
        inner = isinstance(value, Mapping)
        shown = "" if inner else f" {json.dumps(value)}"
        yield f"{'  ' * depth}{key}:{shown}"
        if inner:
            yield from edit_lines(value, depth + 1)


def _lines(evidence: Iterable[Evidence], width: int) -> list[str]:
    rows = []
    for line in evidence:
        rows += _wrapped(line.text, f"  {line.file}:{line.line}: ", width, "    ")
    return rows


def _wrapped(text: str, start: str, width: int, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
    )
