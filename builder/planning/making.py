"""The order in which a plan is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from ..deployment import Deployment
from ..diagnostics import Diagnostic
from ..errors import BadInput
from ..facts.published_results import flatten
from ..rules.options import normalise
from . import limits, memory_budget, parallelism, speculation, watching
from .case import Case
from .decision import Decision, Difference, Evidence, Facts, Plan
from .environment import environment
from .moe import moe

# Options of published deployments that are not taken over, and why.
_NOT_TAKEN: dict[str, str] = {
    "trust_remote_code": (
        "Off unless engine_config asks for it: it runs Python code from the checkpoint on the "
        "server, and the engine has this architecture built in."
    ),
}

_OVERRIDDEN = "Set otherwise in engine_config."


def plan(deployment: Deployment, facts: Facts) -> Plan:
    """Decide every engine value.

    Raises `BadInput` with the numbers if the deployment is impossible.
    """
    overrides = flatten(normalise(facts.release, deployment.engine_config))
    case = Case(deployment, facts, overrides)
    limits.check_request(case)
    limits.check_draft(case)
    if parallelism.decide(case):
        _decide_options(case)
    if case.diagnostics:
        raise BadInput(case.diagnostics)
    _add_remaining_overrides(case)
    budget = memory_budget.of(case)
    memory_budget.check(case, budget)
    if case.diagnostics:
        raise BadInput(case.diagnostics)
    _warn_without_evidence(case)
    return Plan(
        deployment,
        facts,
        tuple(case.decisions.values()),
        tuple(_server_flags(facts)),
        tuple(environment(case)),
        tuple(_differences(case)),
        budget,
        tuple(case.warnings),
    )


def _decide_options(case: Case) -> None:
    case.follow("limits.batch")
    if not limits.check_batch(case):
        return
    speculation.decide(case)
    case.follow("limits.tokens")
    case.follow("cuda_graphs.whole")
    if "cuda_graph_config" not in case.decisions:
        case.follow("cuda_graphs.sizes")
    case.follow("kv_cache.type")
    case.follow("kv_cache.pool")
    moe(case)
    for chapter in ("communication.rules", "scheduling.rules", "transfer.rules"):
        case.follow(chapter)
    watching.decide(case)


def _add_remaining_overrides(case: Case) -> None:
    """Overrides of options that no rule decides."""
    spelled = {case.facts.release.option_path(path) for path in case.decisions}
    for path, value in case.overrides.items():
        if path not in spelled:
            reason = "Set in engine_config; no rule decides it."
            case.decisions[path] = Decision(path, value, reason, "override", "deployment")


def _warn_without_evidence(case: Case) -> None:
    """A deployment whose values rest on other models says so."""
    if case.covered:
        return
    facts, role = case.facts, case.deployment.role
    server = "server" if role == "agg" else f"{role} server"
    what = (
        f"no published configuration of {facts.checkpoint.name} on {facts.gpu.name} is known for "
        f"this kind of {server}: values marked assumed follow other models"
    )
    remedy = "measure before production; set what you know in engine_config"
    case.warnings.append(Diagnostic("checkpoint", what, remedy, severity="warning"))


def _server_flags(facts: Facts) -> Iterator[Decision]:
    """Flags of the server's command line that the model needs."""
    for row in facts.release.flags_for(facts.checkpoint.architecture.name):
        path, evidence = facts.release.spelling(row["flag"]), cast(Evidence, row["evidence"])
        yield Decision(path, row["value"], row["reason"], evidence, row["source"])


def _differences(case: Case) -> Iterator[Difference]:
    """Published options that the plan sets otherwise, each with the reason."""
    for row in case.published:
        for path, published in row.options.items():
            planned = case.given(path)
            if planned == published:
                continue
            reason = case.refused.get(path) or _NOT_TAKEN.get(path)
            if not reason and path in case.decisions:
                decision = case.decisions[path]
                reason = f"{decision.reason} ({decision.source})"
            yield Difference(path, published, planned, reason or _OVERRIDDEN, row.source)
