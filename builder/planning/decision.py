"""The types of a plan: its facts, decisions, limits and differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..deployment import Deployment
from ..diagnostics import Diagnostic
from ..facts.checkpoint import Checkpoint
from ..facts.hardware import Gpu
from ..facts.memory import Budget, Load, Sharding
from ..facts.published_results import Published
from ..facts.release import Release
from ..rules.context import RuleContext

MONITORING = "monitoring"  # the target that asks the engine for metrics
Evidence = Literal[
    "measured", "documented", "derived", "estimated", "assumed", "override", "engine default"
]


def gpus_per_instance(deployment: Deployment) -> int:
    return max(1, deployment.hardware.num_gpus // deployment.instances)


def concurrency_per_instance(deployment: Deployment) -> int:
    """The requests at the same time of one instance, rounded up."""
    return -(-deployment.workload.concurrency // deployment.instances)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known, gathered before anything is decided.

    `draft` is the draft model's checkpoint, if its facts can be read on this machine. `estimated`
    are decisions by path that measurements change.
    """

    checkpoint: Checkpoint
    gpu: Gpu
    release: Release
    published: tuple[Published, ...] = ()
    draft: Checkpoint | None = None
    estimated: Mapping[str, Decision] = field(default_factory=dict)

    def rule_context(self, deployment: Deployment) -> RuleContext:
        """The facts for rules and heuristics before anything is decided."""
        workload, slo = deployment.workload, deployment.slo
        return RuleContext.of(
            self.release,
            self.checkpoint,
            role=deployment.role,
            gpu=self.gpu,
            isl=workload.isl,
            osl=workload.osl,
            num_gpus=gpus_per_instance(deployment),
            concurrency=concurrency_per_instance(deployment),
            workload_concurrency=workload.concurrency,
            draft_method=deployment.draft.method if deployment.draft else None,
            has_itl_slo=bool(slo and slo.itl_ms),
            is_monitored=MONITORING in deployment.targets,
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """One value. `path` is an option path, or an alias that the release spells.

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
class Limits:
    """What the servers accept; a rank is the GPUs that share one attention, with its own batch.

    The longest prompt leaves room for one answer token; `bounded_by` says what bounds it. Of
    requests of `tokens_per_request`, `kv_requests_per_rank` fit into the KV cache of a rank and
    `batch_requests_per_rank` into one step, which has at most `step_tokens_per_rank`;
    batches of up to `graph_requests_per_rank` run as CUDA graphs, of none where it is 0.
    """

    longest_prompt_tokens: int
    bounded_by: str
    tokens_per_request: int
    instances: int
    ranks: int
    kv_tokens_per_rank: int
    kv_requests_per_rank: int
    batch_requests_per_rank: int
    step_tokens_per_rank: int
    graph_requests_per_rank: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All decisions, in the order in which they were made, and what they cost in memory.

    `flags` go on the server's command line, `environment` are variables of the engine's processes;
    all other settings are in the option file. `engine_defaults` are unset options that the memory
    budget or the limits depend on. `sharding` and `load` are what the budget was computed from.
    """

    deployment: Deployment
    facts: Facts
    decisions: tuple[Decision, ...]
    flags: tuple[Decision, ...]
    environment: tuple[Decision, ...]
    differences: tuple[Difference, ...]
    budget: Budget
    limits: Limits
    engine_defaults: tuple[Decision, ...]
    warnings: tuple[Diagnostic, ...]
    sharding: Sharding
    load: Load
