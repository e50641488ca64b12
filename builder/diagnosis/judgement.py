"""Decides from everything seen in logs and state what failed first, and how sure that is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from .. import credentials
from . import state as states
from .log import Line
from .signatures import Confidence, Phase, Signature, phases, signatures
from .state import State
from .watch import MOST_EVIDENCE, Hits, Seen, phase_at

Verdict = Literal["healthy", "failed", "stalled", "unknown"]

# Phases in which silence of a live process is no stall.
_QUIET = ("serving", "shutdown")
LONGEST_TEXT = 300  # characters of a line of evidence
# Clusters of failures in which the server lives and does not serve.
_HANGS = ("hang",)
# Terms of details: a name, or names whose values are subtracted.
_TERM = re.compile(r"\{([\w.]+(?: - [\w.]+)*)\}")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line that proves a cause; credentials in its text are masked."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class FailureCause:
    """A failure with the lines that prove it, and its texts filled in from them.

    `otherwise` are other causes of these lines, each with what tells it apart. Credentials in what
    was filled in are masked.
    """

    signature: Signature
    cause: str
    fix: str
    evidence: tuple[Evidence, ...]
    confidence: Confidence
    phase: Phase | None
    at: tuple[float, int]
    edit: Mapping[str, Any]
    otherwise: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is known of a server: its verdict, phase, causes, first error and seconds by phase.

    Without a cause, `symptom` is a known line that does not tell which of several it has.
    """

    verdict: Verdict
    phase: Phase | None
    causes: tuple[FailureCause, ...]
    first_error: Evidence | None
    seconds: Mapping[str, float]
    silence_s: float = 0.0
    symptom: FailureCause | None = None


def judge(
    logs: Sequence[Seen], state: State, planned: Mapping[str, Any] | None = None
) -> Diagnosis:
    """The diagnosis of a server from all its logs; `planned` are values of its plan by path."""
    found = sorted(_causes(logs, state, planned or {}), key=_rank)
    all_errors = ((seen, line) for seen in logs for line in seen.errors)
    errors = [line for seen, line in all_errors if not _survived(seen, line.number)]
    errors.sort(key=_moment)
    causes = list(_strongest([cause for cause in found if cause.cause], errors))
    symptoms = [cause for cause in found if not cause.cause and not causes]
    echoes = [(seen, seen.echo) for seen in logs if seen.echo]
    first_lines = errors or [line for seen, line in echoes if not _survived(seen, line.number)]
    first = _evidence(first_lines[0]) if first_lines else None
    silence_s = states.silence_s(state)
    phase = _phase(logs, first_lines, causes)
    verdict = _verdict(logs, state, causes, errors, phase, silence_s)
    if verdict == "healthy":
        first = None
    return Diagnosis(
        verdict,
        (causes[0].phase if causes else None) or phase,
        tuple(causes),
        first,
        _seconds(logs),
        silence_s,
        next(iter(symptoms), None) if verdict != "healthy" else None,
    )


def _rank(cause: FailureCause) -> tuple[object, ...]:
    """The first in time, then the one that more lines, state and fixed text confirm."""
    row = cause.signature
    return cause.at, -len(row.patterns) - len(row.needs or ()), -row.fixed_text, row.id


def _strongest(causes: Sequence[FailureCause], errors: Sequence[Line]) -> Iterator[FailureCause]:
    """The causes without those that count only where there is no other cause or error, or where
    no error came before them, and without those that only lines of a stronger one prove.
    """
    first = next((error for error in errors if not error.text.endswith(":")), None)
    named = any(not cause.signature.generic and not cause.signature.alone for cause in causes)
    told = any(not cause.signature.alone for cause in causes)
    shown: set[tuple[str, int]] = set()
    for cause in causes:
        row = cause.signature
        places = {(line.file, line.line) for line in cause.evidence}
        others = any((error.file, error.number) not in places for error in errors)
        is_later = first and places and cause.at > _moment(first)
        if (row.generic and (named or is_later)) or (row.alone and (told or others)):
            continue
        if places and places <= shown:
            continue
        shown |= places
        yield cause


def _causes(
    logs: Sequence[Seen], state: State, planned: Mapping[str, Any]
) -> Iterator[FailureCause]:
    logged = {name: value for seen in logs for name, (value, _) in seen.readings.items()}
    for row in signatures():
        needed = states.agrees(state, row.needs) if row.needs else True
        fits = states.agrees(state, row.fits) if row.fits else None
        if needed is not True or fits is False:
            continue
        if row.stall_s and states.silence_s(state) < row.stall_s:
            continue
        found = next(filter(None, (_in_log(row, seen) for seen in logs)), None)
        if found is None:
            continue
        lines, values, phase, at = found
        otherwise = {} if row.needs or fits else row.otherwise or {}
        confidence = "assumed" if otherwise or (row.fits and not fits) else row.confidence
        yield FailureCause(
            row,
            " ".join([_filled(row.cause, values), *_details(row, {**planned, **logged, **values})]),
            _filled(row.fix, values),
            tuple(_evidence(line) for line in lines[:MOST_EVIDENCE]),
            confidence,
            row.phase or phase,
            at,
            _edit(row, planned),
            otherwise,
        )


def _edit(row: Signature, planned: Mapping[str, Any]) -> Mapping[str, Any]:
    """The edit of a row; none where the plan has that value, or a lower one than it would lower."""
    for group, options in (row.edit or {}).items():
        for name, value in options.items() if isinstance(options, Mapping) else ():
            now = planned.get(f"{group}.{name}")
            if now is not None and (now == value or (row.edit_lowers and now < value)):
                return {}
    return row.edit or {}


