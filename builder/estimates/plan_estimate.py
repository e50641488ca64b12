"""Estimates a plan for its bundle, runbook and reports, and improves it by measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from .. import planning, site
from ..errors import BadInput
from ..facts.published_results import UNITS, Published
from ..number_format import number
from ..planning import Decision, Plan
from ..planning.choices import SIZE, layouts
from ..planning.decision import concurrency_per_instance, gpus_per_instance
from ..planning.plan_builder import MTP_DRAFT_TOKENS
from . import batch, fits, names, refusals
from .cells import key_of
from .estimator import Estimator
from .interpolation import Kernel
from .intervals import Interval
from .measurements import Row, layout_text
from .names import STAGES, layout_of
from .pools import Pools
from .question import Estimate, Question, Refusal, rows_text

INTERVAL = "80 %"
UNMEASURED = "unmeasured"
NO_ROW = "no measurements for"
DISAGREEING = "measurements disagree"
OPEN = ("assumed", "derived")  # grades of decisions without a published configuration


def question_of(plan: Plan, concurrency: int | None = None) -> Question:
    """The question about one server of a plan under its share of the load, or of another load.

    `concurrency` is for all servers of the deployment.
    """
    request, facts = plan.deployment, plan.facts
    values = {row.path: row.value for row in (*plan.engine_defaults, *plan.decisions)}
    tp, attention_dp, ep, drafts = layout_of(values)
    share = concurrency_per_instance(request)
    if concurrency is not None:
        share = -(-concurrency // request.instances)
    return Question(
        model=names.of_checkpoint(facts.checkpoint),
        gpu=request.hardware.gpu,
        precision=names.weight_precision(facts.checkpoint.precision),
        engine=names.engine_name(request.engine.name),
        tp=tp,
        ep=ep,
        attention_dp=attention_dp,
        isl=request.workload.isl,
        osl=request.workload.osl,
        concurrency=share,
        release=request.engine.release,
        mtp=drafts,
    )


def pools_of(decode: Plan, prefill: Plan, concurrency: int | None = None) -> Pools:
    """The question about prefill and decode servers, which the options of a target count.

    The load of a decode deployment is that of one server; `concurrency` is that of all.
    """
    options = next(row for row in decode.deployment.targets.values() if row.get("prefill"))
    servers = int(options.get("servers") or options.get("replicas") or 1)
    asked, other = question_of(decode), question_of(prefill)
    asked = replace(asked, concurrency=concurrency or asked.concurrency * servers)
    count = int(options["prefill"].get("servers") or 1)
    return Pools(asked, servers, count, *other.layout)


def unmeasured_part(plan: Plan) -> str:
    """Why nobody measured servers like those of a plan; empty if somebody may have."""
    request = plan.deployment
    if request.role != "agg":
        return "no measurements of one side of disaggregated serving alone"
    if (request.targets.get(site.TARGET) or {}).get("prefill"):
        return "no measurements with separate prefill servers"
    if request.draft is not None:
        return "no measurements with a draft model"
    values = {row.path: row.value for row in (*plan.engine_defaults, *plan.decisions)}
    if (values.get(STAGES) or 1) > 1:
        return "no measurements with pipeline parallelism"
    return ""


def answer(plan: Plan) -> Estimate | Refusal:
    """The estimate for one server of a plan under its share of the load."""
    asked = question_of(plan)
    if not (reason := unmeasured_part(plan)):
        return estimate(asked)
    if plan.deployment.role != "agg":
        return Refusal(asked, UNMEASURED, reason, ())
    return unmeasured(asked, reason)


def unmeasured(asked: Question, reason: str) -> Refusal:
    measure = refusals.measurements(asked, Kernel(fits.load().tpot.without_release))
    return Refusal(asked, UNMEASURED, reason, measure)


@lru_cache(maxsize=256)
def estimate(question: Question) -> Estimate | Refusal:
    """An answer from the shipped rows; the rows of the model are read once.

    For a model without rows the refusal names no nearest rows, since finding them among other
    models takes long; `Estimator` names them.
    """
    model = names.model_name(question.model)
    if (rows := _of_model(model)) is None:
        return unmeasured(question, f"{NO_ROW} {model}")
    return rows.estimate(question)


def rows_like(question: Question) -> list[Row]:
    """The shipped rows of the model, GPU, precision and engine of a plan's question."""
    model = names.model_name(question.model)
    key = (model, question.gpu, question.precision, question.engine)
    rows = _of_model(model)
    return [row for row in rows.rows.of_model(model) if key_of(row) == key] if rows else []


