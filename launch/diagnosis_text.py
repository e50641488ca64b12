"""A diagnosis as JSON, and that JSON as text for a terminal."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from builder.diagnosis.in_force import InForce
from builder.diagnosis.judgement import Diagnosis, FailureCause

WIDTH = 80
ERROR_WIDTH = 76  # below an error, whose lines are indented

Json = Mapping[str, Any]


def document(diagnosis: Diagnosis, in_force: Sequence[InForce] = ()) -> dict[str, Any]:
    """A diagnosis as JSON, with the options and the memory that the engine logged."""
    first = diagnosis.first_error
    return {
        "verdict": diagnosis.verdict,
        "phase": diagnosis.phase,
        "causes": [_cause(cause) for cause in diagnosis.causes],
        "symptom": _cause(diagnosis.symptom) if diagnosis.symptom else None,
        "first_error": asdict(first) if first else None,
        "silent_s": round(diagnosis.silence_s),
        "seconds": dict(diagnosis.seconds),
        "options": options(in_force),
    }


def options(in_force: Sequence[InForce]) -> list[dict[str, Any]]:
    """Planned values and those in force as JSON."""
    return [{key: value for key, value in asdict(row).items() if key != "line"} for row in in_force]


def _cause(cause: FailureCause) -> dict[str, Any]:
    row = cause.signature
    return {
        "id": row.id,
        "cause": cause.cause,
        "fix": cause.fix,
        "edit": dict(cause.edit),
        "otherwise": [{"cause": other, "check": how} for other, how in cause.otherwise.items()],
        "evidence": [asdict(line) for line in cause.evidence],
        "confidence": cause.confidence,
        "source": row.source,
    }


def text(found: Json, width: int = WIDTH) -> str:
    """The document of a diagnosis for a terminal of `width` columns."""
    where = f" in phase {found['phase']}" if found["phase"] else ""
    lines = [f"{found['verdict']}{where}"]
    for cause in found["causes"]:
        lines += ["", *_cause_lines(cause, width)]
    if not found["causes"] and found["verdict"] != "healthy":
        lines += _without_cause(found, width)
    if found["seconds"]:
        spent = ", ".join(f"{name} {took:.0f} s" for name, took in found["seconds"].items())
        lines += ["", *_wrapped(spent, "phases: ", width)]
    if found["options"]:
        lines += ["", *_table(found["options"])]
    return "\n".join(lines)


def below_error(found: Json) -> tuple[str, ...]:
    """The lines below an error that a diagnosis explains; none where nothing is known to fail."""
    if found["verdict"] not in ("failed", "stalled"):
        return ()
    return tuple(filter(None, text(found, ERROR_WIDTH).splitlines()))


def _without_cause(found: Json, width: int) -> Iterator[str]:
    if found["silent_s"]:
        yield f"silent for {found['silent_s'] / 60:.0f} min while the process lives"
    first = found["first_error"]
    yield "first error: " + ("none" if first is None else "")
    yield from _lines([first] if first else [], width)
    if symptom := found.get("symptom"):
        yield "a known line that does not tell which cause it has:"
        yield from _cause_lines(symptom, width)
    yield from _wrapped(
        "The cause is unknown. Whoever looks into it needs the whole log, the deployment file "
        "and the versions of engine, driver and GPU.",
        "",
        width,
    )


def _table(rows: Iterable[Json]) -> Iterator[str]:
    yield f"{'OPTION':20} {'PLANNED':>13} {'IN FORCE':>13} {'DIFFERENCE':>13}"
    for row in rows:
        cells = f"{row['planned']:>13} {row['in_force']:>13} {row['difference']:>13}"
        mark = "  warning" if row["differs"] else ""
        yield f"{row['name']:20} {cells} {row['unit']:8}{mark}".rstrip()


def _cause_lines(cause: Json, width: int) -> list[str]:
    start = "one of several causes: " if cause["otherwise"] else "cause: "
    lines = _wrapped(cause["cause"], start, width)
    lines += _lines(cause["evidence"], width)
    lines += _wrapped(cause["fix"], "fix: " if cause["cause"] else "find out: ", width)
    lines += [f"  {line}" for line in edit_lines(cause["edit"])]
    for other in cause["otherwise"]:
        start = "or: " if cause["cause"] else "perhaps: "
        lines += _wrapped(f"{other['cause']}: {other['check']}", start, width)
    source = f"{cause['id']}, {cause['confidence']}; {cause['source']}"
    return [*lines, *_wrapped(source, "source: ", width)]


def edit_lines(edit: Json, depth: int = 0) -> Iterator[str]:
    """An edit of an option file as YAML."""
    for key, value in edit.items():
        inner = isinstance(value, Mapping)
        shown = "" if inner else f" {json.dumps(value)}"
        yield f"{'  ' * depth}{key}:{shown}"
        if inner:
            yield from edit_lines(value, depth + 1)


def _lines(evidence: Iterable[Json], width: int) -> list[str]:
    """Places with their lines. A long path is alone on its line, so that it can be copied."""
    rows: list[str] = []
    for line in evidence:
        place, start = f"  {line['file']}:{line['line']}: ", ""
        if len(place) <= width // 2:
            start = place
        else:
            rows.append(place.rstrip())
        rows += _wrapped(line["text"], start or "    ", width, "    ")
    return rows


def _wrapped(text: str, start: str, width: int, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
    )
