"""What a page compares, as a document for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import comparison, estimated, published
from .evidence import RunEvidence


def of_page(runs: Sequence[RunEvidence], file: Path) -> dict[str, Any]:
    """The runs, and how each differs from the first one at the same load."""
    return {
        "file": str(file),
        "runs": [
            {
                "title": run.title,
                "place": run.place,
                "tool": run.bench.tool,
                "rehearsal": run.rehearsal,
                "outcome": run.bench.outcome,
                "interrupted": run.bench.interrupted,
                "near_limit": run.bench.near_limit,
                "points": [point.label for point in run.bench.points],
                "sent": run.bench.sent,
                "failed": run.bench.failed,
                "notes": list(run.notes),
                "estimate": _estimate(run),
                "published": [
                    {
                        "source": row.source,
                        "summary": row.summary,
                        "same_conditions": row.same_conditions,
                        "causes": [asdict(cause) for cause in row.causes],
                    }
                    for row in published.for_run(run)
                    if row.speeds
                ],
            }
            for run in runs
        ],
        "differences": comparison.differences(runs),
    }


def _estimate(run: RunEvidence) -> dict[str, Any] | None:
    """The estimate of the run's bundle beside what it measured."""
    found = estimated.for_run(run)
    if found is None:
        return None
    measures = [asdict(one) | {"verdict": one.verdict} for one in found.measures]
    return {"load": found.load, "summary": found.summary, "measures": measures}
