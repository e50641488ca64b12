"""Watches a log for the lines that signatures, phases and noise ask for, and for errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import BinaryIO

from . import log, signatures
from .log import Line
from .signatures import Phase, Signature, StartStep
from .templates import Template, compiled

MOST_EVIDENCE = 5
AFTER_SERVING = ("import", "setup", "shutdown", "cluster")

# How programs say that something went wrong, whatever it is.
_EXCEPTION = re.compile(
    r"^(?:[\w.]+\.)?(?:[A-Z]\w*)?(?:Error|Exception|Interrupt|Warning)\b(?:: |$)"
)
# The last line of a traceback may also be a class of any name.
_RAISED = re.compile(rf"{_EXCEPTION.pattern}|^(?:[a-z_]\w*\.)+[A-Z]\w*(?:: |$)")
_FAULT = re.compile(
    r"^(?:error|fatal|ERROR|FATAL)\b[:!]|: (?:fatal )?error: |, line \d+; error +: |ptxas fatal|"
    r"_init failed for some reason|Signal: |Segmentation fault|CUDA [Ee]rror: |"
    r"terminate called|what\(\): |UNAVAILABLE: |\bpanicked at\b|NIXL_ERR_|core dumped|NCCL WARN |"
    r"\b(?:OPAL|PMIX|PRTE|ORTE)[ _]ERROR|\bAssertion .* failed|Error response from daemon|"
    r"\d Killed\b|^ +Warning +\w+ +\d|"
    # A program's name, what it tried, and the system's own words for why it could not.
    r"^[\w./+-]+: .*(?:: No such file or directory|: Permission denied|: command not found|"
    r": Operation not permitted|: Exec format error|: Input/output error|: Cannot allocate memory|"
    r": No space left on device|: Connection refused|: Address already in use)$|"
    r"^ +Reason: +(?:OOMKilled|Error|StartError|ContainerCannotRun|Evicted)"
)
_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r'^ +File "(?:.*-packages/)?([^"]+)", line (\d+), in (.+)')
# An exception that says nothing: where it was raised is all that is known of it.
_BARE = re.compile(r"^[\w.]+:? *$")
# Bytes that a line with an error has, without digits; the rest is decided by its level.
_HINTS = re.compile(
    rb"rror|ERR|\[E\]|FATAL|atal|raceback|xception|Signal: |terminate called|UNAVAILABLE|panicked"
    rb"|what\(\)|egmentation|core dumped|^E |WARN|Warning  |ssertion|Reason: |Killed|E ::\."
    rb"|  File \"|No such file|denied|not found|not permitted|Cannot allocate|No space left"
    rb"|refused|in use"
)
_NOT_RAISED = re.compile(r"Warning\b")


@dataclass(slots=True)
class Hits:
    """What was seen of one pattern: how often, its first and last lines and captured values."""

    count: int = 0
    first: list[Line] = field(default_factory=list)
    last: Line | None = None
    values: dict[str, str] = field(default_factory=dict)

    def add(self, line: Line, count: int, values: dict[str, str]) -> None:
        self.count += max(1, count)
        if len(self.first) < MOST_EVIDENCE:
            self.first.append(line)
        self.last = line
        self.values = {name: value for name, value in values.items() if value} | self.values


@dataclass(frozen=True, slots=True)
class Mark:
    """The first line of a phase."""

    step: StartStep
    line: Line


@dataclass(slots=True)
class Seen:
    """Everything that was seen in one log; `echo` is its first echo of a failure elsewhere."""

    file: str
    hits: dict[tuple[str, int], Hits] = field(default_factory=dict)
    ruled_out: dict[str, Line] = field(default_factory=dict)
    ruled_out_after: dict[str, Line] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    errors: list[Line] = field(default_factory=list)
    echo: Line | None = None
    readings: dict[str, tuple[str, Line]] = field(default_factory=dict)
    ended: Line | None = None
    last: Line | None = None
    lines: int = 0
    served: int = 0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A template with what it is for."""

    template: Template
    kind: str  # pattern, unless, unless_after, step, reading, harmless, echo or end
    owner: Signature | StartStep | None
    index: int
    info: bool


@cache
def _wanted() -> tuple[_Wanted, ...]:
    rows: list[_Wanted] = []
    for row in signatures.signatures():
        for index, pattern in enumerate(row.patterns):
            for text in pattern.lines:
                rows.append(_Wanted(compiled(text), "pattern", row, index, pattern.info))
        rows += [_Wanted(compiled(text), "unless", row, 0, True) for text in row.unless]
        rows += [_Wanted(compiled(text), "unless_after", row, 0, True) for text in row.unless_after]
    for step in signatures.phases().steps:
        rows += [_Wanted(compiled(text), "step", step, 0, True) for text in step.lines]
    readings = signatures.readings().lines
    rows += [_Wanted(compiled(text), "reading", None, 0, True) for text in readings]
    known = signatures.noise()
    for kind, texts in (("harmless", known.harmless), ("echo", known.echoes), ("end", known.ends)):
        rows += [_Wanted(compiled(text), kind, None, 0, True) for text in texts]
    return tuple(rows)


