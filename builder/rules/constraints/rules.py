"""The rules: rows of `builder/data/rules.yaml`, and whether one is broken."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Literal

from ...diagnostics import Diagnostic
from ...documents import DATA, load_yaml
from ...facts import release as releases
from ...facts.release import Release
from .values import MISSING, View, as_number, as_truth

RULES = DATA / "rules.yaml"

SECTIONS = ("rules", "agreements", "flags")

_WORD = re.compile(r"\w+")
_OPERAND = re.compile(r"\{([\w.]+)\}")
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Rule:
    """One row. Broken if every test of `when` holds and one of `must` fails for certain.

    A rule without `must` is broken by its `when` alone. `everywhere` marks a rule of all releases;
    any other holds where the release's table lists its id. It is not reported where one of
    `unless` was. A rule with `ignored` finds a value without effect: a warning to whoever wrote it,
    an error in what the toolkit renders. `agree` is the operand that two workers must share.
    """

    id: str
    severity: Literal["error", "warning"]
    message: str
    fix: str
    source: str
    confidence: str
    where: str = ""
    everywhere: bool = False
    when: Mapping[str, Any] | None = None
    must: Mapping[str, Any] | None = None
    unless: tuple[str, ...] = ()
    ignored: bool = False
    agree: str = ""

    def broken(self, view: View) -> str | None:
        """The operand to blame, `None` where the rule holds or cannot be judged."""
        if not self.applies(view):
            return None
        if not self.must:
            return next(iter(self.when or {}))
        tests = self.must.items()
        return next((name for name, test in tests if holds(view, name, test) is False), None)

    def applies(self, view: View) -> bool:
        """Whether every test of `when` holds for certain."""
        tests = (self.when or {}).items()
        return all(holds(view, operand, test) is True for operand, test in tests)

    def options(self) -> Iterator[str]:
        """The paths of the options that the tests ask for, and of the one to blame."""
        for tests in (self.when or {}, self.must or {}):
            for operand, test in tests.items():
                relations = test.items() if isinstance(test, Mapping) else ()
                others = [other for name, other in relations if name not in ("given", "not")]
                for name in (operand, *(other for other in others if isinstance(other, str))):
                    if not name.startswith(("situation.", "derived.")):
                        yield name.removeprefix("effective.")
        if self.where:
            yield self.where

    def problem(self, where: str, named: Callable[[str], Any]) -> Diagnostic:
        """The rule's words, with `{name}` replaced by what `named` says."""

        def fill(template: str) -> str:
            return _OPERAND.sub(lambda match: _show(named(match[1])), template)

        return Diagnostic(where, fill(self.message), fill(self.fix), self.id, self.severity)


@cache
def rows(section: str) -> tuple[Rule, ...]:
    """The rules of one section of the file, in its order."""
    return tuple(
        Rule(
            id=row["id"],
            severity=row["severity"],
            message=row["message"],
            fix=row["fix"],
            source=row["source"],
            confidence=row["confidence"],
            where=row.get("where", ""),
            everywhere=row.get("releases") == "all",
            when=row.get("when"),
            must=row.get("must"),
            unless=tuple(row.get("unless", ())),
            ignored=row.get("ignored", False),
            agree=row.get("agree", ""),
        )
        for row in _file()[section]
    )


@cache
def _file() -> Mapping[str, Any]:
    document: Mapping[str, Any] = load_yaml(RULES.read_text(encoding="utf-8"))
    return document


def named(section: str, name: str) -> Rule:
    """The one rule of a section that has this id."""
    (rule,) = (rule for rule in rows(section) if rule.id == name)
    return rule


@lru_cache(maxsize=16)
def of_release(release: Release) -> tuple[Rule, ...]:
    """The rules that hold for a release, those of another one only as far as it has their options.

    A rule that was taken over says so.
    """
    listed = frozenset(release.rule_ids)
    found = (rule for rule in rows("rules") if rule.everywhere or rule.id in listed)
    origin = release.carried_from.get("rules")
    if origin is None:
        return tuple(found)
    gone = _all_names() - _names(release)
    return tuple(
        rule
        if rule.everywhere
        else replace(rule, message=f"{rule.message} (a rule of {origin}, taken over)")
        for rule in found
        if all(_has(release, path) for path in rule.options())
        and gone.isdisjoint(
            spelled for word in _WORD.findall(rule.fix) for spelled in (word, f".{word}")
        )
    )


