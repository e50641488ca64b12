"""Plans a deployment: decides every engine value, with its reason. Pure.

A value comes from the user's `engine_config`, or else from a published deployment of the same
checkpoint on the same GPUs, or else from the heuristics of published configurations. `decision` has
the types that go in and out, `plan_builder` the decisions so far, `choices` those that need more
than rows of data. `requirements` refuses what cannot work, `memory` and `memory_budget` compute the
memory, and `server_flags` the flags of the command line.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..deployment import Deployment
from ..errors import BadInput
from ..facts.published_results import flatten
from ..facts.release import Release
from ..rules.flags import spellings
from ..rules.options import normalise
from .choices import environment, moe_backend, parallelism, speculation
from .decision import MONITORING, Decision, Difference, Evidence, Facts, Limits, Plan
from .memory_budget import budget_of, check_budget, limits_of, load_of, sharding_of
from .plan_builder import PlanBuilder
from .requirements import check_batch, check_draft, check_request
from .server_flags import check_parsers, server_flags

__all__ = [
    "MONITORING",
    "Decision",
    "Difference",
    "Evidence",
    "Facts",
    "Limits",
    "Plan",
    "engine_default",
    "plan",
]

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
    builder = PlanBuilder(deployment, facts, overrides)
    check_request(builder)
    check_draft(builder)
    if parallelism(builder):
        _decide_options(builder)
    if builder.diagnostics:
        raise BadInput(builder.diagnostics)
    _add_remaining_overrides(builder)
    budget = budget_of(builder)
    check_budget(builder, budget)
    if builder.diagnostics:
        raise BadInput(builder.diagnostics)
    _warn_without_evidence(builder)
    flags = check_parsers(builder, list(server_flags(builder)))
    return Plan(
        deployment,
        facts,
        tuple(builder.decisions.values()),
        tuple(row for row in flags if row.value is not None),
        tuple(environment(builder)),
        tuple(_differences(builder)),
        budget,
        limits_of(builder, budget),
        (
            *_engine_defaults(builder),
            *builder.left_out.values(),
            *(row for row in flags if row.value is None),
        ),
        tuple(builder.warnings),
        sharding_of(builder),
        load_of(builder),
    )


def _decide_options(builder: PlanBuilder) -> None:
    builder.apply("limits.batch")
    if not check_batch(builder):
        return
    speculation(builder)
    builder.apply("limits.tokens")
    builder.apply("cuda_graphs.whole")
    if "cuda_graph_config" not in builder.decisions:
        builder.apply("cuda_graphs.sizes")
    builder.apply("kv_cache.type")
    builder.apply("kv_cache.pool")
    moe_backend(builder)
    for name in ("communication", "scheduling", "transfer", "monitoring", "guidance"):
        builder.apply(f"{name}.rules")


def _add_remaining_overrides(builder: PlanBuilder) -> None:
    spelled = {builder.facts.release.option_path(path) for path in builder.decisions}
    for path, value in builder.overrides.items():
        if path not in spelled:
            reason = "Set in engine_config; no rule decides it."
            own = Decision(path, value, reason, "override", "deployment")
            builder.take(path, builder.chosen(path) or own)


def _warn_without_evidence(builder: PlanBuilder) -> None:
    """Warns if the values come from configurations of other models."""
    if builder.covered:
        return
    facts, role = builder.facts, builder.deployment.role
    server = "server" if role == "agg" else f"{role} server"
    what = (
        f"no published configuration of {facts.checkpoint.name} on {facts.gpu.name} is known for "
        f"this kind of {server}: values marked assumed follow other models"
    )
    remedy = "measure before production; set what you know in engine_config"
    builder.warn("checkpoint", what, remedy)


def _engine_defaults(builder: PlanBuilder) -> Iterator[Decision]:
    """Options that the plan read but did not set, if the engine's value is known in advance."""
    spell, release = builder.facts.release.option_path, builder.facts.release
    decided = {spell(path) for path in builder.decisions}
    for path in builder.asked:
        if path not in {*decided, *builder.left_out} and not builder.overriding(path):
            row = engine_default(release, path)
            if row.value is not None:
                yield row


def engine_default(release: Release, path: str) -> Decision:
    """What the engine uses for an option or server flag that is not set.

    The value is `None` if the engine decides it when it starts.
    """
    if path in release.paths:
        value = release.default(path)
        sure = [row["confidence"] for row in release.paths[path] if "uncertain" in row]
    else:
        value, sure = spellings(release)[path].default, []
    own = (
        "off, or found by the engine when it starts" if value is None else "the engine's own value"
    )
    source = "; ".join([f"option table of release {release.name}", *sure[:1]])
    return Decision(path, value, f"Not set: {own}.", "engine default", source)


def _differences(builder: PlanBuilder) -> Iterator[Difference]:
    """Published options that the plan sets to other values, each with the reason."""
    for row in builder.published:
        for path, published in row.options.items():
            planned = builder.given(path)
            if planned == published:
                continue
            reason = builder.refused.get(path) or _NOT_TAKEN.get(path)
            if not reason and path in builder.decisions:
                decision = builder.decisions[path]
                reason = f"{decision.reason} ({decision.source})"
            yield Difference(path, published, planned, reason or _OVERRIDDEN, row.source)
