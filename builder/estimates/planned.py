"""The question that a plan asks: its layout, its drafts and its load; and plans that ask none."""

from __future__ import annotations

from .. import site
from ..planning import Plan
from ..planning.decision import concurrency_per_instance
from . import models
from .options import STAGES, layout_of
from .question import Question


def question(plan: Plan, concurrency: int | None = None) -> Question:
    """How fast is one server of this plan under its share of the load, or of another?

    `concurrency` is requests at a time over all servers of the deployment.
    """
    request, facts = plan.deployment, plan.facts
    values = {row.path: row.value for row in (*plan.engine_defaults, *plan.decisions)}
    tp, attention_dp, ep, drafts = layout_of(values)
    share = concurrency_per_instance(request)
    if concurrency is not None:
        share = -(-concurrency // request.instances)
    precision = facts.checkpoint.precision
    return Question(
        model=models.of_checkpoint(facts.checkpoint),
        gpu=request.hardware.gpu,
        precision=models.weight_precision(precision),
        engine=models.engine_name(request.engine.name),
        tp=tp,
        ep=ep,
        attention_dp=attention_dp,
        isl=request.workload.isl,
        osl=request.workload.osl,
        concurrency=share,
        release=request.engine.release,
        mtp=drafts,
    )


def unmeasured(plan: Plan) -> str:
    """Why no row is of servers like those of a plan; nothing where some may be."""
    request = plan.deployment
    if request.role != "agg":
        return "no row holds one side of disaggregated serving alone"
    if (request.targets.get(site.TARGET) or {}).get("prefill"):
        return "prompts have servers of their own, which no row was measured with"
    if request.draft is not None:
        return "a draft model proposes tokens, which no row was measured with"
    values = {row.path: row.value for row in (*plan.engine_defaults, *plan.decisions)}
    if (values.get(STAGES) or 1) > 1:
        return "the layers are split into stages, which no row was measured with"
    return ""
