"""Answers a file of questions, one JSON object per line, with one JSON line each, in order.

Invalid lines, unknown names and questions without measurements are refused in their own line; all
other lines are answered.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic, Location, closest
from ..errors import BadInput
from ..facts import hardware
from ..files import parse_json, read_text
from . import names
from .estimator import Estimator
from .intervals import Interval
from .measurements import ENGINES, LARGEST, PRECISIONS
from .question import Estimate, Neighbor, Question, Refusal

_TEXTS = ("model", "gpu", "precision", "engine")
_SIZES = ("tp", "isl", "osl", "concurrency")
_SWITCHES = ("ep", "attention_dp")
_OPTIONAL = ("release", "mtp", "acceptance")
FIELDS = (*_TEXTS, *_SIZES, *_SWITCHES, *_OPTIONAL)
_SWITCH = "true, false or "
DIGITS = 6
MOST_SHOWN = 60  # characters of a value that is wrong
UNREAD = "unread"  # the kind of refusal of a line that is no question


Line = Question | Diagnostic  # a question, or what is wrong with its line


def read(text: str, name: str) -> list[Line]:
    """The lines of a file. Raises `BadInput` if it is empty."""
    found = [
        _line(line, name, number) for number, line in enumerate(text.split("\n"), 1) if line.strip()
    ]
    if not found:
        raise BadInput(Diagnostic(name, "holds no question", "write one JSON object a line"))
    return found


def _line(line: str, name: str, number: int) -> Line:
    try:
        return _question(line)
    except BadInput as error:
        (wrong,) = error.diagnostics
        return replace(wrong, where=f"{name}:{number}", location=Location(number, 1))


def _wrong(what: str, remedy: str) -> BadInput:
    return BadInput(Diagnostic("", what, remedy))


def _question(line: str) -> Question:
    try:
        row = parse_json(line, unique_keys=True)
    except ValueError as error:
        raise _wrong(f"is not JSON: {error}", "write one object a line") from None
    if not isinstance(row, dict):
        raise _wrong("is not an object", "write one object a line")
    if unknown := sorted(row.keys() - set(FIELDS)):
        raise _wrong(f"{unknown[0]} is unknown", _spelling(unknown[0], FIELDS))
    fields: dict[str, Any] = {name: _text(row, name) for name in _TEXTS}
    fields |= {name: _size(row, name) for name in _SIZES}
    return Question(**fields | _layout(row, fields["tp"]), **_optional(row))


def _layout(row: Mapping[str, Any], tp: int) -> dict[str, int]:
    """Reads attention DP and EP: numbers, or switches like those of engines."""
    found = {"tp": tp}
    for name in _SWITCHES:
        found[name] = _size(row, name, _SWITCH) if row.get(name) not in (None, 0, True) else 1
    if row.get("attention_dp") is True:
        found |= {"tp": 1, "attention_dp": tp}
    if row.get("ep") is True:
        found["ep"] = found["tp"] * found["attention_dp"]
    return found


def _spelling(name: str, known: Iterable[str]) -> str:
    near = closest(name, known)
    return f"did you mean {near}?" if near else f"one of {', '.join(known)}"


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise _wrong(f"{name} is {_shown(row, name)}", "give a text")
    return value


def _size(row: Mapping[str, Any], name: str, otherwise: str = "") -> int:
    value = _whole(row.get(name))
    if value is None or not 1 <= value <= LARGEST:
        remedy = f"give {otherwise}a whole number from 1 to {LARGEST}"
        raise _wrong(f"{name} is {_shown(row, name)}", remedy)
    return value


def _whole(value: Any) -> int | None:
    """A whole number, also if it is written as 8.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if type(value) is int else None


def _shown(row: Mapping[str, Any], name: str) -> str:
    return json.dumps(row[name])[:MOST_SHOWN] if name in row else "missing"


