"""What measured rows say of the layout and of the drafts that a plan decided.

Rows of the very setting are among its sources. A layout of the same GPUs that others measured and
that is faster for certain, by the ends of both intervals, takes the place of one that rests on no
published practice; where practice covers the case it wins, and the plan says that both disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from .. import planning
from ..errors import BadInput
from ..planning import Decision, Plan
from ..planning.choices import SIZE, Layout, layouts
from ..planning.decision import gpus_per_instance
from ..planning.plan_builder import MTP_DRAFT_TOKENS
from . import plan_estimate, planned
from .measurements import Row, layout_text
from .question import Estimate, Question, rows_text

DISAGREEING = "measured rows disagree"
OPEN = ("assumed", "derived")  # grades of decisions that no published practice covers


def by_measured_rows(plan: Plan) -> Plan:
    """The plan with what the rows of its model, GPU, precision and engine say of its settings."""
    asked = planned.question(plan)
    if planned.unmeasured(plan) or not (rows := plan_estimate.rows_like(asked)):
        return plan
    if found := _faster(plan, asked, rows):
        estimate, settings, text = found
        decided = {row.path: row for row in plan.decisions}
        if all(decided[path].evidence in OPEN for path in settings):
            plan = _planned_with(plan, settings, text, estimate) or plan
        elif all(decided[path].evidence != "override" for path in settings):
            plan = _with_sources(plan, dict.fromkeys(settings, f"{DISAGREEING}: {text}"))
    return _with_rows(plan, planned.question(plan), rows)


def disagreement(plan: Plan) -> str | None:
    """What measured rows say against a setting that published practice decided."""
    texts = (row.source.partition(f"{DISAGREEING}: ") for row in plan.decisions)
    return next((text for _, found, text in texts if found), None)


def _faster(
    plan: Plan, asked: Question, rows: Sequence[Row]
) -> tuple[Estimate, dict[str, object], str] | None:
    """The fastest measured layout that is faster for certain, its settings, and both times."""
    others = list(_measured_layouts(plan, asked, rows))
    own = plan_estimate.estimate(asked) if others else None
    if not isinstance(own, Estimate):
        return None
    answers = {
        layout: plan_estimate.estimate(
            replace(asked, tp=layout.tp, attention_dp=layout.ranks, ep=layout.ep)
        )
        for layout in others
    }
    faster = [
        (found.e2e_ms.value, layout.ranks, layout.ep, found, layout)
        for layout, found in answers.items()
        if isinstance(found, Estimate) and found.e2e_ms.high < own.e2e_ms.low
    ]
    if not faster:
        return None
    *_, found, layout = min(faster, key=lambda one: one[:3])
    wanted = layout.settings(plan.facts.release, plan.facts.checkpoint)
    decided = {row.path: row.value for row in plan.decisions}
    settings = {path: value for path, value in wanted.items() if decided.get(path) != value}
    if not settings.keys() <= decided.keys():
        return None
    return found, settings, f"{_text(found)} for a request, {_text(own)}"


def _measured_layouts(plan: Plan, asked: Question, rows: Sequence[Row]) -> Iterator[Layout]:
    """Layouts of the GPUs of a server that rows measured, without the plan's own."""
    measured = {row.layout for row in rows} - {(asked.tp, asked.attention_dp, asked.ep)}
    for layout in layouts(plan.facts.checkpoint, gpus_per_instance(plan.deployment)):
        if (layout.tp, layout.ranks, layout.ep) in measured:
            yield layout


def _planned_with(
    plan: Plan, settings: Mapping[str, object], times: str, found: Estimate
) -> Plan | None:
    """The plan of the other layout, if the planner makes it and its memory holds the load."""
    source = f"estimate from {rows_text(found.rows)}"
    decided = {row.path: row for row in plan.decisions}
    estimated = {
        path: Decision(
            path,
            value,
            f"By measured rows {times}. The rule would give {decided[path].value}.",
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
    """The plan whose decisions name the rows that measured its layout and its drafts."""
    layout = (asked.tp, asked.attention_dp, asked.ep)
    sources = {}
    if same := sum(row.layout == layout for row in rows):
        sources[SIZE] = (
            f"{same} of {len(rows)} measured rows have the layout {layout_text(*layout)}"
        )
    if asked.mtp and (known := sum(row.mtp == asked.mtp for row in rows)):
        sources[MTP_DRAFT_TOKENS] = f"{known} of {len(rows)} measured rows draft as many tokens"
    elif asked.mtp and (drafting := sum(row.drafting == "on" for row in rows)):
        what = f"{drafting} of {len(rows)} measured rows draft, without saying how many tokens"
        sources[MTP_DRAFT_TOKENS] = what
    return _with_sources(plan, sources)


def _with_sources(plan: Plan, sources: Mapping[str, str]) -> Plan:
    """The plan with more sources of decisions that are not the user's own.

    Reasons stay: they are comments in the engine's files, which more rows do not change.
    """
    decisions = tuple(
        replace(row, source=f"{row.source}; {sources[row.path]}")
        if row.path in sources and row.evidence != "override"
        else row
        for row in plan.decisions
    )
    return replace(plan, decisions=decisions)


def _text(found: Estimate) -> str:
    asked = found.question
    layout = layout_text(asked.tp, asked.attention_dp, asked.ep)
    return f"{layout} takes {found.e2e_ms.map(1 / 1000)} s"
