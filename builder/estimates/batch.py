"""Questions as lines of JSON, and their answers as such lines: one for each, in their order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic, Location, closest
from ..errors import BadInput
from ..facts import hardware
from ..files import parse_json, read_text
from . import layouts, models
from .estimator import Estimator
from .measurements import ENGINES, LARGEST, PRECISIONS
from .question import Estimate, Interval, Question, Refusal

_TEXTS = ("model", "gpu", "precision", "engine")
_SIZES = ("tp", "isl", "osl", "concurrency")
_SIZES_THAT_MAY_BE_OFF = ("ep", "attention_dp")  # 0 or null is off, as engines write it
_OPTIONAL = ("release", "mtp", "acceptance")
FIELDS = (*_TEXTS, *_SIZES, *_SIZES_THAT_MAY_BE_OFF, *_OPTIONAL)
DIGITS = 6


def read(text: str, name: str) -> list[Question]:
    """The questions of a file. Raises `BadInput` with every line that is wrong."""
    found: list[Question] = []
    wrong: list[Diagnostic] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(_question(line))
        except _Wrong as error:
            where = f"{name}:{number}"
            what, remedy = error.args
            wrong.append(Diagnostic(where, what, remedy, location=Location(number, 1)))
    if wrong:
        raise BadInput(wrong)
    if not found:
        raise BadInput(Diagnostic(name, "holds no question", "write one JSON object a line"))
    return found


class _Wrong(Exception):
    """What is wrong with a line, and the remedy."""


def _question(line: str) -> Question:
    try:
        row = parse_json(line, unique_keys=True)
    except ValueError as error:
        raise _Wrong(f"is not JSON: {error}", "write one object a line") from None
    if not isinstance(row, dict):
        raise _Wrong("is not an object", "write one object a line")
    if unknown := sorted(row.keys() - set(FIELDS)):
        raise _Wrong(f"{unknown[0]} is unknown", _spelling(unknown[0], FIELDS))
    fields: dict[str, Any] = {name: _text(row, name) for name in _TEXTS}
    fields |= {name: _size(row, name) for name in _SIZES}
    fields |= {
        name: _size(row, name) if row.get(name) not in (None, 0) else 1
        for name in _SIZES_THAT_MAY_BE_OFF
    }
    question = Question(**fields, **_optional(row))
    _check_names(question)
    return question


def _spelling(name: str, known: Iterable[str]) -> str:
    near = closest(name, known)
    return f"did you mean {near}?" if near else f"one of {', '.join(known)}"


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise _Wrong(f"{name} is {_shown(row, name)}", "give a text")
    return value


def _size(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    if type(value) is not int or not 1 <= value <= LARGEST:
        raise _Wrong(f"{name} is {_shown(row, name)}", f"give a whole number from 1 to {LARGEST}")
    return value


def _shown(row: Mapping[str, Any], name: str) -> str:
    return json.dumps(row[name]) if name in row else "missing"


def _optional(row: Mapping[str, Any]) -> dict[str, Any]:
    release, mtp, acceptance = (row.get(name) for name in _OPTIONAL)
    if release is not None and not isinstance(release, str):
        raise _Wrong(f"release is {_shown(row, 'release')}", "give a text such as 1.2.1")
    if mtp is not None and (type(mtp) is not int or not 0 <= mtp <= 16):
        remedy = "give the number of draft tokens of a step, 0 to 16"
        raise _Wrong(f"mtp is {_shown(row, 'mtp')}", remedy)
    if acceptance is not None and not _is_acceptance(acceptance, mtp):
        what = f"acceptance is {_shown(row, 'acceptance')}"
        raise _Wrong(what, "give the tokens that a step gives: from 1 to mtp + 1, with mtp")
    return {"release": release or None, "mtp": mtp, "acceptance": acceptance}


def _is_acceptance(value: object, mtp: int | None) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and bool(mtp) and 1 <= float(value) <= mtp + 1  # type: ignore[arg-type,operator]


def _check_names(question: Question) -> None:
    known = {
        "gpu": (models.gpu_name(question.gpu), hardware.known()),
        "precision": (models.weight_precision(question.precision), PRECISIONS),
        "engine": (models.engine_name(question.engine), ENGINES),
    }
    for field, (name, names) in known.items():
        if name not in names:
            raise _Wrong(f"{field} {name} is unknown", _spelling(name, names))


def answer(questions: Iterable[Question], estimator: Estimator) -> Iterator[dict[str, Any]]:
    """The answer of each question as JSON has it."""
    for question in questions:
        read_as, note = layouts.as_published(question, estimator)
        yield document(estimator.estimate(read_as), note)


def document(found: Estimate | Refusal, note: str = "") -> dict[str, Any]:
    """An answer for machines; `note` says how the question was read."""
    notes = [*([note] if note else []), *found.notes]
    nearest = [str(neighbor) for neighbor in found.nearest]
    if isinstance(found, Refusal):
        row: dict[str, Any] = {
            "refused": found.reason,
            "kind": found.kind,
            "nearest": nearest,
            "measure": [measurement(question) for question in found.measure],
        }
    else:
        row = {
            "tpot_ms": interval(found.tpot_ms),
            "ttft_ms": interval(found.ttft_ms),
            "e2e_ms": interval(found.e2e_ms),
            "output_tok_s": interval(found.output_tok_s),
            "tok_s_per_user": interval(found.tok_s_per_user),
            "tok_s_per_gpu": interval(found.tok_s_per_gpu),
            "rows": found.rows,
            "nearest": nearest,
        }
    return row | ({"notes": notes} if notes else {})


def interval(value: Interval) -> dict[str, float]:
    return {name: float(f"{getattr(value, name):.{DIGITS}g}") for name in ("low", "value", "high")}


def measurement(question: Question) -> dict[str, Any]:
    """What to measure: a load of a deployment."""
    fields = ("model", "gpu", "precision", "engine", *_SIZES, *_SIZES_THAT_MAY_BE_OFF)
    return {name: getattr(question, name) for name in fields} | (
        {} if question.mtp is None else {"mtp": question.mtp}
    )


def read_file(path: Path) -> list[Question]:
    return read(read_text(path), str(path))
