"""The tables of a page: failures, checks, decisions, the server's metrics, provenance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .estimated import RunEstimate
from .evidence import RunEvidence
from .number_format import UNKNOWN, milliseconds, number, percent, unit, usd
from .published import PublishedFigure
from .results import BenchResults, JsonObject, LoadPoint

NUMERIC = "num"
MAX_METRICS = 40
MAX_EXAMPLE = 300  # characters of an error message
MEMORY_PARTS = {
    "weights_gib": "weights",
    "kv_cache_gib": "KV cache",
    "activations_gib": "activations",
    "cuda_graphs_gib": "CUDA graphs",
    "other_gib": "other",
}
WORST_FIRST = "failed warned passed skipped"  # an unknown outcome comes before them


@dataclass(frozen=True, slots=True)
class PageTable:
    """`kinds` has the alignment of each column: `num` right, `code` and `text` left. The first
    column is the header of its row."""

    caption: str
    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def make_table(
    caption: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[object]]
) -> PageTable:
    """Columns as title and kind."""
    return PageTable(
        caption,
        tuple(title for title, _ in columns),
        tuple(kind for _, kind in columns),
        tuple(tuple("" if cell is None else str(cell) for cell in row) for row in rows),
    )


def runs_table(
    caption: str,
    number_of_runs: int,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[object]],
) -> PageTable:
    """A table whose rows start with a run; the column is left out for a single run."""
    if number_of_runs == 1:
        return make_table(caption, columns, [row[1:] for row in rows])
    return make_table(caption, [("run", "text"), *columns], rows)


def without_empty_columns(table: PageTable) -> PageTable:
    """Without the numeric columns that have no value; without rows if none has one."""
    kept = [
        index
        for index, kind in enumerate(table.kinds)
        if kind != NUMERIC or any(row[index] not in ("", UNKNOWN) for row in table.rows)
    ]
    if not any(table.kinds[index] == NUMERIC for index in kept):
        return replace(table, rows=())
    return PageTable(
        table.caption,
        tuple(table.columns[index] for index in kept),
        tuple(table.kinds[index] for index in kept),
        tuple(tuple(row[index] for index in kept) for row in table.rows),
    )


def errors(runs: Sequence[RunEvidence]) -> PageTable:
    rows = [
        (
            run.title,
            point.label,
            error.kind,
            number(error.count),
            error.example[:MAX_EXAMPLE],
        )
        for run in runs
        for point in run.bench.points
        for error in point.errors
    ]
    columns = [("load", "code"), ("kind", "text"), ("requests", NUMERIC),
               ("an example", "text")]  # fmt: skip
    return runs_table("Failed requests by kind", len(runs), columns, rows)


def published(rows: Sequence[PublishedFigure]) -> PageTable:
    cells = [
        (row.source, number(row.concurrency), number(row.output_tokens_per_s),
         number(row.tokens_per_s_per_user), number(row.tokens_per_s_per_gpu),
         milliseconds(row.e2e_ms), milliseconds(row.ttft_ms),
         row.gpus, row.engine, ". ".join(filter(None, (row.workload, row.note))))
        for row in rows
    ]  # fmt: skip
    columns = [("source", "text"), ("at a time", NUMERIC), ("output tokens/s", NUMERIC),
               ("per user", NUMERIC), ("per GPU", NUMERIC), ("e2e p50", NUMERIC),
               ("TTFT", NUMERIC), ("GPUs", NUMERIC), ("engine", "text"),
               ("workload", "text")]  # fmt: skip
    caption = "Published figures of the same model on the same GPUs"
    return without_empty_columns(make_table(caption, columns, cells))


def estimated(found: RunEstimate) -> PageTable:
    """The estimate of a bundle, and where the run's own values lie."""
    cells = [
        (one.name, number(one.measured), one.verdict, number(one.low), number(one.value),
         number(one.high), one.unit)
        for one in found.measures
    ]  # fmt: skip
    columns = [("measure", "text"), ("measured", NUMERIC), ("interval", "text"),
               ("from", NUMERIC), ("estimate", NUMERIC), ("to", NUMERIC),
               ("unit", "text")]  # fmt: skip
    caption = f"Estimate of {found.load}; four times of five a value is between the ends"
    return make_table(caption, columns, cells)


