"""The tables that stand without a chart: failures, checks, decisions, memory, the server."""

from __future__ import annotations

import json
from collections.abc import Sequence

from . import table
from .evidence import Evidence
from .fields import Fields
from .measured import Measured, Point
from .numerals import milliseconds, number, percent, unit, usd
from .published import Published
from .table import NUMERIC, Table

MAX_METRICS = 40
EXAMPLE = 300  # letters of an error message
WORST_FIRST = "failed warned passed skipped"  # what is not known comes before them


def errors(runs: Sequence[Evidence]) -> Table:
    rows = [
        (run.title, point.label, error.kind, number(error.count), error.example[:EXAMPLE])
        for run in runs
        for point in run.measured.points
        for error in point.errors
    ]
    columns = [("load", "code"), ("kind", "text"), ("requests", NUMERIC),
               ("an example", "text")]  # fmt: skip
    return table.of_runs("Failed requests by kind", len(runs), columns, rows)


def published(rows: Sequence[Published]) -> Table:
    cells = [
        (row.source, number(row.concurrency), number(row.output_tokens_per_s),
         number(row.tokens_per_s_per_user), number(row.tokens_per_s_per_gpu),
         milliseconds(row.e2e_ms), milliseconds(row.ttft_ms),
         f"{row.num_gpus or '?'}x {row.engine}", ". ".join(filter(None, (row.workload, row.note))),
         "; ".join(row.differences) or "nothing that is known")
        for row in rows
    ]  # fmt: skip
    columns = [("source", "text"), ("at a time", NUMERIC), ("output tokens/s", NUMERIC),
               ("per user", NUMERIC), ("per GPU", NUMERIC), ("e2e p50", NUMERIC),
               ("TTFT", NUMERIC), ("GPUs and engine", "text"), ("workload", "text"),
               ("differs from this run in", "text")]  # fmt: skip
    caption = "Published figures of the same model on the same GPUs"
    return table.dense(table.make(caption, columns, cells))


def server_side(runs: Sequence[Evidence]) -> Table:
    """What only the server knows of each load."""
    rows = [
        (run.title, point.label, percent(point.acceptance_rate), number(point.tokens_per_step),
         percent(point.kv_reused_share), milliseconds(point.spread("queue_ms").p50),
         percent(point.goodput_share), *_costs(run, point))
        for run in runs
        for point in run.measured.points
    ]  # fmt: skip
    columns = [("load", "code"), ("drafts accepted", NUMERIC),
               ("tokens per step", NUMERIC), ("KV cache reused", NUMERIC), ("queue p50", NUMERIC),
               ("within SLO", NUMERIC), ("million output tokens", NUMERIC),
               ("a task", NUMERIC)]  # fmt: skip
    caption = "Speculation, cache, queue, service level and cost"
    return table.dense(table.of_runs(caption, len(runs), columns, rows))


def _costs(run: Evidence, point: Point) -> tuple[str, str]:
    """A miniature on CPU has no price."""
    if run.rehearsal:
        return usd(None), usd(None)
    return usd(point.usd_per_million_output_tokens), usd(point.usd_per_task)


def tasks(runs: Sequence[Evidence]) -> Table:
    rows = [
        (run.title, point.label, number(point.tasks), number(point.tasks_ok),
         unit(point.task_s.p50, "s"), unit(point.task_s.p99, "s"), usd(point.usd_per_task))
        for run in runs
        for point in run.measured.points
        if point.tasks is not None
    ]  # fmt: skip
    columns = [("load", "code"), ("tasks", NUMERIC), ("completed", NUMERIC),
               ("time p50", NUMERIC), ("time p99", NUMERIC), ("cost", NUMERIC)]  # fmt: skip
    return table.of_runs("Tasks of several calls", len(runs), columns, rows)


def metrics(run: Evidence) -> Table | None:
    """The server's own metrics at each load: a value, or by how much a counter grew."""
    points = run.measured.points
    names = list(dict.fromkeys(name for point in points for name in point.server))
    if not names:
        return None
    shown = names[:MAX_METRICS]
    more = f"; {len(names) - len(shown)} more are in bench.json" if len(names) > len(shown) else ""
    rows = [(name, *(number(point.server.get(name)) for point in points)) for name in shown]
    columns = [("metric", "code"), *((point.label, NUMERIC) for point in points)]
    return table.make(f"Metrics of the server, {run.title}{more}", columns, rows)


def smoke(run: Evidence) -> Table | None:
    if not run.smoke:
        return None
    words = {"passed": "pass", "failed": "FAIL", "warned": "warn", "skipped": "not here"}
    rows = [
        (f"{row.id} {row.title}", words.get(row.outcome, row.outcome), row.transport, row.evidence,
         row.reason)
        for row in sorted(run.smoke.results, key=lambda row: WORST_FIRST.find(row.outcome))
    ]  # fmt: skip
    columns = [("check", "text"), ("result", "code"), ("over", "code"), ("seen", "text"),
               ("why it matters", "text")]  # fmt: skip
    return table.make(f"Smoke checks, {run.title}", columns, rows)


