"""Heuristics: how published configurations set options, as rows; the first row that fits decides.

The files in `builder/data/heuristics/` use the language of `evaluation`. A count is the number of
configurations of its source in which a row was found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from ..documents import DATA
from ..facts import data_file
from ..facts import release as releases
from ..facts.engines import Engine
from ..schema import Check, Text
from .evaluation import all_hold, condition_faults, evaluate, value_faults
from .rule_inputs import RuleInputs

USE_ENGINE_DEFAULT: Final[Any] = object()
"""The value of a row that leaves the option to the engine."""


def _is_known(option: str) -> bool:
    """Whether it is an option or alias of a release or of its server, a variable, or the coverage
    of the data."""
    is_other = option.isupper() or option == "coverage"
    return is_other or any(
        row.has(row.option_path(option)) or option in row.server_options
        for row in releases.of_all_engines()
    )


@dataclass(frozen=True, slots=True)
class HeuristicRow:
    """One answer of a heuristic: `value`, which may be an expression, where all of `when` holds.

    `count` is the number of configurations in which it was found. `reason`, `evidence` and `source`
    default to those of the heuristic. A row without a value that is `said` explains in the plan why
    the engine decides.
    """

    when: Mapping[str, Any] = field(default_factory=dict)
    value: Any = USE_ENGINE_DEFAULT
    reason: str = ""
    evidence: Literal["documented", "derived", "assumed"] | None = None
    count: str = ""
    source: str = ""
    said: bool = False

    def inconsistencies(self) -> Iterator[tuple[str, str]]:
        """Conditions and values that cannot be evaluated, and values without a source."""
        for path, what in condition_faults(self.when):
            yield f"when.{path}", what
        for path, what in value_faults(self.value):
            yield f"value.{path}" if path else "value", what
        if self.value is not USE_ENGINE_DEFAULT and not self.source:
            yield "source", "is missing; say what the value rests on"

    @property
    def use_engine_default(self) -> bool:
        """Whether the row leaves the option to the engine."""
        return self.value is USE_ENGINE_DEFAULT

    def evaluate(self, inputs: RuleInputs) -> Any:
        return evaluate(self.value, inputs)


@dataclass(frozen=True, slots=True)
class Heuristic:
    """How one option or environment variable is decided.

    With `needed` it also decides for a published deployment that does not name the option. With
    `everywhere` a variable is set even if the release is not known to read it.
    """

    option: Annotated[Text, Check(_is_known, "must be an option of a release, or a variable")]
    reason: Text
    rows: tuple[HeuristicRow, ...]
    needed: bool = False
    everywhere: bool = False

    def fitting(self, inputs: RuleInputs) -> Iterator[HeuristicRow]:
        """The rows that fit, best first."""
        return (row for row in self.rows if all_hold(row.when, inputs))


@dataclass(frozen=True, slots=True)
class HeuristicsFile:
    """Heuristics by section, in the order in which they are applied.

    Rows name `sources` by a short word, `texts` hold what YAML anchors repeat, and `names` are the
    names of one choice in different releases.
    """

    sources: Mapping[str, Text]
    sections: Mapping[str, tuple[Heuristic, ...]]
    texts: Mapping[str, Text] = field(default_factory=dict)
    names: Mapping[str, tuple[Text, ...]] = field(default_factory=dict)


@cache
def section(name: str, engine: Engine) -> tuple[Heuristic, ...]:
    """The heuristics of a section, `FILE.SECTION`, in the order in which they are applied; none if
    the engine's file has no such section."""
    file, _, part = name.partition(".")
    found = load(DATA / engine.heuristics / f"{file}.yaml")
    return tuple(
        replace(each, rows=tuple(_complete(row, each.reason, found.sources) for row in each.rows))
        for each in found.sections.get(part, ())
    )


def load(path: Path) -> HeuristicsFile:
    return data_file.load(path, HeuristicsFile)


def files(engine: Engine) -> list[Path]:
    return sorted((DATA / engine.heuristics).glob("*.yaml"))


def method_names(engine: Engine) -> Mapping[str, tuple[str, ...]]:
    """The names of each method of speculation in different releases."""
    return load(DATA / engine.heuristics / "speculation.yaml").names


def is_covered(inputs: RuleInputs, engine: Engine) -> bool:
    """Whether configurations of this model, precision, GPU and role were published."""
    (coverage,) = section("coverage.published", engine)
    return any(True for _ in coverage.fitting(inputs))


def _complete(row: HeuristicRow, reason: str, sources: Mapping[str, str]) -> HeuristicRow:
    """A row with what the file says once for several rows."""
    source = sources.get(row.source, row.source)
    return replace(
        row,
        reason=(row.reason or reason).strip(),
        evidence=row.evidence or ("documented" if row.count else "assumed"),
        source=f"{row.count}: {source}" if row.count else source,
    )
