"""Estimates the load of a run with one decision changed: another layout, or drafts on and off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..diagnostics import Diagnostic
from ..errors import BadInput
from ..facts import engines, release
from ..facts.checkpoint import Checkpoint
from ..facts.release import Release
from ..planning.choices import layouts
from ..planning.plan_builder import DRAFT_METHOD, MTP_DRAFT_TOKENS
from . import names, own_runs, plan_estimate
from .intervals import Interval
from .measurements import Layout
from .question import Estimate, Question, Refusal, rows_text

USUAL_DRAFTS = 3  # tokens per step, as in published configurations of MTP
Settings = Mapping[str, Any]


class Alternative(NamedTuple):
    """Options of the engine that change, the GPUs they need, and the factor on each measure."""

    settings: Settings
    num_gpus: int
    factors: Mapping[str, Interval]
    source: str


def of_run(file: Path, concurrency: int) -> list[Alternative]:
    """The alternatives to the run in a `bench.json` at a load that it measured.

    Raises `BadInput` if estimates do not cover the run, or refuse its own load.
    """
    row = next((row for row in own_runs.rows_of(file) if row.concurrency == concurrency), None)
    if row is None:
        raise BadInput(Diagnostic(str(file), "has no complete measurement of this load"))
    facts = names.facts_of(row.model)
    assert facts is not None  # rows of models without facts are refused
    asked = Question(
        *(row.model, row.gpu, row.precision, row.engine, row.tp, row.ep, row.attention_dp),
        *(row.isl, row.osl, row.concurrency),
        release=row.release or None,
        mtp=row.mtp,
        acceptance=row.acceptance if row.mtp else None,
    )
    own = plan_estimate.estimate(asked)
    if isinstance(own, Refusal):
        raise BadInput(Diagnostic("estimates from public measurements", own.reason))
    if row.engine not in engines.names():
        raise BadInput(Diagnostic(row.engine, "is an engine whose options are unknown here"))
    table = release.load(row.release, engine=engines.load(row.engine)).judges[0]
    return list(_compared(own, facts, table))


def _compared(own: Estimate, facts: Checkpoint, table: Release) -> Iterator[Alternative]:
    asked = own.question
    for settings, question in (*_layouts(asked, facts, table), *_drafts(asked, facts, table)):
        found = plan_estimate.estimate(question)
        if isinstance(found, Refusal):
            continue
        pairs = {
            "output_tokens_per_s_per_gpu": (found.tok_s_per_gpu, own.tok_s_per_gpu),
            "tpot_ms": (found.tpot_ms, own.tpot_ms),
            "ttft_ms": (found.ttft_ms, own.ttft_ms),
            "e2e_ms": (found.e2e_ms, own.e2e_ms),
        }
        factors = {name: one.over(other) for name, (one, other) in pairs.items()}
        near = next((f"; the nearest: {row}" for row in found.nearest), "")
        source = f"estimate from {rows_text(found.rows)} in builder/data/measurements{near}"
        yield Alternative(settings, question.num_gpus, factors, source)


def _layouts(
    asked: Question, facts: Checkpoint, table: Release
) -> Iterator[tuple[Settings, Question]]:
    """The other layouts that somebody measured with this model, GPU, precision and engine."""
    measured = {row.layout for row in plan_estimate.rows_like(asked)} | {asked.layout}
    ways: dict[Layout, Settings] = {}
    for num_gpus in sorted({tp * attention_dp for tp, attention_dp, _ in measured}):
        ways |= {way.layout: way.settings(table, facts) for way in layouts(facts, num_gpus)}
    own = ways.pop(asked.layout, {})
    for layout, settings in ways.items():
        if layout in measured:
            tp, attention_dp, ep = layout
            changed = {name: value for name, value in settings.items() if own.get(name) != value}
            yield changed, replace(asked, tp=tp, attention_dp=attention_dp, ep=ep)


def _drafts(
    asked: Question, facts: Checkpoint, table: Release
) -> Iterator[tuple[Settings, Question]]:
    if asked.mtp:
        yield {"speculative_config": None}, replace(asked, mtp=0, acceptance=None)
    elif asked.mtp == 0 and facts.mtp_layers:
        paths = (table.option_path(DRAFT_METHOD), table.option_path(MTP_DRAFT_TOKENS))
        values = (table.engine.draft_method, USUAL_DRAFTS)
        yield dict(zip(paths, values, strict=True)), replace(asked, mtp=USUAL_DRAFTS)