@cache
def _by_literal() -> dict[bytes, tuple[_Wanted, ...]]:
    """What is wanted by the fixed text of its template without digits."""
    found: dict[bytes, list[_Wanted]] = {}
    for row in _wanted():
        found.setdefault(row.template.literal.translate(None, b"0123456789"), []).append(row)
    return {literal: tuple(rows) for literal, rows in found.items()}


class Watcher:
    """Reads a log that may still grow, in bounded memory; `seen` is what was seen so far."""

    def __init__(self, file: str) -> None:
        self.seen = Seen(file)
        self._reader = log.Reader(matters)
        # Ranks that write a traceback: the line that announced it, and its last frame.
        self._tracebacks: dict[str, Line | None] = {}
        self._frames: dict[str, str] = {}

    def read(self, stream: BinaryIO) -> None:
        """Reads whole lines from where the last call ended."""
        for line, count in self._reader.read(stream, self.seen.file):
            if count:
                self._take(line, count)
            else:
                self.seen.last = line
        self.seen.lines, self.seen.served = self._reader.lines, self._reader.served

    def _take(self, line: Line, count: int) -> None:
        """Keeps a line for what wants it, and the first errors."""
        seen, found = self.seen, list(_found(line))
        if any(row.kind == "harmless" for row, _ in found):  # it proves no failure either
            found = [(row, match) for row, match in found if row.kind != "pattern"]
        is_noise = False
        for row, match in found:
            is_noise |= _note(seen, row, line, count, match)
        if frame := _FRAME.match(line.message):
            self._frames[line.rank] = f"{frame[1]}:{frame[2]}, in {frame[3]}"
            return
        if _TRACEBACK in line.message:
            before = seen.errors[-1] if seen.errors else None
            is_announced = before and before.rank == line.rank and line.number - before.number <= 2
            self._tracebacks[line.rank] = before if is_announced else None
            return
        raised = line.rank in self._tracebacks and _RAISED.match(line.message)
        announced = self._tracebacks.pop(line.rank) if raised else None
        if is_noise or line.level == "information" or not (raised or _is_error(line)):
            return
        told = line.message.partition(": ")[2] or line.message
        if announced and announced in seen.errors and told not in announced.message:
            seen.errors.remove(announced)  # the exception tells more than "Error in ..."
        if _BARE.match(line.message) and (place := self._frames.get(line.rank)):
            line = replace(line, text=f"{line.text.rstrip(': ')} (raised at {place})")
        if len(seen.errors) < MOST_EVIDENCE:
            seen.errors.append(line)


def watch(stream: BinaryIO, file: str) -> Seen:
    """Everything in a log that is whole."""
    watcher = Watcher(file)
    watcher.read(stream)
    return watcher.seen


def matters(kind: bytes) -> bool:
    """Whether a kind of line, without its digits, may be of any use."""
    return bool(_HINTS.search(kind) or _rows_of(kind))


@lru_cache(maxsize=4096)
def _rows_of(kind: bytes) -> tuple[_Wanted, ...]:
    """What a kind of line may be wanted for."""
    found: list[_Wanted] = []
    for literal, rows in _by_literal().items():
        if literal in kind:
            found += rows
    return tuple(found)


def _found(line: Line) -> Iterator[tuple[_Wanted, re.Match[str]]]:
    for row in _rows_of(line.text.encode().translate(None, b"0123456789")):
        text = line.message if row.template.anchored else line.text
        match = row.template.pattern.search(text)
        if match and (row.info or line.level != "information"):
            yield row, match


def _is_error(line: Line) -> bool:
    message = line.message
    if _FAULT.search(message):
        return not _NOT_RAISED.search(message) or message.startswith(" ")
    if _NOT_RAISED.search(message) or message.startswith(" ") or not message:
        return False
    return line.level == "error" or bool(_EXCEPTION.match(message))


def _note(seen: Seen, row: _Wanted, line: Line, count: int, found: re.Match[str]) -> bool:
    """Keeps a line for what wants it; returns whether it is no first error."""
    if row.kind == "pattern" and isinstance(row.owner, Signature):
        hits = seen.hits.setdefault((row.owner.id, row.index), Hits())
        hits.add(line, count, found.groupdict())
    elif isinstance(row.owner, Signature):
        store = seen.ruled_out if row.kind == "unless" else seen.ruled_out_after
        store[row.owner.id] = line
    elif isinstance(row.owner, StartStep):
        _enter(seen, row.owner, line)
    elif row.kind == "reading":
        seen.readings |= {name: (value, line) for name, value in found.groupdict().items()}
    elif row.kind in ("echo", "end"):
        seen.echo = seen.echo or line
        seen.ended = seen.ended or (line if row.kind == "end" else None)
    return row.kind in ("harmless", "echo", "end")


def _enter(seen: Seen, step: StartStep, line: Line) -> None:
    """Notes the begin of a phase; what serves begins another start with its first phases alone."""
    now = seen.marks[-1].step.phase if seen.marks else None
    if now == step.phase or (now == "serving" and step.phase not in AFTER_SERVING):
        return
    seen.marks.append(Mark(step, line))


def phase_at(marks: Sequence[Mark], number: int) -> Phase | None:
    """The phase in which a line was written."""
    before = [mark.step.phase for mark in marks if mark.line.number <= number]
    return before[-1] if before else None