def _has(release: Release, path: str) -> bool:
    """Whether a release has an option, or a mapping of any keys that it may stand in."""
    if path in release.paths:
        return True
    above = release.paths.get(path.rpartition(".")[0], ())
    return any(row["type"] in ("mapping", "any") for row in above)


def _names(release: Release) -> set[str]:
    """Names of options, as `.name` of those at the top: a remedy means these by a bare name."""
    inner = {name for path in release.paths for name in path.split(".")}
    return inner | {f".{name}" for name in release.top_level}


@cache
def _all_names() -> frozenset[str]:
    """Names of options that some release has, as far as no other word is spelled like them."""
    names = {name for known in releases.known() for name in _names(releases.load(known))}
    return frozenset(name for name in names if "_" in name)


def broken(view: View, strict: bool = False) -> Iterator[Diagnostic]:
    """Every broken rule of the view's release; with `strict`, values without effect are errors."""
    reported: set[str] = set()
    for rule in of_release(view.situation.release):
        if reported.intersection(rule.unless):
            continue
        operand = rule.broken(view)
        if operand is not None:
            reported.add(rule.id)
            where = rule.where or operand.removeprefix("effective.")
            problem = rule.problem(where, view.value)
            yield replace(problem, severity="error") if strict and rule.ignored else problem


def holds(view: View, operand: str, test: Any) -> bool | None:
    """Whether an operand passes a test; `None` where its value cannot be judged.

    A scalar asks for that value, a list for one of its values, a mapping for each of its
    relations.
    """
    if isinstance(test, Mapping):
        results = [RELATIONS[name](view, operand, other) for name, other in test.items()]
        return False if False in results else None if None in results else True
    return _is(view, operand, test)


def _is(view: View, operand: str, expected: Any) -> bool | None:
    value = view.value(operand)
    if isinstance(expected, list):
        results = [_same(value, item) for item in expected]
        return True if True in results else None if None in results else False
    return _same(value, expected)


def _same(value: Any, expected: Any) -> bool | None:
    if value is MISSING:
        return None
    if value is None or expected is None:
        return value is expected
    if isinstance(expected, bool):
        truth = as_truth(value)
        return None if truth is None else truth is expected
    if isinstance(expected, int | float):
        number = as_number(value)
        return None if number is None else number == expected
    if isinstance(value, str) and isinstance(expected, str):
        return value.casefold() == expected.casefold()
    return None


def _not(view: View, operand: str, other: Any) -> bool | None:
    result = _is(view, operand, other)
    return None if result is None else not result


def _given(view: View, operand: str, expected: bool) -> bool:
    return (view.value(operand) not in (MISSING, None)) is expected


def _equals(view: View, operand: str, other: str) -> bool | None:
    return same(view.value(operand), view.value(other))


def _in(view: View, operand: str, other: str) -> bool | None:
    values = view.value(other)
    return None if values is MISSING else _is(view, operand, values)


def _compared(
    compare: Callable[[float, float], bool],
) -> Callable[[View, str, str | float], bool | None]:
    def relation(view: View, operand: str, other: str | float) -> bool | None:
        one, two = view.number(operand), view.number(other)
        return None if one is None or two is None else compare(one, two)

    return relation


RELATIONS: dict[str, Callable[[View, str, Any], bool | None]] = {
    "given": _given,
    "not": _not,
    "in": _in,
    "equals": _equals,
    "at_least": _compared(lambda one, two: one >= two),
    "at_most": _compared(lambda one, two: one <= two),
    "above": _compared(lambda one, two: one > two),
    "divides": _compared(lambda one, two: one > 0 and two % one == 0),
    "multiple_of": _compared(lambda one, two: two <= 0 or one % two == 0),
}


def same(one: Any, two: Any) -> bool | None:
    """Whether two values mean the same to the engine; `None` where one is unknown or odd."""
    if isinstance(one, list | dict) and type(one) is type(two):
        return bool(one == two)
    forward = _same(one, two) if two is not MISSING else None
    return forward if forward is not None or one is MISSING else _same(two, one)


def _show(value: Any) -> str:
    if value is MISSING:
        return "not given"
    if isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        text = ", ".join(map(str, value))
    elif isinstance(value, str):
        text = value
    elif isinstance(value, float) and value.is_integer():
        text = str(int(value))
    else:
        text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