def _optional(row: Mapping[str, Any]) -> dict[str, Any]:
    release, mtp, acceptance = (row.get(name) for name in _OPTIONAL)
    if release is not None and not isinstance(release, str):
        raise _wrong(f"release is {_shown(row, 'release')}", "give a text such as 1.2.1")
    if mtp is not None and ((mtp := _whole(mtp)) is None or not 0 <= mtp <= 16):
        remedy = "give the number of draft tokens of a step, 0 to 16"
        raise _wrong(f"mtp is {_shown(row, 'mtp')}", remedy)
    if acceptance is not None and not _is_acceptance(acceptance, mtp):
        what = f"acceptance is {_shown(row, 'acceptance')}"
        raise _wrong(what, "give the tokens that a step gives: from 1 to mtp + 1, with mtp")
    return {"release": release or None, "mtp": mtp, "acceptance": acceptance}


def _is_acceptance(value: object, mtp: int | None) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool) or not mtp:
        return False
    return 1 <= value <= mtp + 1


def _unknown(question: Question) -> Iterator[str]:
    """Unknown names without measurements; they may be misspelt."""
    known = {
        "gpu": (names.gpu_name(question.gpu), hardware.known()),
        "precision": (names.weight_precision(question.precision), PRECISIONS),
        "engine": (names.engine_name(question.engine), ENGINES),
    }
    for field, (name, every) in known.items():
        if name not in every:
            yield f"{field} {name} is unknown: {_spelling(name, every)}"


def answer(lines: Iterable[Line], estimator: Estimator) -> Iterator[dict[str, Any]]:
    for line in lines:
        if isinstance(line, Diagnostic):
            yield _refusal(f"{line.message}; {line.fix}", UNREAD)
            continue
        rows = estimator.rows.of_model(names.model_name(line.model))
        read_as, note = names.as_run(line, rows)
        notes = filter(None, (note, *_unknown(line), _contradiction(line)))
        yield document(estimator.estimate(read_as), *notes)


def _contradiction(question: Question) -> str:
    """A note if the name of a checkpoint has another precision than the question."""
    model, named = names.model_name(question.model), names.named_precision(question.model)
    asked = names.precision_of(model, question.precision)
    if named is None or names.precision_of(model, named) == asked:
        return ""
    return f"the name of the model says {named}: precision {asked} counts"


def _refusal(
    reason: str, kind: str, nearest: Sequence[Neighbor] = (), measure: Sequence[Question] = ()
) -> dict[str, Any]:
    return {
        "refused": reason,
        "kind": kind,
        "nearest": list(map(str, nearest)),
        "measure": list(map(measurement, measure)),
    }


def document(found: Estimate | Refusal, *notes: str) -> dict[str, Any]:
    """An answer as JSON; `notes` tell how the question was read."""
    notes = (*notes, *found.notes)
    if isinstance(found, Refusal):
        row = _refusal(found.reason, found.kind, found.nearest, found.measure)
    else:
        row = {
            "tpot_ms": interval(found.tpot_ms),
            "ttft_ms": interval(found.ttft_ms),
            "e2e_ms": interval(found.e2e_ms),
            "output_tok_s": interval(found.output_tok_s),
            "tok_s_per_user": interval(found.tok_s_per_user),
            "tok_s_per_gpu": interval(found.tok_s_per_gpu),
            "rows": found.rows,
            "nearest": list(map(str, found.nearest)),
        }
    return row | ({"notes": list(notes)} if notes else {})


def interval(value: Interval, digits: int = DIGITS) -> dict[str, float]:
    return {name: float(f"{end:.{digits}g}") for name, end in asdict(value).items()}


def measurement(question: Question) -> dict[str, Any]:
    """A load of a deployment to measure, as JSON."""
    fields = ("model", "gpu", "precision", "engine", *_SIZES, *_SWITCHES)
    return {name: getattr(question, name) for name in fields} | (
        {} if question.mtp is None else {"mtp": question.mtp}
    )


def read_file(path: Path) -> list[Line]:
    return read(read_text(path), str(path))
