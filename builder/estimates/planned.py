"""The question that a plan asks: its layout, its drafts and its load."""

from __future__ import annotations

from ..planning import Plan
from ..planning.decision import concurrency_per_instance
from . import models
from .options import layout_of
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
