"""The page: evidence rendered to one HTML file that loads nothing and runs only its own script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from builder import __version__, chart, render
from builder.diagnostics import Diagnostic
from builder.files import regular_file, save
from builder.number_format import UNKNOWN

from ..smoke.results import totals
from . import (
    comparison,
    estimated,
    evidence,
    figures,
    published,
    suggestions,
    tables,
    verdict,
)
from .evidence import RunEvidence
from .importers import caveats
from .tables import PageTable

GENERATOR = "trtllm-deployment-toolkit"
MAX_COMPARED = 3  # published figures of each run, those under the nearest conditions
PROOF = "Lines that prove it"
HEAD_BYTES = 2000  # the page says who wrote it within these


def write(runs: Sequence[Path], file: Path) -> None:
    """The report of run folders and result files, written as a whole. Raises `BadInput`."""
    save(file, text(evidence.gather(runs)), "-o")


def is_report(file: Path) -> bool:
    try:
        with regular_file(file) as content:
            return f'<meta name="generator" content="{GENERATOR} '.encode() in content.read(
                HEAD_BYTES
            )
    except OSError:
        return False


def text(runs: Sequence[RunEvidence], skipped: Sequence[Diagnostic] = ()) -> str:
    """The page; the template or `Markup.format` escapes every value."""
    return render.html(
        "report/page.html.j2",
        **_head(runs), **_first_screen(runs), **_charts(runs), **_others(runs), **_details(runs),
        **_starts(runs), **_next(runs),
        css_hash=render.source_expression(render.html("report/page.css")),
        js_hash=render.source_expression(render.html("report/page.js")),
        version=__version__, generator=GENERATOR, dash=UNKNOWN, skipped=list(map(str, skipped)),
    )  # fmt: skip


def _head(runs: Sequence[RunEvidence]) -> dict[str, Any]:
    rehearsal = any(run.rehearsal for run in runs)
    if len(runs) > 1:
        kind, heading = "Comparison", f"{len(runs)} runs side by side"
        subject = list(dict.fromkeys(run.bench.subject.name for run in runs))
    else:
        kind, heading, subject = "Benchmark", runs[0].title, _subject(runs[0])
    kind = f"{kind}, with a rehearsal" if rehearsal else kind
    kind = "Rehearsal" if all(run.rehearsal for run in runs) else kind
    return {
        "title": f"{kind}: {heading}",
        "kind": kind,
        "heading_text": heading,
        "subject": subject,
        "rehearsal": rehearsal,
    }


def _subject(run: RunEvidence) -> list[str]:
    result, subject = run.bench, run.bench.subject
    engine = subject.engine_and_release
    parts = (subject.model, subject.gpus, engine, subject.target, result.api, result.workload)
    date = (result.started or "")[:10]
    return [part for part in (*parts, date) if part]


def _first_screen(runs: Sequence[RunEvidence]) -> dict[str, Any]:
    return {
        "notices": verdict.notices(runs),
        "verdict": verdict.verdict(runs),
        "tiles": verdict.tiles(runs[0]) if len(runs) == 1 else [],
        "overview": comparison.overview(runs) if len(runs) > 1 else None,
    }


def _next(runs: Sequence[RunEvidence]) -> dict[str, Any]:
    found, unknown = suggestions.next_changes(runs)
    of = runs[0].title if len(runs) > 1 else ""
    return {"suggestions": found, "unknown": unknown, "of": of}


def _charts(runs: Sequence[RunEvidence]) -> dict[str, Any]:
    drawn: list[figures.Figure] = []
    undrawn: list[PageTable] = []
    if not any(run.bench.points for run in runs):
        return {"figures": drawn, "undrawn": undrawn, "legend": []}
    for figure in figures.draw(runs):
        if figure.linear or figure.bars:
            drawn.append(figure)
        elif figure.table.rows:
            undrawn.append(figure.table)
    return {"figures": drawn, "undrawn": undrawn, "legend": list(_legend(runs, drawn))}


def _legend(
    runs: Sequence[RunEvidence], drawn: Sequence[figures.Figure]
) -> Iterator[tuple[object, str, Markup]]:
    shapes = "".join(figure.linear or "" for figure in drawn)
    series = [(chart.numbered(index, ()), run.title) for index, run in enumerate(runs)]
    rows = [
        (one.key, title, chart.swatch(one.style, one.shape))
        for one, title in (*series, (chart.published(()), "published by others"))
    ]
    for row in (*rows, ("front", "Pareto front", chart.front_swatch())):
        if f'data-series="{row[0]}"' in shapes:
            yield row


def _others(runs: Sequence[RunEvidence]) -> dict[str, Any]:
    """What the runs are compared with: each other, their estimates, and published results."""
    several = len(runs) > 1
    estimates, compared = [], []
    figures: dict[tuple[str, str, str], published.PublishedFigure] = {}
    for run in runs:
        if one := estimated.for_run(run):
            estimates.append(
                {
                    "title": run.title if several else "",
                    "summary": one.summary,
                    "table": tables.estimated(one) if one.measures else None,
                    "evidence": one.evidence,
                }
            )
        found = published.for_run(run)
        figures |= {row.key: row for row in found}
        for row in found[:MAX_COMPARED]:
            if row.speeds:
                title = f"{run.title}: {row.source}" if several else row.source
                causes = tables.causes(row) if row.causes else None
                compared.append({"title": title, "summary": row.summary, "table": causes})
    differences = [comparison.settings(runs), comparison.changes(runs)] if several else []
    return {
        "comparison": [table for table in differences if table.rows],
        "estimated": estimates,
        "published": tables.published(figures.values()) if figures else None,
        "compared": compared,
    }


def _details(runs: Sequence[RunEvidence]) -> dict[str, Any]:
    server = [tables.server_side(runs), tables.tasks(runs), tables.quality(runs)]
    found: dict[str, Any] = {"smoke": [], "metrics": [], "runs": [], "caveats": {}}
    for run in runs:
        if table := tables.smoke(run):
            found["smoke"].append(_smoke(run, table))
        if table := tables.metrics(run):
            found["metrics"].append(table)
        provenance = tables.provenance(run)
        found["runs"].append({"title": run.title, "provenance": provenance, "notes": run.notes})
        if rows := caveats(run.bench.tool):
            found["caveats"][run.bench.tool] = rows
    return {
        **found,
        "errors": tables.errors(runs),
        "server": [table for table in server if table and table.rows],
        "bundles": list(_bundles(runs)),
    }


def _starts(runs: Sequence[RunEvidence]) -> dict[str, Any]:
    """How servers started, and why some failed."""
    failures = []
    for run in runs:
        if not run.start or not run.start.failed:
            continue
        causes = run.start.causes or run.start.symptom
        title = f"{run.title}: " if len(runs) > 1 else ""
        failures.append(
            {
                "title": f"{title}{run.start.failed}",
                "causes": [(one, tables.log_lines(one.evidence, PROOF)) for one in causes],
                "is_unknown": not run.start.causes,
                "first": tables.log_lines(run.start.first_error, "First error"),
            }
        )
    found = [tables.phases(runs), tables.options_in_force(runs)]
    return {"failures": failures, "start": [table for table in found if table.rows]}


def _smoke(run: RunEvidence, table: PageTable) -> dict[str, Any]:
    text = (
        "Smoke suite, {title}: {passed} of {checks} checks passed, "
        "{failed} failed, {warnings} with a warning; {skipped} do not apply."
    )
    counts = totals(run.smoke)
    summary = text.format(title=run.title, **counts)
    return {"summary": summary, "table": table, "failed": bool(counts["failed"])}


def _bundles(runs: Sequence[RunEvidence]) -> Iterator[dict[str, Any]]:
    shown: set[str | None] = set()
    for run in runs:
        digest = run.bench.subject.bundle_digest
        if digest not in shown and (table := tables.decisions(run)):
            shown.add(digest)
            yield {
                "title": run.bench.subject.bundle_name or run.title,
                "decisions": table,
                "summary": f"{len(table.rows)} decisions with their reasons",
                "memory": tables.memory(run),
            }


def summary(runs: Sequence[RunEvidence], file: Path) -> dict[str, Any]:
    """The runs as JSON, and how each differs from the first one at the same load."""
    found, unknown = suggestions.next_changes(runs)
    return {
        "file": str(file),
        "runs": [_run_summary(run) for run in runs],
        "differences": comparison.differences(runs),
        "change_next": {"suggestions": list(map(asdict, found)), "unknown": unknown},
    }


def _run_summary(run: RunEvidence) -> dict[str, Any]:
    bench = run.bench
    return {
        "title": run.title,
        "place": run.place,
        "tool": bench.tool,
        "rehearsal": run.rehearsal,
        "outcome": bench.outcome,
        "interrupted": bench.interrupted,
        "near_limit": bench.near_limit,
        "points": [point.label for point in bench.points],
        "sent": bench.sent,
        "failed": bench.failed,
        "notes": list(run.notes),
        "estimate": _estimate_summary(run),
        "published": [
            {
                "source": row.source,
                "summary": row.summary,
                "same_conditions": row.same_conditions,
                "causes": list(map(asdict, row.causes)),
            }
            for row in published.for_run(run)
            if row.speeds
        ],
    }


def _estimate_summary(run: RunEvidence) -> dict[str, Any] | None:
    found = estimated.for_run(run)
    if found is None:
        return None
    measures = [asdict(one) | {"verdict": one.verdict} for one in found.measures]
    return {"load": found.load, "summary": found.summary, "measures": measures}