def decisions(run: Evidence) -> Table | None:
    if not run.manifest:
        return None
    rows = [
        (row["path"], json.dumps(row["value"], ensure_ascii=False), row["reason"],
         row["evidence"], row["source"])
        for row in run.manifest["decisions"]
    ]  # fmt: skip
    columns = [("setting", "code"), ("value", "code"), ("reason", "text"), ("evidence", "text"),
               ("source", "text")]  # fmt: skip
    return table.make(f"Decisions of the bundle {run.measured.subject.bundle_name}", columns, rows)


PARTS = {
    "weights_gib": "weights",
    "kv_cache_gib": "KV cache",
    "activations_gib": "activations",
    "cuda_graphs_gib": "CUDA graphs",
    "other_gib": "other",
}


def memory_parts(run: Evidence) -> list[tuple[str, float]]:
    """The memory budget of one GPU in GiB, and what is left."""
    budget = (run.manifest or {}).get("memory", {}).get("per_gpu")
    if not budget:
        return []
    parts = [(name, budget[key]) for key, name in PARTS.items()]
    left = budget["total_gib"] - sum(gib for _, gib in parts)
    return [*parts, ("free", left)] if left > 0 else parts


def memory(run: Evidence) -> Table | None:
    if not run.manifest or not (parts := memory_parts(run)):
        return None
    found = run.manifest["memory"]
    rows = [(name, f"{number(gib)} GiB") for name, gib in parts]
    rows += [
        ("total", f"{number(found['per_gpu']['total_gib'])} GiB"),
        ("KV cache per token", f"{number(found['kv_bytes_per_token'])} bytes"),
        ("tokens in the KV cache", number(found["kv_tokens"])),
        ("requests at a time", number(found["max_concurrency"])),
    ]
    columns = [("part", "text"), ("size", NUMERIC)]
    return table.make("Memory budget of each GPU, estimated", columns, rows)


def provenance(run: Evidence) -> list[tuple[str, str]]:
    """Everything that a reader needs to measure the same again."""
    result, subject = run.measured, run.measured.subject
    engine = " ".join(filter(None, (subject.engine, subject.release)))
    rows = (
        ("model", " ".join(filter(None, (subject.model, subject.precision)))),
        ("GPUs", f"{subject.num_gpus or '?'}x {subject.gpu}" if subject.gpu else None),
        ("engine", f"{engine}, reference engine on CPU" if subject.rehearsal else engine),
        ("server", " ".join(filter(None, (subject.target, subject.server_version)))),
        ("address", subject.url),
        ("workload", _workload(result)),
        ("seed", None if result.seed is None else str(result.seed)),
        ("client", _client(result)),
        ("calibration", _calibration(result)),
        ("measured", " to ".join(filter(None, (result.started, result.ended)))),
        ("bundle", _bundle(run)),
        ("server ready after", unit(run.ready_after_s, "s") if run.ready_after_s else None),
        ("results", run.place),
    )
    return [(name, value) for name, value in rows if value]


def _workload(result: Measured) -> str | None:
    sizes = [
        f"{name} {number(value)}"
        for name, value in (("isl", result.isl), ("osl", result.osl))
        if value
    ]
    return ", ".join([*sizes, *([result.workload] if result.workload else [])]) or None


def _client(result: Measured) -> str:
    name = " ".join(filter(None, (result.tool, result.tool_version or result.toolkit_version)))
    processes = f"{result.processes} client processes" if (result.processes or 0) > 1 else None
    cpus = f"{result.cpus} CPUs" if result.cpus else None
    return ", ".join(filter(None, (name, result.api, processes, cpus)))


def _calibration(result: Measured) -> str | None:
    if result.share_of_limit is not None:
        return f"the client ran at {percent(result.share_of_limit)} of its own limit"
    own = result.toolkit_version is not None and result.points
    return "not calibrated: run launch bench calibrate on this host first" if own else None


def _bundle(run: Evidence) -> str | None:
    subject = run.measured.subject
    digest = f"sha256 {subject.bundle_digest[:16]}" if subject.bundle_digest else None
    return ", ".join(filter(None, (subject.bundle_name, digest))) or None


def quality(runs: Sequence[Evidence]) -> Table | None:
    """Scores of tasks with their confidence interval, beside those of the reference."""
    rows = [
        (run.title, row.text("task"), row.text("metric"), number(row.number("score")),
         f"{number(row.number('low'))} to {number(row.number('high'))}",
         number(row.number("items")), number(row.number("reference")), row.text("verdict"))
        for run in runs
        for row in Fields(run.measured.quality or {}, run.place).children("tasks")
    ]  # fmt: skip
    columns = [("task", "text"), ("metric", "text"), ("score", NUMERIC), ("interval", NUMERIC),
               ("items", NUMERIC), ("reference", NUMERIC), ("verdict", "text")]  # fmt: skip
    return table.of_runs("Quality", len(runs), columns, rows) if rows else None
