"""Compares measurements with published results for the same model on the same GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .conditions import LOAD, PER_USER, Cause, causes, explained
from .evidence import RunEvidence
from .number_format import SPACE, number
from .results import LoadPoint

AS_FAST = "as fast"
# Rates that are compared, the first that is published, and their units.
RATES = {
    "output_tokens_per_s": "output tokens/s",
    PER_USER: "tokens/s/user",
    "output_tokens_per_s_per_gpu": "tokens/s/GPU",
}


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """One published figure, and the run's own at the load nearest to it.

    `ratio` is the run's speed over the published one; `causes` are what was not the same.
    """

    source: str
    engine: str
    gpus: str
    workload: str
    concurrency: int | None
    e2e_ms: float | None
    ttft_ms: float | None
    output_tokens_per_s: float | None
    tokens_per_s_per_user: float | None
    tokens_per_s_per_gpu: float | None
    note: str
    speeds: tuple[str, str] | None
    ratio: float | None
    causes: tuple[Cause, ...]

    @property
    def label(self) -> str:
        load = f"c{self.concurrency}" if self.concurrency else "published"
        rate = self.output_tokens_per_s or self.tokens_per_s_per_gpu
        return f"{load}:{rate:.0f}" if rate else load

    @property
    def same_conditions(self) -> bool:
        return self.speeds is not None and not self.causes

    @property
    def summary(self) -> str:
        """How the run compares, and how much of the difference is known."""
        if self.speeds is None or self.ratio is None:
            return "This run measured nothing to compare with it."
        published, here = self.speeds
        if any(cause.name == LOAD and cause.factor is None for cause in self.causes):
            return f"Published: {published}. Here: {here}, another load: nothing follows from it."
        text = f"Published: {published}. Here: {here}, {_slower(self.ratio)}."
        if self.same_conditions:
            return f"{text} The conditions are the same."
        known = [cause for cause in self.causes if cause.factor is not None]
        others = len(self.causes) - len(known)
        if known:
            due = explained(known)
            text += f" By the differences that have a figure it should be {_slower(due)}"
            more = _slower(self.ratio / due)
            text += f"; it is {more} {'as' if more == AS_FAST else 'than'} that."
        if others:
            text += f" {others} {'more ' if known else ''}condition{'s' * (others > 1)} may differ."
        return text


def _slower(ratio: float) -> str:
    percents = round(abs(1 - ratio) * 100)
    return f"{percents}{SPACE}% {'slower' if ratio < 1 else 'faster'}" if percents else AS_FAST


def for_run(run: RunEvidence) -> list[PublishedFigure]:
    """The published figures that the run's bundle carries, under the nearest conditions first."""
    rows = (run.manifest or {}).get("published", ())
    found = [
        _figure(row, figure, run)
        for row in rows
        for figure in row.get("figures", ())
        if any(key.startswith(("output_tokens", "prefill_tokens")) for key in figure)
    ]
    return sorted(found, key=lambda one: (one.speeds is None, len(one.causes)))


def _figure(row: Mapping[str, Any], figure: Mapping[str, Any], run: RunEvidence) -> PublishedFigure:
    """Rates for the whole, per user and per GPU follow from each other where they can."""
    gpus, concurrency = row.get("num_gpus"), figure.get("concurrency")
    total, per_gpu = figure.get("output_tokens_per_s"), figure.get("output_tokens_per_s_per_gpu")
    user = figure.get(PER_USER) or figure.get("at_tokens_per_s_per_user")
    if concurrency == 1:
        user, total = user or total, total or user
    if gpus:
        total = total or (per_gpu and per_gpu * gpus)
        per_gpu = per_gpu or (total and total / gpus)
    return PublishedFigure(
        source=row["source"],
        engine=row.get("engine", ""),
        gpus=f"{gpus or '?'}x{SPACE}{row.get('gpu') or '?'}",
        workload=row.get("workload", ""),
        concurrency=concurrency,
        e2e_ms=figure.get("median_e2e_latency_ms"),
        ttft_ms=figure.get("ttft_ms"),
        output_tokens_per_s=total,
        tokens_per_s_per_user=user,
        tokens_per_s_per_gpu=per_gpu,
        note=", ".join(filter(None, (figure.get("load"), figure.get("note")))),
        **_comparison(row, figure, run),
    )


def _comparison(
    row: Mapping[str, Any], figure: Mapping[str, Any], run: RunEvidence
) -> dict[str, Any]:
    """The run's own speed; nothing of a rehearsal, which says nothing about a GPU."""
    measure = next((name for name in RATES if figure.get(name)), None)
    point = None if run.rehearsal else _nearest(run, figure)
    if measure is None or point is None or not (here := point.rate(measure)):
        return {"speeds": None, "ratio": None, "causes": ()}
    load = f" at c{figure['concurrency']}" if "concurrency" in figure else ""
    return {
        "speeds": (
            f"{number(figure[measure])}{SPACE}{RATES[measure]}{load}",
            f"{number(here)}{SPACE}{RATES[measure]} at {point.label}",
        ),
        "ratio": here / figure[measure],
        "causes": tuple(causes(run, row, figure, point, measure)),
    }


def _nearest(run: RunEvidence, figure: Mapping[str, Any]) -> LoadPoint | None:
    """The point without failures whose load is nearest to that of the figure."""
    concurrency = figure.get("concurrency")
    wanted = concurrency or figure.get("at_tokens_per_s_per_user")
    if wanted is None:
        return run.bench.headline
    loads = [
        (p.concurrency if concurrency else p.rate(PER_USER), p) for p in run.bench.clean_points
    ]
    near = [(abs(math.log(load / wanted)), point) for load, point in loads if load]
    return min(near, key=lambda pair: pair[0])[1] if near else None
