"""What others published for the same model on the same GPUs, beside what was measured here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .evidence import RunEvidence
from .number_format import number
from .results import BenchResults


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """One published figure. `differences` say what is not as in this run, or not known."""

    source: str
    engine: str
    workload: str
    num_gpus: int | None
    concurrency: int | None
    e2e_ms: float | None
    ttft_ms: float | None
    output_tokens_per_s: float | None
    tokens_per_s_per_user: float | None
    tokens_per_s_per_gpu: float | None
    note: str
    differences: tuple[str, ...]

    @property
    def label(self) -> str:
        load = f"c{self.concurrency}" if self.concurrency else "published"
        rate = self.output_tokens_per_s or self.tokens_per_s_per_gpu
        return f"{load}:{rate:.0f}" if rate else load


def for_run(run: RunEvidence) -> list[PublishedFigure]:
    """The published figures that the run's bundle carries."""
    rows = (run.manifest or {}).get("published", ())
    return [
        _figure(row, figure, run.bench)
        for row in rows
        for figure in row.get("figures", ())
        if any(key.startswith(("output_tokens", "prefill_tokens")) for key in figure)
    ]


def _figure(
    row: Mapping[str, Any], figure: Mapping[str, Any], run: BenchResults
) -> PublishedFigure:
    """Rates for the whole, per user and per GPU follow from each other where they can."""
    gpus, concurrency = row.get("num_gpus"), figure.get("concurrency")
    total, per_gpu = figure.get("output_tokens_per_s"), figure.get("output_tokens_per_s_per_gpu")
    user = figure.get("output_tokens_per_s_per_user") or figure.get("at_tokens_per_s_per_user")
    if concurrency == 1:
        user, total = user or total, total or user
    if gpus:
        total = total or (per_gpu and per_gpu * gpus)
        per_gpu = per_gpu or (total and total / gpus)
    notes = (figure.get("load"), figure.get("note"))
    return PublishedFigure(
        source=row["source"],
        engine=row.get("engine", ""),
        workload=row.get("workload", ""),
        num_gpus=gpus,
        concurrency=concurrency,
        e2e_ms=figure.get("median_e2e_latency_ms"),
        ttft_ms=figure.get("ttft_ms"),
        output_tokens_per_s=total,
        tokens_per_s_per_user=user,
        tokens_per_s_per_gpu=per_gpu,
        note=", ".join(filter(None, notes)),
        differences=tuple(_differences(row, figure, run)),
    )


def _differences(
    row: Mapping[str, Any], figure: Mapping[str, Any], run: BenchResults
) -> Iterator[str]:
    for key, name in (("isl", "input"), ("osl", "output")):
        theirs, ours = row.get(key), getattr(run, key)
        if theirs is None or ours is None:
            yield f"{name} length not given as a number"
        elif theirs != ours:
            yield f"{name} {number(theirs)} tokens, here {number(ours)}"
    concurrency = figure.get("concurrency")
    if concurrency is None:
        yield "concurrency not said"
    elif concurrency not in {point.concurrency for point in run.points}:
        yield f"concurrency {concurrency} was not measured here"
    if _engine(row.get("engine")) != _engine(run.subject.engine):
        yield f"engine {row.get('engine')}, here {run.subject.engine}"
    if row.get("num_gpus") != run.subject.num_gpus:
        yield f"{row.get('num_gpus')} GPUs, here {run.subject.num_gpus}"
    yield from (f"not said: {what}" for what in row.get("incomplete", ()))


def _engine(name: str | None) -> str:
    """The engine without its version: sources write it with a hyphen or an underscore."""
    return (name or "").replace("-", "_").partition(" ")[0].lower()
