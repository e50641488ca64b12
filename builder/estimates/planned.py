"""The question that a plan asks: its layout, its drafts and its load."""

from __future__ import annotations

from ..planning import Plan
from ..planning.decision import concurrency_per_instance
from ..planning.plan_builder import MTP_DRAFT_TOKENS
from . import models
from .question import Question

# Where a plan has the number of draft tokens: its own name of the option, or a release's.
DEPTHS = ("num_nextn_predict_layers", "max_draft_len", "num_speculative_tokens")
_DRAFTS = (MTP_DRAFT_TOKENS, *(f"speculative_config.{name}" for name in DEPTHS))


def question(plan: Plan, concurrency: int | None = None) -> Question:
    """How fast is one server of this plan under its share of the load, or of another?

    `concurrency` is requests at a time over all servers of the deployment.
    """
    request, facts = plan.deployment, plan.facts
    values = {row.path: row.value for row in (*plan.engine_defaults, *plan.decisions)}
    copies = int(values.get("data_parallel_size") or 1)
    gpus = int(values["tensor_parallel_size"]) * copies
    attention_dp = gpus if values.get("enable_attention_dp") else copies
    experts = gpus if values.get("enable_expert_parallel") else 1
    drafts = [value for path in _DRAFTS if isinstance(value := values.get(path), int)]
    share = concurrency_per_instance(request)
    if concurrency is not None:
        share = -(-concurrency // request.instances)
    precision = facts.checkpoint.precision
    return Question(
        model=models.of_checkpoint(facts.checkpoint),
        gpu=request.hardware.gpu,
        precision=models.weight_precision(precision),
        engine=models.engine_name(request.engine.name),
        tp=gpus // attention_dp,
        ep=int(values.get("moe_expert_parallel_size") or experts),
        attention_dp=attention_dp,
        isl=request.workload.isl,
        osl=request.workload.osl,
        concurrency=share,
        release=request.engine.release,
        mtp=int(max(drafts, default=0)),
    )
