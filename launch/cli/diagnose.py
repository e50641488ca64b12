"""The verb `diagnose`: how it tells a diagnosis."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from builder.diagnosis.in_force import InForce
from builder.diagnosis.judgement import Diagnosis, Evidence, FailureCause
from builder.errors import BadFacts, NotReady

WIDTH = 80


def run(options: argparse.Namespace) -> None:
    from .. import diagnose

    found = diagnose.collect(options.paths)
    found.bundle = options.bundle or found.bundle
    diagnosis, told = diagnose.diagnose(found)
    if options.json:
        print(json.dumps(document(diagnosis, told), indent=2, ensure_ascii=False))
    else:
        print(text(diagnosis, told))
    if diagnosis.causes:
        raise NotReady(())
    if diagnosis.verdict != "healthy":
        raise BadFacts(())


def document(diagnosis: Diagnosis, told: Sequence[InForce]) -> dict[str, Any]:
    """A diagnosis as JSON, with the options and the memory that the engine tells."""
    first = diagnosis.first_error
    return {
        "verdict": diagnosis.verdict,
        "phase": diagnosis.phase,
        "causes": [_cause(cause) for cause in diagnosis.causes],
        "first_error": _evidence(first) if first else None,
        "seconds": dict(diagnosis.seconds),
        "options": [
            {
                "name": row.name,
                "planned": row.planned,
                "in_force": row.in_force,
                "unit": row.unit,
                "differs": row.differs,
            }
            for row in told
        ],
    }


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


def text(diagnosis: Diagnosis, told: Sequence[InForce]) -> str:
    """A diagnosis for a terminal of 80 columns."""
    where = f" in phase {diagnosis.phase}" if diagnosis.phase else ""
    lines = [f"{diagnosis.verdict}{where}"]
    for cause in diagnosis.causes:
        lines += ["", *_of_cause(cause)]
    first = diagnosis.first_error
    if not diagnosis.causes and diagnosis.verdict != "healthy":
        if diagnosis.silence_s:
            lines.append(f"silent for {diagnosis.silence_s / 60:.0f} min while the process lives")
        lines.append("first error: " + ("none" if first is None else ""))
        lines += _lines([first] if first else [])
        lines += _wrapped(
            "The cause is unknown. Whoever looks into it needs the whole log, the deployment file "
            "and the versions of engine, driver and GPU.",
            "",
        )
    if diagnosis.seconds:
        spent = ", ".join(f"{name} {took:.0f} s" for name, took in diagnosis.seconds.items())
        lines += ["", *_wrapped(spent, "phases: ")]
    if told:
        lines += ["", *_table(told)]
    return "\n".join(lines)


def _table(told: Sequence[InForce]) -> Iterator[str]:
    yield f"{'OPTION':22} {'PLANNED':>14} {'IN FORCE':>14}"
    for row in told:
        mark = "  differs" if row.differs else ""
        unit = f" {row.unit}" if row.unit else ""
        yield f"{row.name:22} {row.planned:>14} {row.in_force:>14}{unit}{mark}"


def _of_cause(cause: FailureCause) -> list[str]:
    row = cause.signature
    lines = _wrapped(cause.cause, "cause: ")
    lines += _lines(cause.evidence)
    lines += _wrapped(cause.fix, "fix: ")
    if row.edit:
        lines += [f"  {line}" for line in _edit(row.edit)]
    return [*lines, *_wrapped(f"{row.id}, {cause.confidence}; {row.source}", "source: ")]


def _edit(edit: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """An edit of an option file as YAML."""
    for key, value in edit.items():
        inner = isinstance(value, Mapping)
        shown = "" if inner else f" {json.dumps(value)}"
        yield f"{'  ' * depth}{key}:{shown}"
        if inner:
            yield from _edit(value, depth + 1)


def _lines(evidence: Iterable[Evidence]) -> list[str]:
    rows = []
    for line in evidence:
        rows += _wrapped(line.text, f"  {line.file}:{line.line}: ", "    ")
    return rows


def _wrapped(text: str, start: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
    )