def _in_log(
    row: Signature, seen: Seen
) -> tuple[list[Line], dict[str, str], Phase | None, tuple[float, int]] | None:
    """The evidence for a failure in one log, with what its lines hold and when it began."""
    if row.id in seen.ruled_out:
        return None
    all_hits: list[Hits] = []
    before: Hits | None = None
    for index, pattern in enumerate(row.patterns):
        hits = seen.hits.get((row.id, index))
        if hits is None or hits.count < pattern.times:
            return None
        if before and pattern.within and not _near(before, hits, pattern.within):
            return None
        all_hits.append(hits)
        before = hits
    lines = [line for hits in all_hits for line in hits.first]
    last = max((hits.last.number for hits in all_hits if hits.last), default=0)
    if _survived(seen, last):
        return None
    after = seen.ruled_out_after.get(row.id)
    if after and after.number > last:
        return None
    values: dict[str, str] = {}
    for hits in all_hits:
        values |= {name: value for name, value in hits.values.items() if value}
    first = min(lines, key=lambda line: line.number, default=seen.last)
    phase = phase_at(seen.marks, first.number) if first else None
    if row.during and (phase or "setup") not in row.during:
        return None
    return lines, values, phase, _moment(first) if first else (0.0, 0)


def _survived(seen: Seen, number: int) -> bool:
    """Whether the start to which a line belongs served afterwards, and well: it stopped nothing."""
    if seen.ended or phase_at(seen.marks, number) in _QUIET:
        return False
    after = (mark for mark in seen.marks if mark.line.number > number)
    ready = next((mark for mark in after if mark.step.phase == "serving"), None)
    if ready is None or ready.step.may_lack_models:
        return False
    return seen.served > number or all(line.number < ready.line.number for line in seen.errors)


def _near(before: Hits, after: Hits, within: int) -> bool:
    return any(
        0 <= second.number - first.number <= within
        for first in before.first
        for second in after.first
    )


def _moment(line: Line) -> tuple[float, int]:
    return line.moment_s or 0.0, line.number


def _evidence(line: Line) -> Evidence:
    return Evidence(line.file, line.number, credentials.mask(line.text.strip()[:LONGEST_TEXT]))


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value.strip(" .,;:'\""))
    return credentials.mask(text)


def _details(row: Signature, values: Mapping[str, Any]) -> Iterator[str]:
    """The details of a cause that have all their values."""
    for detail in row.details:
        filled = {term: _value(term, values, detail.above) for term in _TERM.findall(detail.text)}
        if all(filled.values()):
            yield _filled(detail.text, filled)


def _value(term: str, values: Mapping[str, Any], above: float) -> str:
    """A value, or a difference that is larger than `above`; empty where there is none."""
    names = term.split(" - ")
    if not all(_NUMBER.fullmatch(str(values.get(name))) for name in names):
        return ""
    first, *others = (float(str(values[name]).replace(",", "")) for name in names)
    difference = first - sum(others)
    if others and difference <= above:
        return ""
    return f"{difference:.2f}" if abs(difference) < 1 else f"{difference:,.1f}".removesuffix(".0")


def _phase(
    logs: Sequence[Seen], errors: Sequence[Line], causes: Sequence[FailureCause]
) -> Phase | None:
    """The phase of the log with the first error, else of the last log that has one.

    What fails before a program tells a phase fails where its words are known to, else in its
    set-up.
    """
    texts = [line.text for line in errors[:1]]
    if phase := _phase_of_words(phases().in_any_phase, texts):
        return phase
    of_error = [seen for seen in logs if errors and seen.file == errors[0].file]
    for seen in of_error:
        if phase := phase_at(seen.marks, errors[0].number):
            return phase
    for seen in reversed(logs):
        if phase := phase_at(seen.marks, seen.lines):
            return phase
    texts += [line.text for cause in causes[:1] for line in cause.evidence]
    return _phase_of_words(phases().before_a_start, texts) or ("setup" if texts else None)


def _phase_of_words(words: Mapping[Phase, Sequence[str]], texts: Sequence[str]) -> Phase | None:
    for phase, of_phase in words.items():
        if any(word in text for text in texts for word in of_phase):
            return phase
    return None


def _verdict(
    logs: Sequence[Seen],
    state: State,
    causes: Sequence[FailureCause],
    errors: Sequence[Line],
    phase: Phase | None,
    silence_s: float,
) -> Verdict:
    if causes:
        row = causes[0].signature
        return "stalled" if row.stall_s or row.cluster in _HANGS else "failed"
    is_stalled = silence_s >= states.STALL_S and phase not in (*_QUIET, None)
    if is_stalled and not errors:
        return "stalled"
    if any(seen.ended for seen in logs):
        return "failed"
    served = {seen.file: seen.served for seen in logs}
    if any(served[line.file] <= line.number for line in errors):
        return "failed"
    if state.get("exit_code", "0") != "0":
        return "failed"
    return "healthy" if phase in _QUIET else "unknown"


def _seconds(logs: Sequence[Seen]) -> dict[str, float]:
    """How long each phase of the longest start took, where its lines have times."""
    found: dict[str, float] = {}
    for seen in logs:
        for mark, following in pairwise(seen.marks):
            began_s, ended_s = mark.line.moment_s, following.line.moment_s
            if began_s is not None and ended_s is not None:
                found[mark.step.phase] = found.get(mark.step.phase, 0.0) + ended_s - began_s
    return found