def causes(row: PublishedFigure) -> PageTable:
    """What was not the same as under a published figure, by its effect."""
    cells = [
        (cause.name, cause.published, cause.here,
         cause.effect or UNKNOWN, cause.how)
        for cause in row.causes
    ]  # fmt: skip
    columns = [("condition", "code"), ("published", "text"), ("here", "text"),
               ("effect on the speed", NUMERIC), ("how that is known", "text")]  # fmt: skip
    return make_table("What was not the same, or is not known", columns, cells)


def server_side(runs: Sequence[RunEvidence]) -> PageTable:
    """Measures of each load that only the server knows."""
    rows = [
        (run.title, point.label, percent(point.acceptance_rate), number(point.tokens_per_step),
         percent(point.kv_reused_share), milliseconds(point.stats("queue_ms").p50),
         percent(point.goodput_share), *_costs(run, point))
        for run in runs
        for point in run.bench.points
    ]  # fmt: skip
    columns = [("load", "code"), ("drafts accepted", NUMERIC),
               ("tokens per step", NUMERIC), ("KV cache reused", NUMERIC), ("queue p50", NUMERIC),
               ("within SLO", NUMERIC), ("million output tokens", NUMERIC),
               ("a task", NUMERIC)]  # fmt: skip
    caption = "Speculation, cache, queue, service level and cost"
    return without_empty_columns(runs_table(caption, len(runs), columns, rows))


def _costs(run: RunEvidence, point: LoadPoint) -> tuple[str, str]:
    """A miniature on CPU has no price."""
    if run.rehearsal:
        return usd(None), usd(None)
    return usd(point.usd_per_million_output_tokens), usd(point.usd_per_task)


def tasks(runs: Sequence[RunEvidence]) -> PageTable:
    rows = [
        (run.title, point.label, number(point.tasks), number(point.tasks_ok),
         unit(point.task_s.p50, "s"), unit(point.task_s.p99, "s"), usd(point.usd_per_task))
        for run in runs
        for point in run.bench.points
        if point.tasks is not None
    ]  # fmt: skip
    columns = [("load", "code"), ("tasks", NUMERIC), ("completed", NUMERIC),
               ("time p50", NUMERIC), ("time p99", NUMERIC), ("cost", NUMERIC)]  # fmt: skip
    return runs_table("Tasks of several calls", len(runs), columns, rows)


def metrics(run: RunEvidence) -> PageTable | None:
    """The server's own metrics at each load: a value, or by how much a counter grew."""
    points = run.bench.points
    names = list(dict.fromkeys(name for point in points for name in point.server))
    if not names:
        return None
    shown = names[:MAX_METRICS]
    more = f"; {len(names) - len(shown)} more are in bench.json" if len(names) > len(shown) else ""
    rows = [(name, *(number(point.server.get(name)) for point in points)) for name in shown]
    columns = [("metric", "code"), *((point.label, NUMERIC) for point in points)]
    return make_table(f"Metrics of the server, {run.title}{more}", columns, rows)


def smoke(run: RunEvidence) -> PageTable | None:
    if not run.smoke:
        return None
    words = {
        "passed": "pass",
        "failed": "FAIL",
        "warned": "warn",
        "skipped": "not here",
    }
    rows = [
        (f"{row.id} {row.title}", words.get(row.outcome) or row.outcome, row.transport,
         row.evidence, row.reason)
        for row in sorted(run.smoke, key=lambda row: WORST_FIRST.find(row.outcome))
    ]  # fmt: skip
    columns = [("check", "text"), ("result", "code"), ("over", "code"), ("evidence", "text"),
               ("why it matters", "text")]  # fmt: skip
    return make_table(f"Smoke checks, {run.title}", columns, rows)


def decisions(run: RunEvidence) -> PageTable | None:
    if not run.manifest:
        return None
    rows = [
        (row["path"], json.dumps(row["value"], ensure_ascii=False), row["reason"],
         row["evidence"], row["source"])
        for row in run.manifest["decisions"]
    ]  # fmt: skip
    columns = [("setting", "code"), ("value", "code"), ("reason", "text"), ("evidence", "text"),
               ("source", "text")]  # fmt: skip
    return make_table(f"Decisions of the bundle {run.bench.subject.bundle_name}", columns, rows)


