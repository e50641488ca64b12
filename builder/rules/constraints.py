"""Constraints: checks options against each other, the model, the GPU, workload and flags.

The rules are rows of `builder/data/rules.yaml`; a release's table lists the rules that it adds to
those of all releases. The known defects of a release are rules too, with the same tests.
`validation` reports unknown keys and values of a wrong type; a rule that depends on such a value is
skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any, Literal, NamedTuple

from ..diagnosis.state import State, agrees
from ..diagnostics import Diagnostic
from ..documents import DATA
from ..facts import data_file
from ..facts import release as releases
from ..facts.engines import Engine
from ..facts.release import Release
from ..general_rules import Rule
from ..schema import Text
from . import defects
from .context import RuleContext
from .defects import Defect
from .evaluation import PLACEHOLDER, all_hold, condition_faults, holds, same, text_faults
from .rule_inputs import MISSING, RuleInputs, draft_tokens_path, is_fact, option_of

_WORD = re.compile(r"\w+")
_SHOWN = 60
_OWN_WORDS = ("_evidence", "_remedy")  # sentences of the data, which are shown whole


@dataclass(frozen=True)
class Constraint:
    """One rule. It is broken if every test of `when` holds and one of `must` certainly fails.

    A rule without `must` is broken by its `when` alone. Unless its `releases` are `all`, it applies
    to releases whose table lists its id. It is not reported if one of `unless` was. A rule with
    `ignored` finds a value without effect: a warning in files of users, an error in what the
    toolkit renders. `agree` is the word that two workers must share if `prefill`, tests of the
    prefill worker, hold; `where` is the path to blame.
    """

    id: Text
    severity: Literal["error", "warning"]
    message: Text
    fix: Text
    source: Text
    confidence: Text
    where: str = ""
    releases: Literal["all"] | None = None
    when: Mapping[str, Any] | None = None
    must: Mapping[str, Any] | None = None
    unless: tuple[str, ...] = ()
    ignored: bool = False
    agree: str = ""
    least: bool = False
    prefill: Mapping[str, Any] | None = None

    def inconsistencies(self) -> Iterator[tuple[str, str]]:
        """Conditions that cannot be evaluated."""
        for name in ("when", "must", "prefill"):
            for path, what in condition_faults(getattr(self, name) or {}):
                yield f"{name}.{path}", what
        for _, what in condition_faults({self.agree: True} if self.agree else {}):
            yield "agree", what

    @property
    def rule(self) -> Rule:
        """The entry in the table of rules."""
        docs = f"- {self.message}; {self.fix}. Source: {self.source}"
        return Rule(self.id, f"Options that do not fit together: {self.id}.", self.severity, docs)

    @property
    def everywhere(self) -> bool:
        """Whether it is a rule of all releases."""
        return self.releases == "all"

    def broken(self, inputs: RuleInputs) -> str | None:
        """The word to blame, `None` if the rule holds or cannot be evaluated."""
        if not self.applies(inputs):
            return None
        if not self.must:
            return self.where or next(iter(self.when or {}))
        for word, test in self.must.items():
            if holds(inputs, word, test) is False:
                return word
        return None

    @property
    def blamed(self) -> frozenset[str]:
        """The paths that the rule can blame."""
        if self.where:
            return frozenset({self.where})
        words = self.must or list(self.when or {})[:1]
        return frozenset(word.removeprefix("effective.") for word in words)

    def applies(self, inputs: RuleInputs) -> bool:
        """Whether every test of `when` holds for certain."""
        return all_hold(self.when or {}, inputs)

    @cached_property
    def needs(self) -> frozenset[str]:
        """The paths of options that must be set for the rule to be broken."""
        asked = [word for word, test in (self.when or {}).items() if test != {"given": False}]
        must = self.must or {}
        if len(must) == 1:
            asked += [word for word, test in must.items() if not _asks_presence(test)]
        return frozenset(word for word in asked if option_of(word) == word)

    @cached_property
    def _facts(self) -> tuple[Mapping[str, Any], str]:
        """The tests of `when` that do not depend on options, and the key under which a context
        keeps their result."""
        tests = (self.when or {}).items()
        found = {word: test for word, test in tests if is_fact(word) and not _compares(test)}
        return found, repr(found)

    def is_ruled_out(self, inputs: RuleInputs) -> bool:
        """Whether the facts alone decide that the rule does not apply."""
        facts, text = self._facts
        known = inputs.context.known
        if facts and text not in known:
            known[text] = all_hold(facts, inputs)
        return bool(facts) and not known[text]

    def options(self) -> Iterator[str]:
        """The paths of the options that the tests use, and of the one to blame."""
        for tests in (self.when or {}, self.must or {}):
            for word, test in tests.items():
                relations = test.items() if isinstance(test, Mapping) else ()
                others = [other for name, other in relations if name not in ("given", "not")]
                for name in (word, *(other for other in others if isinstance(other, str))):
                    if (option := option_of(name)) is not None:
                        yield option
        if self.where:
            yield self.where

    def problem(self, where: str, named: Callable[[str], Any]) -> Diagnostic:
        """The rule as a diagnostic, with `{name}` in its texts replaced by `named(name)`."""

        def fill(template: str) -> str:
            return PLACEHOLDER.sub(lambda match: shown(match[1]), template)

        def shown(name: str) -> str:
            return _show(named(name), is_whole=name.endswith(_OWN_WORDS))

        return Diagnostic(where, fill(self.message), fill(self.fix), self.rule, self.severity)


def _compares(test: Any) -> bool:
    relations = test.items() if isinstance(test, Mapping) else ()
    return any(isinstance(other, str) for name, other in relations if name != "not")


def _asks_presence(test: Any) -> bool:
    return isinstance(test, Mapping) and not {"given", "in"}.isdisjoint(test)


@dataclass(frozen=True, slots=True)
class RulesFile:
    """`rules.yaml`: rules, and by id why some rules have no row."""

    rules: tuple[Constraint, ...]
    agreements: tuple[Constraint, ...]
    flags: tuple[Constraint, ...]
    option_table: Mapping[str, Text]
    engine_conduct: Mapping[str, Text]

    def inconsistencies(self) -> Iterator[tuple[str, str]]:
        """Placeholders in messages that name no word or option."""
        for index, rule in enumerate(self.rules):
            yield from text_faults(rule.message, f"rules.{index}.message")
            yield from text_faults(rule.fix, f"rules.{index}.fix")


class KnownDefect(NamedTuple):
    """A defect that a deployment meets. `is_certain` is false where it holds only if a condition
    is true that neither the deployment nor the state of the machine tells."""

    product: str
    version: str
    row: Defect
    problem: Diagnostic
    is_certain: bool

    @property
    def text(self) -> str:
        """The defect, under which condition it holds, and the way around it."""
        only_if = f" (holds only if {self.row.condition})" if not self.is_certain else ""
        return f"{self.problem.message}{only_if}; {self.problem.fix}"

    def document(self) -> dict[str, Any]:
        """The defect as JSON; `only_if` is empty where it is certain."""
        row, problem = self.row, self.problem
        ids = {"id": row.id, "product": self.product, "version": self.version}
        texts = {"where": problem.where, "what": problem.message, "remedy": problem.fix}
        evidence = {"confidence": row.confidence, "source": row.source, "date": row.date}
        return {**ids, **texts, "only_if": "" if self.is_certain else row.condition, **evidence}


def known_defects(
    product: str, version: str, inputs: RuleInputs, state: State | None = None
) -> Iterator[KnownDefect]:
    """The known defects of a version for these options and facts, on a machine in this state."""
    for row, rule in _defects(product, version):
        holds = agrees(state or {}, row.only_if or {})
        if holds is False or not rule.applies(inputs):
            continue
        problem = rule.problem(row.where, inputs.value)
        yield KnownDefect(product, version, row, problem, holds is True and not row.unseen)


@lru_cache(maxsize=256)
def _defects(product: str, version: str) -> tuple[tuple[Defect, Constraint], ...]:
    """The defects of a version with the rules that find them."""
    found = []
    for row in defects.of_version(product, version):
        rule = _rule_of(row)
        found.append((row, replace(rule, message=rule.message.replace("{version}", version))))
    return tuple(found)


def _rule_of(row: Defect) -> Constraint:
    texts = row.fix, row.source, row.confidence, row.where
    return Constraint(row.rule, "warning", row.statement, *texts, when=row.when)


def load(engine: Engine) -> RulesFile:
    """The rules of all releases of an engine."""
    return data_file.load(DATA / engine.rules, RulesFile)


def every(engine: Engine) -> Iterator[Constraint]:
    """The rules of all releases of an engine, with those that find its known defects."""
    found = load(engine)
    yield from (*found.rules, *found.agreements, *found.flags)
    yield from map(_rule_of, defects.of_product(engine.product))


def flag_rule(name: str, engine: Engine) -> Constraint:
    """The rule for flags with this id."""
    (rule,) = (rule for rule in load(engine).flags if rule.id == name)
    return rule


@lru_cache(maxsize=16)
def of_release(release: Release) -> tuple[Constraint, ...]:
    """The rules for a release; rules of another release apply if it has their options.

    A rule from another release says so.
    """
    listed = frozenset(release.rule_ids)
    found = (rule for rule in load(release.engine).rules if rule.everywhere or rule.id in listed)
    origin = release.carried_from.get("rules")
    if origin is None:
        return tuple(found)
    gone = _all_names(release.engine) - _names(release)
    rules = []
    for rule in found:
        words = set(_WORD.findall(rule.fix))
        remedy_has = words | {f".{word}" for word in words}
        if not all(map(release.has, rule.options())) or gone & remedy_has:
            continue
        if not rule.everywhere:
            rule = replace(rule, message=f"{rule.message} (a rule of {origin}, taken over)")
        rules.append(rule)
    return tuple(rules)


def _names(release: Release) -> set[str]:
    """Names of options, as `.name` of those at the top: a remedy means these by a bare name."""
    inner = {f".{name}" for name in release.top_level}
    for path in release.paths:
        inner.update(path.split("."))
    return inner


@cache
def _all_names(engine: Engine) -> frozenset[str]:
    """Names of options of any release, without names that also mean something else."""
    names = set[str]().union(*map(_names, releases.of_engine(engine)))
    return frozenset(name for name in names if "_" in name)


@lru_cache(maxsize=4096)
def _rules(release: Release, blamed: str | None) -> tuple[Constraint, ...]:
    """The rules and known defects of a release; with a path, only the rules that can blame it.

    Defects that hold only on some machines are left out.
    """
    found = _defects(release.engine.product, release.judged_name)
    rules = (*of_release(release), *(rule for row, rule in found if not row.condition))
    if blamed is None:
        return rules
    wanted = {rule.id for rule in rules if blamed in rule.blamed}
    depending: set[str] = set()
    while depending != wanted:
        depending = set(wanted)
        for rule in rules:
            if rule.id in depending:
                wanted.update(rule.unless)
    return tuple(rule for rule in rules if rule.id in wanted)


def violations(
    options: Mapping[str, Any],
    context: RuleContext,
    strict: bool = False,
    blamed: str | None = None,
) -> Iterator[Diagnostic]:
    """Every rule that these options break; `where` is the dotted path of the value to blame.

    With `strict`, a value that the engine ignores is an error instead of a warning. With `blamed`,
    rules that cannot blame that path are skipped, unless a rule that can depends on them.
    """
    inputs = RuleInputs(options, context)
    reported: set[str] = set()
    set_paths = frozenset(_paths(options))
    for rule in _rules(context.release, blamed):
        if not rule.needs <= set_paths or rule.is_ruled_out(inputs):
            continue
        if reported.intersection(rule.unless):
            continue
        word = rule.broken(inputs)
        if word is not None:
            reported.add(rule.id)
            where = rule.where or word.removeprefix("effective.")
            problem = rule.problem(where, inputs.value)
            yield replace(problem, severity="error") if strict and rule.ignored else problem


def _paths(options: Any, above: str = "") -> Iterator[str]:
    """The dotted path of everything that options hold, lists not entered."""
    if not isinstance(options, Mapping):
        return
    for key, value in options.items():
        yield (path := f"{above}{key}")
        yield from _paths(value, f"{path}.")


def disagreements(
    prefill: Mapping[str, Any], decode: Mapping[str, Any], context: RuleContext
) -> Iterator[Diagnostic]:
    """Values that a prefill and a decode worker must share, and do not.

    `where` is the path in the decode worker's options.
    """
    one, two = RuleInputs(prefill, context), RuleInputs(decode, context)
    for rule in load(context.release.engine).agreements:
        if not (rule.everywhere or rule.id in context.release.rule_ids):
            continue
        if not all_hold(rule.prefill or {}, one):
            continue
        if not any(rule.applies(inputs) for inputs in (one, two)):
            continue
        values = {"prefill": one.value(rule.agree), "decode": two.value(rule.agree)}
        values["release"] = context.release.name
        if _is_below(values) if rule.least else same(values["prefill"], values["decode"]) is False:
            where = rule.where or rule.agree.removeprefix("effective.")
            if rule.agree == "draft_tokens":
                where = draft_tokens_path(decode)
            yield rule.problem(where, values.__getitem__)


def _is_below(values: Mapping[str, Any]) -> bool:
    sizes = [values[name] for name in ("decode", "prefill")]
    return all(type(size) is int for size in sizes) and sizes[0] < sizes[1]


def _show(value: Any, is_whole: bool) -> str:
    if value is MISSING:
        return "not given"
    if isinstance(value, list | tuple) and not any(isinstance(item, list | dict) for item in value):
        text = ", ".join(map(str, value))
    elif isinstance(value, str):
        text = value
    elif isinstance(value, float) and value.is_integer():
        text = str(int(value))
    else:
        text = json.dumps(value, default=str)
    return text if is_whole or len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
