"""`launch report`: one page from runs and result files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.diagnostics import Diagnostic
from builder.errors import BadInput

from ..report import REPORT

if TYPE_CHECKING:
    from ..report.evidence import RunEvidence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "a run folder, a bench.json, or a result file of aiperf, sglang, vllm or guidellm"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=text)
    text = f"the page; {REPORT} in the run folder, or here where there are several runs"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    parser.add_argument("--json", action="store_true", help="print what the page compares as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from ..report import evidence, page

    several = len(options.runs) > 1 or not options.runs[0].is_dir()
    file = options.output or Path(REPORT if several else options.runs[0] / REPORT)
    if file.is_dir():
        raise BadInput(Diagnostic(str(file), "is a folder", "name a file with -o"))
    if file.exists() and not page.is_report(file):
        remedy = "choose another file with -o, or remove it"
        raise BadInput(Diagnostic(str(file), "exists and is not a report", remedy))
    runs = evidence.gather(options.runs)
    page.save(page.text(runs), file)
    if options.json:
        print(json.dumps(summary(runs, file), indent=2, ensure_ascii=False))
    else:
        print(file)


def summary(runs: Sequence[RunEvidence], file: Path) -> dict[str, Any]:
    """The runs, and how each differs from the first one at the same load."""
    from ..report import comparison

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
