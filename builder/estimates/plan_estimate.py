"""How fast a plan is by the rows that ship: what its bundle, its runbook and its reports say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..facts.published_results import UNITS, Published
from ..planning import Plan
from ..planning.choices import SIZE
from ..planning.plan_builder import MTP_DRAFT_TOKENS
from . import batch, fits, measuring_plan, models, planned
from .cells import key_of
from .estimator import Estimator
from .kriging import Kernel
from .measurements import Row
from .options import layout_of
from .question import Estimate, Interval, Question, Refusal, number, rows_text

INTERVAL = "80 %"
UNMEASURED = "unmeasured"
NO_ROW = "no measured row of"


@dataclass(frozen=True, slots=True)
class PublishedPoint:
    """A published figure, and the ends of the estimate of the same load: do they agree?"""

    source: str
    concurrency: int
    measure: str
    published: float
    low: float
    value: float
    high: float

    @property
    def agrees(self) -> bool:
        return self.low <= self.published <= self.high


def answer(plan: Plan) -> Estimate | Refusal:
    """How fast one server of a plan is under its share of the load."""
    asked = planned.question(plan)
    if not (reason := planned.unmeasured(plan)):
        return estimate(asked)
    if plan.deployment.role != "agg":
        return Refusal(asked, UNMEASURED, reason, ())
    return unmeasured(asked, reason)


def unmeasured(asked: Question, reason: str) -> Refusal:
    """The refusal of what no row is of, with what to measure."""
    measure = measuring_plan.plan(asked, Kernel(fits.load().tpot.without_release))
    return Refusal(asked, UNMEASURED, reason, measure)


@lru_cache(maxsize=256)
def estimate(question: Question) -> Estimate | Refusal:
    """An answer from the shipped rows; the rows of the model are read once.

    For a model without rows the refusal names no nearest rows, since finding them among other
    models takes long; `Estimator` names them.
    """
    model = models.model_name(question.model)
    if (rows := _of_model(model)) is None:
        return unmeasured(question, f"{NO_ROW} {model}")
    return rows.estimate(question)


def rows_like(question: Question) -> list[Row]:
    """The rows that ship of the model, GPU, precision and engine of a plan's question."""
    model = models.model_name(question.model)
    key = (model, question.gpu, question.precision, question.engine)
    rows = _of_model(model)
    return [row for row in rows.rows_of(model) if key_of(row) == key] if rows else []


def estimator(model: str, rows_dir: Path | None = None) -> Estimator:
    """What answers for a model: its own rows alone, as all take longer to read, where it has any
    and the user has none."""
    return (None if rows_dir else _of_model(models.model_name(model))) or Estimator.load(rows_dir)


_of_model = lru_cache(maxsize=64)(Estimator.of_model)


def document(plan: Plan) -> dict[str, Any]:
    """The estimate of all servers of a plan, or its refusal, as the manifest has it."""
    found, request = answer(plan), plan.deployment
    asked = {
        "num_gpus": request.hardware.num_gpus,
        "gpu": request.hardware.gpu,
        "isl": request.workload.isl,
        "osl": request.workload.osl,
        "concurrency": request.workload.concurrency,
    }
    rows = {
        "rows_sha256": fits.load().rows_sha256,
        "nearest": [str(near) for near in found.nearest],
    }
    if isinstance(found, Refusal):
        loads = [question.concurrency for question in found.measure]
        return asked | {"refused": found.reason, "kind": found.kind, "measure": loads, **rows}
    return asked | {
        "interval": INTERVAL,
        **{name: batch.interval(value) for name, value in measures(plan, found).items()},
        "rows": found.rows,
        **rows,
        "notes": list(found.notes),
        "published": [
            {**asdict(point), "agrees": point.agrees} for point in published_points(plan)
        ],
    }


def measures(plan: Plan, found: Estimate) -> dict[str, Interval]:
    """What is estimated, by names that have their units; rates are those of all servers."""
    return {
        "ttft_ms": found.ttft_ms,
        "tpot_ms": found.tpot_ms,
        "e2e_ms": found.e2e_ms,
        "output_tokens_per_s": found.output_tok_s.map(plan.deployment.instances),
        "output_tokens_per_s_per_user": found.tok_s_per_user,
        "output_tokens_per_s_per_gpu": found.tok_s_per_gpu,
    }


def evidence_text(estimate: Mapping[str, Any]) -> str:
    """What carries an estimate, as the manifest has it."""
    rows = f"{rows_text(estimate['rows'])} of this model, GPU, precision and engine"
    return f"{rows}; four times of five the value is between the ends ({estimate['interval']})"


def published_text(point: Mapping[str, Any]) -> str:
    """A published figure with its estimate, and whether both agree."""
    found, low, high = point["published"], point["low"], point["high"]
    beyond = found / (high if found > high else low) - 1
    side = "above" if beyond > 0 else "below"
    verdict = (
        "inside the interval" if point["agrees"] else f"{abs(beyond):.0%} {side} it, they disagree"
    )
    what = f"{number(found)} {UNITS[point['measure']]} at {point['concurrency']:,} at a time"
    estimate = f"estimate {Interval(low, point['value'], high)}"
    return f"{what}, {estimate}: {verdict} ({point['source']})"


def published_points(plan: Plan) -> Iterator[PublishedPoint]:
    """Published figures of this engine with a known load, and the estimate for that load."""
    own = plan.facts.release.engine.name
    for row in plan.facts.published:
        if not (row.isl and row.osl) or models.engine_name(row.engine.partition(" ")[0]) != own:
            continue
        for figure in row.figures:
            found = "concurrency" in figure and estimate(_asked(plan, row, figure))
            if not isinstance(found, Estimate):
                continue
            for name, value in _rates(found).items():
                if name in figure:
                    ends = batch.interval(value)
                    yield PublishedPoint(
                        row.source, figure["concurrency"], name, figure[name], **ends
                    )


def _asked(plan: Plan, row: Published, figure: Mapping[str, Any]) -> Question:
    """The load of a published figure, on the layout that was published, or else the plan's."""
    assert row.isl and row.osl
    asked, drafts = planned.question(plan), None
    if row.options:
        tp, attention_dp, ep, drafts = layout_of({SIZE: row.num_gpus, **row.options})
        asked = replace(asked, tp=tp, attention_dp=attention_dp, ep=ep)
    return replace(
        asked,
        mtp=figure.get(MTP_DRAFT_TOKENS, drafts),
        isl=row.isl,
        osl=row.osl,
        concurrency=figure["concurrency"],
        acceptance=figure.get("accepted_length"),
        release=row.conditions.get("release"),
    )


def _rates(found: Estimate) -> dict[str, Interval]:
    return {
        "output_tokens_per_s": found.output_tok_s,
        "output_tokens_per_s_per_user": found.tok_s_per_user,
        "output_tokens_per_s_per_gpu": found.tok_s_per_gpu,
        "mean_tpot_ms": found.tpot_ms,
        "median_e2e_latency_ms": found.e2e_ms,
    }