def memory(run: RunEvidence) -> PageTable | None:
    """The memory budget of one GPU, and what is free."""
    found = (run.manifest or {}).get("memory", {})
    if not (budget := found.get("per_gpu")):
        return None
    sizes = {name: budget[key] for key, name in MEMORY_PARTS.items()}
    free, total = budget["total_gib"] - sum(sizes.values()), budget["total_gib"]
    sizes |= {**({"free": free} if free > 0 else {}), "total": total}
    rows = [
        *((name, f"{number(gib)} GiB") for name, gib in sizes.items()),
        ("KV cache per token", f"{number(found['kv_bytes_per_token'])} bytes"),
        ("tokens in the KV cache", number(found["kv_tokens"])),
        ("requests at a time", number(found["max_concurrency"])),
    ]
    columns = [("part", "text"), ("size", NUMERIC)]
    return make_table("Memory budget of each GPU, estimated", columns, rows)


def provenance(run: RunEvidence) -> list[tuple[str, str]]:
    """What a reader needs to reproduce the measurement."""
    result, subject = run.bench, run.bench.subject
    served_by = "its CPU build" if subject.used == subject.engine else "reference engine on CPU"
    rehearsal = f", {served_by}" if subject.rehearsal else ""
    rows = (
        ("model", " ".join(filter(None, (subject.model, subject.precision)))),
        ("GPUs", subject.gpus),
        ("engine", subject.engine_and_release + rehearsal),
        ("server", " ".join(filter(None, (subject.target, subject.server_version)))),
        ("address", subject.url),
        ("workload", _workload(result)),
        ("seed", None if result.seed is None else str(result.seed)),
        ("client", _client(result)),
        ("client load", _client_load(result)),
        ("measured", " to ".join(filter(None, (result.started, result.ended)))),
        ("bundle", _bundle(run)),
        ("server ready after", unit(run.ready_after_s, "s") if run.ready_after_s else None),
        ("results", run.place),
    )
    return [(name, value) for name, value in rows if value]


def _workload(result: BenchResults) -> str | None:
    sizes = [
        f"{name} {number(value)}"
        for name, value in (("isl", result.isl), ("osl", result.osl))
        if value
    ]
    return ", ".join([*sizes, *([result.workload] if result.workload else [])]) or None


def _client(result: BenchResults) -> str:
    name = " ".join(filter(None, (result.tool, result.tool_version or result.toolkit_version)))
    processes = f"{result.processes} client processes" if (result.processes or 0) > 1 else None
    cpus = f"{result.cpus} CPUs" if result.cpus else None
    return ", ".join(filter(None, (name, result.api, processes, cpus)))


def _client_load(result: BenchResults) -> str | None:
    if result.share_of_limit is None:
        return None
    return f"the client ran at {percent(result.share_of_limit)} of its own limit"


def _bundle(run: RunEvidence) -> str | None:
    subject = run.bench.subject
    digest = f"sha256 {subject.bundle_digest[:16]}" if subject.bundle_digest else None
    return ", ".join(filter(None, (subject.bundle_name, digest))) or None


def quality(runs: Sequence[RunEvidence]) -> PageTable | None:
    """Scores of tasks with their confidence interval, beside those of the reference."""
    rows = [
        (run.title, row.text("task"), row.text("metric"), number(row.number("score")),
         f"{number(row.number('low'))} to {number(row.number('high'))}",
         number(row.number("items")), number(row.number("reference")), row.text("verdict"))
        for run in runs
        for row in JsonObject(run.bench.quality or {}, run.place).children("tasks")
    ]  # fmt: skip
    columns = [("task", "text"), ("metric", "text"), ("score", NUMERIC), ("interval", NUMERIC),
               ("items", NUMERIC), ("reference", NUMERIC), ("verdict", "text")]  # fmt: skip
    return runs_table("Quality", len(runs), columns, rows) if rows else None
