"""`launch report`: one page from runs and result files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from builder.diagnostics import Diagnostic
from builder.errors import BadInput

from . import REPORT, comparison, evidence, page
from .evidence import RunEvidence


def run(options: argparse.Namespace) -> None:
    file = options.output or _beside(options.runs)
    _check_replaceable(file)
    runs = evidence.gather(options.runs)
    page.save(page.text(runs), file)
    if options.json:
        print(json.dumps(summary(runs, file), indent=2, ensure_ascii=False))
    else:
        print(file)


def summary(runs: Sequence[RunEvidence], file: Path) -> dict[str, Any]:
    """The runs, and how each differs from the first one at the same load."""
    return {
        "file": str(file),
        "runs": [
            {
                "title": run.title,
                "place": run.place,
                "tool": run.bench.tool,
                "rehearsal": run.rehearsal,
                "interrupted": run.bench.interrupted,
                "near_limit": run.bench.near_limit,
                "points": [point.label for point in run.bench.points],
                "sent": run.bench.sent,
                "failed": run.bench.failed,
                "notes": list(run.notes),
            }
            for run in runs
        ],
        "differences": [asdict(row) for row in comparison.differences(runs)],
    }


def _beside(runs: Sequence[Path]) -> Path:
    return runs[0] / REPORT if len(runs) == 1 and runs[0].is_dir() else Path(REPORT)


def _check_replaceable(file: Path) -> None:
    """Only a page that this verb wrote is replaced."""
    if file.is_dir():
        raise BadInput(Diagnostic(str(file), "is a folder", "name a file with -o"))
    if file.exists() and not page.is_report(file):
        remedy = "choose another file with -o, or remove it"
        raise BadInput(Diagnostic(str(file), "exists and is not a report", remedy))
