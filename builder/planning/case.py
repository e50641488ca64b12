"""One plan in the making: what was decided so far, and how a value is chosen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..deployment import Deployment
from ..diagnostics import Diagnostic
from ..facts import heuristics as practice
from ..facts.heuristics import Row, Rule
from ..facts.published_results import Published
from ..rules.constraints import broken
from ..rules.options import problems
from . import words
from .decision import Decision, Evidence, Facts

MTP_DRAFT_TOKENS = "mtp_draft_tokens"  # a release spells this its own way

# What a user may set in the place of a rule's option; the engine refuses or ignores both together.
_INSTEAD: dict[str, tuple[str, ...]] = {
    "cuda_graph_config.batch_sizes": ("cuda_graph_config.max_batch_size",),
    MTP_DRAFT_TOKENS: (
        "speculative_config.max_draft_len",
        "speculative_config.num_nextn_predict_layers",
    ),
}


@dataclass
class Case:
    """What is decided so far, and the problems found. `overrides` are flat option paths."""

    deployment: Deployment
    facts: Facts
    overrides: Mapping[str, Any]
    decisions: dict[str, Decision] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)

    @cached_property
    def published(self) -> list[Published]:
        """Published deployments of this shape that were measured at this concurrency."""
        concurrency = self.deployment.workload.concurrency
        if self.deployment.instances > 1:
            return []  # each of them was one server on all its GPUs
        return [row for row in self.facts.published if concurrency <= row.max_concurrency]

    @cached_property
    def published_options(self) -> frozenset[str]:
        """The options of published deployments of this shape: there, practice adds no others."""
        return frozenset(path for row in self.published for path in row.options)

    @property
    def num_gpus(self) -> int:
        """The GPUs of one instance."""
        return max(1, self.deployment.hardware.num_gpus // self.deployment.instances)

    @property
    def concurrency(self) -> int:
        """The requests at the same time of one instance."""
        return -(-self.deployment.workload.concurrency // self.deployment.instances)

    def follow(self, chapter: str) -> None:
        """Decide the options of a chapter of the practice."""
        for rule in practice.rules(chapter):
            self.follow_rule(rule)

    def follow_rule(self, rule: Rule) -> None:
        """Take the first row that fits the situation and whose value the release accepts."""
        exact = self.published_options and rule.option not in self.published_options
        if exact and not rule.needed:
            return
        situation = self.situation()
        for row in rule.fitting(situation):
            if row.leaves:
                return
            value = practice.evaluate(row.value, situation)
            if not self.accepts(rule.option, value):
                continue
            default = self.facts.release.default(rule.option)
            larger_only = rule.above_default and not row.below_default and default is not None
            if larger_only and value <= default:
                return
            self.decide(rule.option, value, row.reason, self.grade(row), row.source)
            return

    def grade(self, row: Row) -> Evidence:
        """A row's evidence; configurations of other models or GPUs are none for this one."""
        other = row.counted and row.evidence == "documented" and not self.covered
        return "assumed" if other else row.evidence

    @cached_property
    def covered(self) -> bool:
        """Whether configurations of this model, precision, GPU and role were published."""
        return bool(self.published_options) or practice.covers(self._request)

    def accepts(self, path: str, value: Any) -> bool:
        """Whether the release knows the option, takes the value, and no rule objects to it."""
        spelled = self.facts.release.option_path(path)
        if spelled not in self.facts.release.paths:
            return False
        parent, _, _ = spelled.rpartition(".")
        options = {spelled: value}
        if parent == "speculative_config":
            options[f"{parent}.decoding_type"] = self.given(f"{parent}.decoding_type")
        found = problems(self.facts.release, nested(options))
        if any(row.severity == "error" and row.rule != "missing-key" for row in found):
            return False
        return not self._objections(spelled, value)

    def _objections(self, spelled: str, value: Any) -> bool:
        """Whether a cross-field rule speaks against a value, whatever the user set beside it.

        What only an override makes wrong is not the value's fault: that override is reported.
        """
        spell = self.facts.release.option_path
        decided = {spell(path): row for path, row in self.decisions.items()}
        own = {path: row.value for path, row in decided.items() if row.evidence != "override"}
        situation = self.facts.situation(self.deployment)
        return all(
            any(problem.where == spelled for problem in broken(nested(options), situation))
            for options in (own | {spelled: value}, own | dict(self.overrides) | {spelled: value})
        )

    def decide(self, path: str, value: Any, reason: str, evidence: Evidence, source: str) -> None:
        """Take the user's value, the published one, or the one given.

        What is derived from the request stays; a published value only confirms it.
        """
        spelled = self.facts.release.option_path(path)
        if owner := self.overriding(spelled):
            if owner == spelled:
                text = f"Set in engine_config. The rule would give {json.dumps(value)}: {reason}"
                given = self.overrides[owner]
                self.decisions[path] = Decision(path, given, text, "override", "deployment")
            return
        if any(other in self.overrides for other in _INSTEAD.get(path, ())):
            return
        for row in self.published:
            if path not in row.options or path in self.refused:
                continue
            published = row.options[path]
            if published != value:
                if evidence == "derived":
                    continue
                rule = json.dumps(value)
                reason = f"The published deployment uses it; the rule would give {rule}."
            value, evidence, source = published, "documented", f"{row.source}; {source}"
        self.decisions[path] = Decision(path, value, reason, evidence, source)

    def overriding(self, path: str) -> str | None:
        """The override that sets `path` itself or a mapping above it."""
        while path:
            if path in self.overrides:
                return path
            path = path.rpartition(".")[0]
        return None

    def given(self, path: str) -> Any:
        """What is decided or set for a path so far, or `None`."""
        if path in self.decisions:
            return self.decisions[path].value
        return self.overrides.get(self.facts.release.option_path(path))

    def value(self, path: str) -> Any:
        """What the engine will use for an option: what is given, or its own default."""
        given = self.given(path)
        return self.facts.release.default(path) if given is None else given

    def draft_tokens(self) -> int:
        """Tokens that are drafted per step, as far as it is decided."""
        given = self.given(MTP_DRAFT_TOKENS)
        if given is None and self.deployment.draft:
            given = self.given("speculative_config.max_draft_len")
        if given is None:
            given = 1 if self.given("speculative_config.decoding_type") == "MTP" else 0
        return int(given)

    def situation(self) -> dict[str, Any]:
        """The words that rows of the practice may ask for."""
        return {**self._request, **words.of_decisions(self)}

    @cached_property
    def _request(self) -> dict[str, Any]:
        return words.of_request(self)


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by dotted paths as nested mappings; what cannot hold a deeper path gives way."""
    found: dict[str, Any] = {}
    for path, value in options.items():
        *parents, last = path.split(".")
        place = found
        for key in parents:
            if not isinstance(place.get(key), dict):
                place[key] = {}
            place = place[key]
        place[last] = value
    return found