def estimator(model: str, rows_dir: Path | None = None) -> Estimator:
    """The estimator for a model: with its own rows alone, which are faster to read, if it has any
    and the user has none."""
    return (None if rows_dir else _of_model(names.model_name(model))) or Estimator.load(rows_dir)


_of_model = lru_cache(maxsize=64)(Estimator.of_model)


def document(plan: Plan) -> dict[str, Any]:
    """The estimate for all servers of a plan, or its refusal, for the manifest."""
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
        "published": list(published_points(plan)),
    }


def measures(plan: Plan, found: Estimate) -> dict[str, Interval]:
    """The estimated figures by names with units; rates are of all servers."""
    times = {"ttft_ms": found.ttft_ms, "tpot_ms": found.tpot_ms, "e2e_ms": found.e2e_ms}
    return times | _rates(found, plan.deployment.instances)


def _rates(found: Estimate, instances: int = 1) -> dict[str, Interval]:
    return {
        "output_tokens_per_s": found.output_tok_s.map(instances),
        "output_tokens_per_s_per_user": found.tok_s_per_user,
        "output_tokens_per_s_per_gpu": found.tok_s_per_gpu,
    }


def evidence_text(estimate: Mapping[str, Any]) -> str:
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


def published_points(plan: Plan) -> Iterator[dict[str, Any]]:
    """Published figures of this engine with a known load, the estimate for that load, and whether
    both agree."""
    own = plan.facts.release.engine.name
    for row in plan.facts.published:
        if not (row.isl and row.osl) or names.engine_name(row.engine.partition(" ")[0]) != own:
            continue
        for figure in row.figures:
            found = "concurrency" in figure and estimate(_asked(plan, row, figure))
            if not isinstance(found, Estimate):
                continue
            times = {"mean_tpot_ms": found.tpot_ms, "median_e2e_latency_ms": found.e2e_ms}
            for name, value in (_rates(found) | times).items():
                if name not in figure:
                    continue
                ends, published = batch.interval(value), figure[name]
                yield {
                    "source": row.source,
                    "concurrency": figure["concurrency"],
                    "measure": name,
                    "published": published,
                    **ends,
                    "agrees": ends["low"] <= published <= ends["high"],
                }


def _asked(plan: Plan, row: Published, figure: Mapping[str, Any]) -> Question:
    """The question for a published figure, with the published layout or else the plan's."""
    assert row.isl and row.osl
    asked, drafts = question_of(plan), None
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


def adjust(plan: Plan) -> Plan:
    """The plan with settings and sources from the rows of its model, GPU, precision and engine.

    A measured layout on the same GPUs that is certainly faster, by the ends of both intervals,
    replaces one that no published configuration supports. A published one stays, and the plan says
    that both disagree. Rows with the same settings are added to the sources.
    """
    asked = question_of(plan)
    if unmeasured_part(plan) or not (rows := rows_like(asked)):
        return plan
    if found := _faster(plan, asked, rows):
        estimate, settings, text = found
        decided = {row.path: row for row in plan.decisions}
        if all(decided[path].evidence in OPEN for path in settings):
            plan = _planned_with(plan, settings, text, estimate) or plan
        elif all(decided[path].evidence != "override" for path in settings):
            plan = _with_sources(plan, dict.fromkeys(settings, f"{DISAGREEING}: {text}"))
    return _with_rows(plan, question_of(plan), rows)


