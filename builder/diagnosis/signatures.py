"""Signatures of failures, phases of a start and lines that mean nothing, as rows of data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from ..documents import DATA
from ..facts import data_file
from ..schema import Check, Day, Positive, Text
from . import templates

FOLDER = DATA / "failures"

Phase = Literal[
    "setup",
    "import",
    "load",
    "kv",
    "autotune",
    "graphs",
    "serving",
    "disagg",
    "shutdown",
    "cluster",
]
Confidence = Literal["confirmed", "reported", "assumed"]
Line = Annotated[Text, Check(lambda text: not templates.fault(text), "must be a template")]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Lines that a failure writes: any of `lines`, at least `times`.

    `info` allows lines whose own level is information. `within` bounds the distance to the pattern
    before it, in lines.
    """

    lines: tuple[Line, ...]
    times: Positive = 1
    info: bool = False
    within: Positive | None = None

    def captures(self, name: str) -> bool:
        """Whether a log that has this pattern always tells the value of a name."""
        return all(name in templates.compiled(line).pattern.groupindex for line in self.lines)


@dataclass(frozen=True, slots=True)
class Detail:
    """A sentence that follows a cause where there are values for it.

    `{name}` stands for what a line holds, a quantity of the readings, or a path of the plan, and
    `{name - other}` for their difference, which must be larger than `above`.
    """

    text: Text
    above: float = 0.0


@dataclass(frozen=True, slots=True)
class Signature:
    """A failure: how its log and state look, its cause, its fix and who says so.

    `phase` is the one that failed; without it, the one in which the first evidence was written,
    which is one of `during`. All of `patterns` are in the log. A line of `unless` anywhere, or one
    of `unless_after` behind the last evidence, rules the failure out. State must agree with
    `needs`, and must not contradict `fits`; where it does not tell, the failure is assumed.
    `stall_s` is how long the log has been silent while the process is alive. A `generic` failure
    counts only where no other is found and no error came before it; one that is `alone` only where
    no other line is an error either: a process that died without a word. `details` compare its
    numbers with the plan. `otherwise` are other causes of the same lines, each with what tells it
    apart: unless state confirms the failure, it is one of several. A row without a `cause` is a
    mere symptom, shown with what it may mean where no cause is found. `example` is a log that has
    the failure and `counterexample` one that has not; `example_state` is the state beside both.
    """

    id: Text
    cluster: Text
    fix: Text
    source: Text
    date: Day
    confidence: Confidence
    cause: str = ""
    phase: Phase | None = None
    patterns: tuple[Pattern, ...] = ()
    during: tuple[Phase, ...] = ()
    unless: tuple[Line, ...] = ()
    unless_after: tuple[Line, ...] = ()
    needs: Mapping[str, Text] | None = None
    fits: Mapping[str, Text] | None = None
    stall_s: Positive | None = None
    generic: bool = False
    alone: bool = False
    details: tuple[Detail, ...] = ()
    otherwise: Mapping[Text, Text] | None = None
    edit: Mapping[str, Any] | None = None
    edit_lowers: bool = False
    example: Text | None = None
    example_state: Mapping[str, Any] | None = None
    counterexample: Text | None = None

    @property
    def fixed_text(self) -> int:
        """Characters that every log with this failure has; with more, chance is less likely."""
        lines = (pattern.lines for pattern in self.patterns)
        return sum(
            min(len(templates.compiled(line).literal) for line in any_of) for any_of in lines
        )

    def inconsistencies(self) -> Iterator[tuple[str, str]]:
        if not self.patterns and not self.needs:
            yield "patterns", "is missing; give lines of the log or what the state needs"
        if not self.cause and not self.otherwise:
            yield "cause", "is missing; write it, or what the lines may mean in otherwise"
        if self.patterns and self.example is None:
            yield "example", "is missing; write a log that has the failure"
        if self.patterns and self.counterexample is None:
            yield "counterexample", "is missing; write a log that must not be taken for it"
        for name in sorted(set(templates.names(self.cause) + templates.names(self.fix))):
            if not any(pattern.captures(name) for pattern in self.patterns):
                yield "cause", f"names {name}, which not every line of a pattern captures"


@dataclass(frozen=True, slots=True)
class Signatures:
    """A file of failures of one part of a deployment."""

    failures: tuple[Signature, ...]

    def inconsistencies(self) -> Iterator[tuple[str, str]]:
        return data_file.repeated_ids("failures", self.failures)


@dataclass(frozen=True, slots=True)
class StartStep:
    """The lines with which a phase of a program's start begins.

    `may_lack_models`: the program also serves without the models that did not load.
    """

    program: Text
    phase: Phase
    lines: tuple[Line, ...]
    may_lack_models: bool = False


@dataclass(frozen=True, slots=True)
class Phases:
    """How starts look: steps in their order, and lines that a program writes first.

    A first error with one of the words of `in_any_phase` is of that phase, whatever the step of
    its log; lines with one of the words of `before_a_start` tell the phase of a log without steps.
    """

    source: Text
    steps: tuple[StartStep, ...]
    in_any_phase: Mapping[Phase, tuple[Text, ...]]
    before_a_start: Mapping[Phase, tuple[Text, ...]]


@dataclass(frozen=True, slots=True)
class Noise:
    """Lines that are no first error: `harmless` ones, and `echoes` of a failure elsewhere.

    `ends` are the echoes after which a server no longer serves.
    """

    source: Text
    harmless: tuple[Line, ...]
    echoes: tuple[Line, ...]
    ends: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a start log tells of an option or of memory.

    `planned` are paths of its value in a plan; the first that is there counts. The value in force
    may be `at_least` this share of it, or `at_most`; without both it must be the same. Of one that
    is `final`, only a log that reached service tells: before it is a first estimate.
    """

    planned: tuple[Text, ...]
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    final: bool = False


@dataclass(frozen=True, slots=True)
class Readings:
    """Lines that tell quantities, each by the name of a placeholder."""

    source: Text
    lines: tuple[Line, ...]
    quantities: Mapping[Text, Quantity]

    def inconsistencies(self) -> Iterator[tuple[str, str]]:
        for index, line in enumerate(self.lines):
            for name in templates.compiled(line).pattern.groupindex:
                if name not in self.quantities:
                    yield f"lines.{index}", f"names {name}, which is no quantity; add it there"


SCHEMAS: Mapping[str, Any] = {
    "failures/noise.yaml": Noise,
    "failures/phases.yaml": Phases,
    "failures/readings.yaml": Readings,
    "failures/signatures/*.yaml": Signatures,
}


@cache
def signatures() -> tuple[Signature, ...]:
    """Every failure of the toolkit's data, by file and in the order of a file."""
    found: list[Signature] = []
    for path in sorted((FOLDER / "signatures").glob("*.yaml")):
        found += data_file.load(path, Signatures).failures
    return tuple(found)


@cache
def phases() -> Phases:
    return data_file.load(FOLDER / "phases.yaml", Phases)


def noise() -> Noise:
    return data_file.load(FOLDER / "noise.yaml", Noise)


def readings() -> Readings:
    return data_file.load(FOLDER / "readings.yaml", Readings)
