"""One plan in the making: what is known, what was decided so far, and how a value is chosen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, Literal

from .. import practice
from ..checkpoint import Checkpoint
from ..deployment import Deployment
from ..errors import Problem
from ..hardware import Gpu
from ..memory import Budget
from ..options import problems
from ..practice import Row, Rule
from ..release import Release
from ..results import Published

Evidence = Literal["measured", "documented", "derived", "assumed", "override"]

MTP_DRAFT_TOKENS = "mtp_draft_tokens"  # a release spells this its own way

# What a user may set in the place of a rule's option; the engine refuses or ignores both together.
_INSTEAD: dict[str, tuple[str, ...]] = {
    "cuda_graph_config.batch_sizes": ("cuda_graph_config.max_batch_size",),
    MTP_DRAFT_TOKENS: (
        "speculative_config.max_draft_len",
        "speculative_config.num_nextn_predict_layers",
    ),
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known, gathered before anything is decided.

    `draft` is the draft model's checkpoint, where its facts can be read on this machine.
    """

    checkpoint: Checkpoint
    gpu: Gpu
    release: Release
    published: tuple[Published, ...] = ()
    draft: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """One value. `path` is an option path, or a word that the release spells.

    Server flags have their own spelling, environment variables stand under `environment.`.
    """

    path: str
    value: Any
    reason: str
    evidence: Evidence
    source: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A published option that this plan does not use."""

    path: str
    published: Any
    planned: Any
    reason: str
    source: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All decisions, in the order in which they were made, and what they cost in memory.

    `flags` are those on the server's command line, `environment` the variables of the engine's
    processes; all other settings live in the option file.
    """

    deployment: Deployment
    facts: Facts
    decisions: tuple[Decision, ...]
    flags: tuple[Decision, ...]
    environment: tuple[Decision, ...]
    differences: tuple[Difference, ...]
    budget: Budget
    warnings: tuple[Problem, ...]


@dataclass
class Case:
    """What is decided so far, and the problems found. `overrides` are flat option paths."""

    deployment: Deployment
    facts: Facts
    overrides: Mapping[str, Any]
    decisions: dict[str, Decision] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

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
        for row in rule.fitting(self.situation()):
            if row.leaves:
                return
            value = practice.evaluate(row.value, self.situation())
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
        """Whether the release knows the option and takes the value."""
        spelled = self.facts.release.spell(path)
        if spelled not in self.facts.release.paths:
            return False
        *parents, last = spelled.split(".")
        options: dict[str, Any] = {last: value}
        if parents == ["speculative_config"]:
            options["decoding_type"] = self.given("speculative_config.decoding_type")
        for key in reversed(parents):
            options = {key: options}
        found = problems(self.facts.release, options)
        return not any(row.severity == "error" and row.rule != "missing-key" for row in found)

    def decide(self, path: str, value: Any, reason: str, evidence: Evidence, source: str) -> None:
        """Take the user's value, the published one, or the one given.

        What is derived from the request stays; a published value only confirms it.
        """
        spelled = self.facts.release.spell(path)
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
        return self.overrides.get(self.facts.release.spell(path))

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
        return {**self._request, **dict(self._decided())}

    @cached_property
    def _request(self) -> dict[str, Any]:
        workload, slo = self.deployment.workload, self.deployment.slo
        facts, config = self.facts, self.facts.checkpoint.config
        quantization = facts.checkpoint.quantization
        return {
            "role": self.deployment.role,
            "model_type": config.get("model_type"),
            "moe": facts.checkpoint.architecture.experts_field is not None,
            "precision": facts.checkpoint.precision,
            "quantized": quantization.quant_algo is not None,
            "kv_cache_quant_algo": quantization.kv_cache_quant_algo,
            "gpu": facts.gpu.name,
            "sm": facts.gpu.sm,
            "num_gpus": self.num_gpus,
            "concurrency": self.concurrency,
            "requests_per_gpu": -(-self.concurrency // self.num_gpus),
            "isl": workload.isl,
            "osl": workload.osl,
            "itl_slo": bool(slo and slo.itl_ms),
            "longest_context": facts.checkpoint.text_config.get("max_position_embeddings"),
            "release_number": _release_number(facts.release.name),
        }

    def _decided(self) -> Iterator[tuple[str, Any]]:
        attention_dp = self.value("enable_attention_dp")
        size, batch = self.value("tensor_parallel_size"), self.value("max_batch_size")
        isl, drafts = self.deployment.workload.isl, self.draft_tokens()
        decoding_type = self.given("speculative_config.decoding_type")
        draft = self.deployment.draft
        yield "tensor_parallel_size", size
        yield "attention_dp", attention_dp
        yield "requests_per_rank", -(-self.concurrency // (size if attention_dp else 1))
        yield "max_batch_size", batch
        yield "chunked_prefill", self.value("enable_chunked_prefill")
        yield "speculation", draft.method if draft else decoding_type
        yield "batch_tokens", batch * (1 + drafts) if batch else None
        yield "prompt_tokens", batch * isl if batch else None


def _release_number(name: str) -> float:
    """10201 for 1.2.1 and its candidates; a development table counts as the newest."""
    parts = [int(part) for part in re.findall(r"\d+", name)[:3]]
    if not name[0].isdigit() or len(parts) < 3:
        return inf
    return parts[0] * 10_000 + parts[1] * 100 + parts[2]