def disagreement(plan: Plan) -> str | None:
    """How measurements contradict a setting of a published configuration."""
    texts = (row.source.partition(f"{DISAGREEING}: ") for row in plan.decisions)
    return next((text for _, found, text in texts if found), None)


def _faster(
    plan: Plan, asked: Question, rows: Sequence[Row]
) -> tuple[Estimate, dict[str, object], str] | None:
    """The fastest measured layout that is certainly faster, its settings, and both times."""
    measured = {row.layout for row in rows} - {asked.layout}
    ways = layouts(plan.facts.checkpoint, gpus_per_instance(plan.deployment))
    others = [way for way in ways if way.layout in measured]
    own = estimate(asked) if others else None
    if not isinstance(own, Estimate):
        return None
    faster = []
    for other in others:
        tp, attention_dp, ep = other.layout
        found = estimate(replace(asked, tp=tp, attention_dp=attention_dp, ep=ep))
        if isinstance(found, Estimate) and found.e2e_ms.high < own.e2e_ms.low:
            faster.append((found.e2e_ms.value, attention_dp, ep, found, other))
    if not faster:
        return None
    *_, found, fastest = min(faster, key=lambda one: one[:3])
    wanted = fastest.settings(plan.facts.release, plan.facts.checkpoint)
    decided = {row.path: row.value for row in plan.decisions}
    settings = {path: value for path, value in wanted.items() if decided.get(path) != value}
    if not settings.keys() <= decided.keys():
        return None
    return found, settings, f"{_layout_time(found)} for a request, {_layout_time(own)}"


def _planned_with(
    plan: Plan, settings: Mapping[str, object], times: str, found: Estimate
) -> Plan | None:
    """The plan with the other layout, if it is valid and its memory holds the load."""
    source = f"estimate from {rows_text(found.rows)}"
    decided = {row.path: row for row in plan.decisions}
    estimated = {
        path: Decision(
            path,
            value,
            f"By measurements {times}. The rule would give {decided[path].value}.",
            "estimated",
            source,
        )
        for path, value in settings.items()
    }
    try:
        other = planning.plan(plan.deployment, replace(plan.facts, estimated=estimated))
    except BadInput:
        return None
    values = {row.path: row.value for row in other.decisions}
    needed = min(plan.budget.max_concurrency, found.question.concurrency)
    holds = other.budget.max_concurrency >= needed
    return other if holds and all(values[path] == settings[path] for path in settings) else None


def _with_rows(plan: Plan, asked: Question, rows: Sequence[Row]) -> Plan:
    """The plan with the numbers of rows that have its layout and its drafts as sources."""
    layout = asked.layout
    sources = {}
    if same := sum(row.layout == layout for row in rows):
        sources[SIZE] = f"{same} of {len(rows)} measurements have the layout {layout_text(*layout)}"
    if asked.mtp and (known := sum(row.mtp == asked.mtp for row in rows)):
        sources[MTP_DRAFT_TOKENS] = f"{known} of {len(rows)} measurements draft as many tokens"
    elif asked.mtp and (drafting := sum(row.drafting == "on" for row in rows)):
        what = f"{drafting} of {len(rows)} measurements draft, without a recorded draft length"
        sources[MTP_DRAFT_TOKENS] = what
    return _with_sources(plan, sources)


def _with_sources(plan: Plan, sources: Mapping[str, str]) -> Plan:
    """The plan with more sources for decisions, except those of the user.

    Reasons stay the same, since they are comments in the engine's files.
    """
    decisions = tuple(
        replace(row, source=f"{row.source}; {sources[row.path]}")
        if row.path in sources and row.evidence != "override"
        else row
        for row in plan.decisions
    )
    return replace(plan, decisions=decisions)


def _layout_time(found: Estimate) -> str:
    return f"{layout_text(*found.question.layout)} takes {found.e2e_ms.map(1 / 1000)} s"
