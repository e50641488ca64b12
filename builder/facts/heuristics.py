"""What published configurations do, as rows of data: the first row that fits a situation decides.

A situation is a flat mapping of words (role, model_type, gpu, concurrency, ...). A row fits if each
of its conditions holds: a value that equals, a list that contains, or bounds `{min, max}` that
hold. Files in `builder/data/practice/` and `builder/data/environment.yaml`; the counts in them say
in how many configurations of its source a row was found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ..documents import DATA, load_yaml

ENVIRONMENT = DATA / "environment.yaml"
PRACTICE = DATA / "practice"

Situation = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One answer of a rule.

    `leaves` marks a row that leaves the option to the engine. `value` may be an expression over the
    situation, see `evaluate`. `counted` marks evidence that is a count of configurations.
    `below_default` lets a rule that is `above_default` take smaller values too.
    """

    when: Mapping[str, Any]
    value: Any
    leaves: bool
    reason: str
    evidence: Literal["documented", "derived", "assumed"]
    source: str
    counted: bool
    below_default: bool

    def fits(self, situation: Situation) -> bool:
        return all(_holds(bound, situation.get(word)) for word, bound in self.when.items())


@dataclass(frozen=True, slots=True)
class Rule:
    """How one option is decided.

    A rule that is `needed` decides for a published deployment too, where it names the option not.
    `above_default` leaves the engine's own default where that is larger. `everywhere` marks a
    variable that is set whether or not the release is known to read it.
    """

    option: str
    rows: tuple[Row, ...]
    needed: bool = False
    above_default: bool = False
    everywhere: bool = False

    def fitting(self, situation: Situation) -> Iterator[Row]:
        """The rows that fit, best first."""
        return (row for row in self.rows if row.fits(situation))


def rules(chapter: str) -> tuple[Rule, ...]:
    """The rules of a chapter, `FILE.LIST`, in the order in which they are decided."""
    file, _, name = chapter.partition(".")
    return _rules(PRACTICE / f"{file}.yaml", name)


def environment() -> tuple[Rule, ...]:
    """The rules of the engine's environment variables."""
    return _rules(ENVIRONMENT, "variables")


def files() -> list[Path]:
    return [ENVIRONMENT, *sorted(PRACTICE.glob("*.yaml"))]


def names() -> Mapping[str, list[str]]:
    """Names of the same choice in different releases."""
    found: Mapping[str, list[str]] = _document(PRACTICE / "speculation.yaml")["names"]
    return found


def covers(situation: Situation) -> bool:
    """Whether configurations of this model, precision, GPU and role were published."""
    rows = _document(PRACTICE / "coverage.yaml")["rows"]
    return any(all(_holds(bound, situation.get(w)) for w, bound in row.items()) for row in rows)


@cache
def _document(path: Path) -> Any:
    return load_yaml(path.read_text(encoding="utf-8"))


@cache
def _rules(path: Path, name: str) -> tuple[Rule, ...]:
    document = _document(path)
    return tuple(
        Rule(
            rule["option"],
            tuple(_row(row, rule["reason"], document["sources"]) for row in rule["rows"]),
            rule.get("needed", False),
            rule.get("above_default", False),
            rule.get("everywhere", False),
        )
        for rule in document[name]
    )


def _row(row: Mapping[str, Any], reason: str, sources: Mapping[str, str]) -> Row:
    count, source = row.get("count"), row.get("source", "")
    source = sources.get(source, source)
    return Row(
        when=row.get("when", {}),
        value=row.get("value"),
        leaves="value" not in row,
        reason=row.get("reason", reason).strip(),
        evidence=row.get("evidence", "documented" if count else "assumed"),
        source=f"{count}: {source}" if count else source,
        counted=count is not None,
        below_default=row.get("below_default", False),
    )


def _holds(bound: Any, value: Any) -> bool:
    if isinstance(bound, Mapping):
        if value is None:
            return False
        low, high = bound.get("min", value), bound.get("max", value)
        return bool(low <= value <= high)
    return value in bound if isinstance(bound, list) else bool(value == bound)


def evaluate(value: Any, situation: Situation) -> Any:
    """A row's value for a situation.

    `{sum: [..]}` and `{quotient: [a, b]}` take numbers and words of the situation, and may be
    rounded up to a multiple and bounded, `at_most` by several; a word that the situation does not
    know bounds nothing. `{sizes_up_to: word, every_up_to: n}` lists batch sizes.
    """
    if not isinstance(value, Mapping):
        return value

    def number(term: Any) -> int:
        return int(situation[term] if isinstance(term, str) else term)

    if "sizes_up_to" in value:
        return batch_sizes(number(value["sizes_up_to"]), value["every_up_to"])
    if "sum" in value:
        result = sum(map(number, value["sum"]))
    else:
        above, below = map(number, value["quotient"])
        result = above // below
    step = value.get("round_up_to", 1)
    result = -(-result // step) * step
    bounds = value.get("at_most", [])
    for most in bounds if isinstance(bounds, list) else [bounds]:
        if not isinstance(most, str) or situation.get(most) is not None:
            result = min(result, number(most))
    return max(result, value.get("at_least", result))


def batch_sizes(largest: int, every_up_to: int) -> list[int]:
    """Every size up to `every_up_to`, powers of two above, and the largest.

    >>> batch_sizes(48, 4)
    [1, 2, 3, 4, 8, 16, 32, 48]
    """
    sizes = [*range(1, min(largest, every_up_to) + 1)]
    size = 2 * every_up_to
    while size < largest:
        sizes.append(size)
        size *= 2
    return [*sizes, largest] if largest > every_up_to else sizes
