"""The plan builder: the decisions so far, and how a value is chosen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from ..deployment import Deployment
from ..diagnostics import Diagnostic
from ..facts.published_results import Published
from ..general_rules import MISSING_KEY
from ..rules import heuristics
from ..rules.constraints import violations
from ..rules.context import RuleContext
from ..rules.heuristics import Heuristic, HeuristicRow
from ..rules.options import set_option
from ..rules.rule_inputs import RuleInputs
from ..rules.validation import validate
from .decision import Decision, Evidence, Facts

DRAFT_METHOD = "speculative_config.decoding_type"
MTP_DRAFT_TOKENS = "mtp_draft_tokens"  # an alias: each release has its own option for it

# Options that a user may set instead; the engine refuses or ignores both together.
_INSTEAD: dict[str, tuple[str, ...]] = {
    "cuda_graph_config.batch_sizes": ("cuda_graph_config.max_batch_size",),
    MTP_DRAFT_TOKENS: (
        "speculative_config.max_draft_len",
        "speculative_config.num_nextn_predict_layers",
    ),
}


@dataclass
class PlanBuilder:
    """What is decided so far, and the problems found.

    `overrides` are flat option paths, `asked` options that were read while unset, and `left_out`
    decisions to set nothing.
    """

    deployment: Deployment
    facts: Facts
    overrides: Mapping[str, Any]
    decisions: dict[str, Decision] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)
    asked: dict[str, None] = field(default_factory=dict)
    left_out: dict[str, Decision] = field(default_factory=dict)
    # What follows from the decisions until the next one.
    _inputs: RuleInputs | None = None

    @cached_property
    def context(self) -> RuleContext:
        """The facts that rules and heuristics ask for."""
        return self.facts.rule_context(self.deployment)

    @cached_property
    def published(self) -> list[Published]:
        """Published deployments of this shape that were measured at this concurrency."""
        concurrency = self.deployment.workload.concurrency
        if self.deployment.instances > 1:
            return []  # each of them was one server on all its GPUs
        own = self.facts.release.engine.name
        return [
            row
            for row in self.facts.published
            if concurrency <= row.max_concurrency
            and (not row.options or row.engine.partition(" ")[0].replace("-", "_") == own)
        ]

    @cached_property
    def published_options(self) -> frozenset[str]:
        """Options of published deployments of this shape: there, heuristics add no others."""
        return frozenset(chain.from_iterable(row.options for row in self.published))

    def refuse(self, where: str, what: str, remedy: str) -> None:
        """Report an error; the plan ends after all errors are found."""
        self.diagnostics.append(Diagnostic(where, what, remedy))

    def warn(self, where: str, what: str, remedy: str) -> None:
        self.warnings.append(Diagnostic(where, what, remedy, severity="warning"))

    def leave_out(self, path: str, why: str, source: str, value: Any = None) -> None:
        """Set nothing, and say why; `value` is the engine's default, if it is known."""
        self.left_out[path] = Decision(path, value, f"Not set: {why}", "engine default", source)

    def apply(self, section: str) -> None:
        """Decide the options of a section of the heuristics."""
        for heuristic in heuristics.section(section, self.facts.release.engine):
            self.apply_heuristic(heuristic)

    def apply_heuristic(self, heuristic: Heuristic) -> None:
        """Take the first row that fits and whose value the release accepts."""
        option = heuristic.option
        exact = self.published_options and option not in self.published_options
        if exact and not heuristic.needed:
            return
        inputs = self.inputs()
        for row in heuristic.fitting(inputs):
            if row.use_engine_default:
                if row.said and self.overriding(self.facts.release.option_path(option)) is None:
                    default = self.facts.release.default(option)
                    self.leave_out(option, row.reason, row.source, default)
                return
            value = row.evaluate(inputs)
            if not self.is_valid_choice(option, value):
                continue
            is_default = value == self.facts.release.default(option)
            if exact and is_default and self.overriding(option) is None:
                why = "the published deployment leaves it to the engine, and its own value holds."
                self.leave_out(option, f"{why} {row.reason}", row.source, value)
                return
            self.decide(option, value, row.reason, self.grade(row), row.source)
            return

    def grade(self, row: HeuristicRow) -> Evidence:
        """A row's evidence; configurations of other models or GPUs prove nothing for this one."""
        found = row.evidence or "assumed"
        return "assumed" if row.count and found == "documented" and not self.covered else found

    @cached_property
    def covered(self) -> bool:
        """Whether configurations of this model, precision, GPU and role were published."""
        engine = self.facts.release.engine
        inputs = RuleInputs({}, self.context)
        return bool(self.published_options) or heuristics.is_covered(inputs, engine)

    def is_valid_choice(self, path: str, value: Any) -> bool:
        """Whether the release has the option, accepts the value, and no rule is violated."""
        option = self.facts.release.option_path(path)
        if option not in self.facts.release.paths:
            return False
        parent, _, _ = option.rpartition(".")
        options = {option: value}
        if parent == "speculative_config":
            method = self.facts.release.option_path(DRAFT_METHOD)
            options = {method: self.given(DRAFT_METHOD)} | options
        found = validate(self.facts.release, nested(options))
        if any(row.severity == "error" and row.rule != MISSING_KEY for row in found):
            return False
        return not self._violates_rules(option, value)

    def _refusal(self, option: str, value: Any) -> str | None:
        """The rule of the release that a published value breaks, if any."""
        found = violations(nested({option: value}), self.context, blamed=option)
        faults = (row for row in found if (row.where, row.severity) == (option, "error"))
        return next((row.message for row in faults), None)

    def _violates_rules(self, option: str, value: Any) -> bool:
        """Whether a rule between options forbids a value, with and without the user's overrides.

        If only an override makes it wrong, that override is reported.
        """
        spell = self.facts.release.option_path
        decided = {spell(path): row for path, row in self.decisions.items()}
        own = {path: row.value for path, row in decided.items() if row.evidence != "override"}
        for options in (own | {option: value}, own | dict(self.overrides) | {option: value}):
            found = violations(nested(options), self.context, blamed=option)
            if all(row.where != option for row in found):
                return False
        return True

    def decide(self, path: str, value: Any, reason: str, evidence: Evidence, source: str) -> None:
        """Take the user's value, the published one, or the one given.

        What is derived from the request stays; a published value only confirms it.
        """
        spelled = self.facts.release.option_path(path)
        if owner := self.overriding(spelled):
            if owner == spelled and (choice := self.chosen(spelled)):
                self.take(path, choice)
            elif owner == spelled:
                text = f"Set in engine_config. The rule would give {json.dumps(value)}: {reason}"
                given = self.overrides[owner]
                self.take(path, Decision(path, given, text, "override", "deployment"))
            return
        if any(other in self.overrides for other in _INSTEAD.get(path, ())):
            return
        if any(other.startswith(f"{spelled}.") for other in self.overrides):
            return
        for row in self.published:
            if path not in row.options or path in self.refused:
                continue
            published = row.options[path]
            if published != value and (problem := self._refusal(spelled, published)):
                self.refused[path] = f"{reason} The published value would not run: {problem}."
                continue
            if published != value:
                if evidence == "derived":
                    continue
                rule = json.dumps(value)
                reason = f"The published deployment uses it; the rule would give {rule}."
            value, evidence, source = published, "documented", f"{row.source}; {source}"
        decided = Decision(path, value, reason, evidence, source)
        by_rows = None if evidence == "documented" else self.facts.estimated.get(path)
        self.take(path, by_rows or decided)

    def take(self, path: str, decision: Decision) -> None:
        self.decisions[path] = decision
        self._inputs = None

    def chosen(self, path: str) -> Decision | None:
        """What `choose` or `tune` decided, as long as `engine_config` still has its value."""
        choice = self.deployment.choice
        if choice is None or path not in choice.settings or path not in self.overrides:
            return None
        if (value := self.overrides[path]) != choice.settings[path]:
            return None
        return Decision(path, value, choice.reason, choice.evidence, choice.source)

    def overriding(self, path: str) -> str | None:
        """The override that sets `path` itself or a mapping above it."""
        while path:
            if path in self.overrides:
                return path
            path = path.rpartition(".")[0]
        return None

    def given(self, path: str) -> Any:
        """What is decided or set for a path so far, or `None`."""
        spelled = self.facts.release.option_path(path)
        for name in (path, spelled):
            if name in self.decisions:
                return self.decisions[name].value
        return self.overrides.get(spelled)

    def value(self, path: str) -> Any:
        """What the engine will use for an option: what is given, or its own default."""
        given = self.given(path)
        if given is not None:
            return given
        spelled = self.facts.release.option_path(path)
        if spelled in self.facts.release.paths:
            self.asked[spelled] = None
        return self.facts.release.default(spelled)

    @property
    def copies(self) -> int:
        """The number of attention replicas with separate batches, in an engine that counts them."""
        return int(self.value("data_parallel_size") or 1)

    def draft_tokens(self) -> int:
        """Draft tokens per step, if they are decided."""
        given = self.given(MTP_DRAFT_TOKENS)
        if given is None and self.deployment.draft:
            given = self.given("speculative_config.max_draft_len")
        if given is None:
            own = self.facts.release.engine.draft_method
            given = 1 if self.given(DRAFT_METHOD) == own else 0
        return int(given)

    def inputs(self) -> RuleInputs:
        """The facts and the values so far, for heuristics."""
        if self._inputs is None:
            spell = self.facts.release.option_path
            decided = {spell(path): row.value for path, row in self.decisions.items()}
            self._inputs = RuleInputs(nested({**self.overrides, **decided}), self.context)
        return self._inputs


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by dotted paths as nested mappings; a value is replaced by one below it."""
    found: dict[str, Any] = {}
    for path, value in options.items():
        set_option(found, path, value)
    return found
