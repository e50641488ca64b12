"""The tables of a page: failures, checks, decisions, the server's metrics, provenance."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from builder.number_format import UNKNOWN, milliseconds, number, percent, quantity, usd

from .estimated import RunEstimate
from .evidence import RunEvidence, every_point
from .published import PublishedFigure
from .results import BenchResults, JsonObject

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
OUTCOMES = {"passed": "pass", "failed": "FAIL", "warned": "warn", "skipped": "not here"}
WORST_FIRST = "failed warned passed skipped"  # an unknown outcome comes before them


Column = tuple[str, str]  # its title and kind
LOAD: Column = ("load", "load")
BAR = "bar"


@dataclass(slots=True)
class PageTable:
    """A table whose first column heads its rows.

    The kind of a column is its alignment: `num` right, `code` and `text` left; the cells of a `bar`
    are shares. Rows leave out the cells before `first`.
    """

    caption: str
    columns: list[Column]
    first: int = 0
    rows: list[list[str]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        self.rows.append(["" if cell is None else str(cell) for cell in cells[self.first :]])

    def without_empty_columns(self) -> PageTable:
        """Removes numeric columns without a value, and all rows if no column has one."""
        for index in range(len(self.columns) - 1, -1, -1):
            has_value = any(row[index] not in ("", UNKNOWN) for row in self.rows)
            if self.columns[index][1] == NUMERIC and not has_value:
                del self.columns[index]
                for row in self.rows:
                    del row[index]
        if not any(kind == NUMERIC for _, kind in self.columns):
            self.rows.clear()
        return self


def numeric(*titles: str) -> list[Column]:
    return [(title, NUMERIC) for title in titles]


def texts(*titles: str) -> list[Column]:
    return [(title, "text") for title in titles]


def runs_table(caption: str, runs: Sequence[RunEvidence], columns: Sequence[Column]) -> PageTable:
    """A table whose rows start with a run; the column is left out for a single run."""
    if len(runs) == 1:
        return PageTable(caption, list(columns), first=1)
    return PageTable(caption, [("run", "text"), *columns])


def errors(runs: Sequence[RunEvidence]) -> PageTable:
    columns = [LOAD, ("kind", "text"), ("requests", NUMERIC), ("an example", "text")]
    table = runs_table("Failed requests by kind", runs, columns)
    for run, point in every_point(runs):
        for error in point.errors:
            example = error.example[:MAX_EXAMPLE]
            table.add(run.title, point.load, error.kind, number(error.count), example)
    return table


def published(rows: Iterable[PublishedFigure]) -> PageTable:
    columns = [
        ("source", "text"),
        *numeric("concurrent", "output tokens/s", "per user", "per GPU", "e2e p50", "TTFT", "GPUs"),
        *texts("engine", "workload"),
    ]
    table = PageTable("Published figures of the same model on the same GPUs", columns)
    for row in rows:
        speeds = (row.output_tokens_per_s, row.tokens_per_s_per_user, row.tokens_per_s_per_gpu)
        times = (milliseconds(row.e2e_ms), milliseconds(row.ttft_ms))
        words = ". ".join(filter(None, (row.workload, row.note)))
        table.add(row.source, number(row.concurrency), *map(number, speeds), *times, row.gpus,
                  row.engine, words)  # fmt: skip
    return table.without_empty_columns()


def estimated(found: RunEstimate) -> PageTable:
    columns = [("measure", "text"), ("measured", NUMERIC), ("interval", "text"),
               *numeric("from", "estimate", "to")]  # fmt: skip
    caption = f"Estimate of {found.load}; four times of five a value is between the ends"
    table = PageTable(caption, columns)
    for one in found.measures:
        values = (one.measured, one.low, one.value, one.high)
        measured, *ends = (quantity(value, one.unit) for value in values)
        table.add(one.name, measured, one.verdict, *ends)
    return table


def causes(row: PublishedFigure) -> PageTable:
    """Differences from the conditions of a published figure, by effect."""
    columns = [("condition", "code"), *texts("published", "here"),
               ("effect on the speed", NUMERIC), ("how that is known", "text")]  # fmt: skip
    table = PageTable("What was not the same, or is not known", columns)
    for cause in row.causes:
        effect = cause.effect or UNKNOWN
        table.add(cause.name, cause.published, cause.here, effect, cause.how)
    return table


def server_side(runs: Sequence[RunEvidence]) -> PageTable:
    """Measures of each load that only the server knows."""
    titles = ("drafts accepted", "tokens per step", "KV cache reused", "queue p50", "within SLO",
              "million output tokens", "a task")  # fmt: skip
    caption = "Speculation, cache, queue, service level and cost"
    table = runs_table(caption, runs, [LOAD, *numeric(*titles)])
    for run, point in every_point(runs):
        costs = (point.usd_per_million_output_tokens, point.usd_per_task)
        if run.rehearsal:
            costs = (None, None)  # a miniature on CPU has no price
        table.add(run.title, point.load, percent(point.acceptance_rate),
                  number(point.tokens_per_step), percent(point.kv_reused_share),
                  milliseconds(point.stats("queue_ms").p50), percent(point.goodput_share),
                  *map(usd, costs))  # fmt: skip
    return table.without_empty_columns()


def tasks(runs: Sequence[RunEvidence]) -> PageTable:
    titles = ("tasks", "completed", "time p50", "time p99", "cost")
    table = runs_table("Tasks of several calls", runs, [LOAD, *numeric(*titles)])
    for run, point in every_point(runs):
        if point.tasks is not None:
            times = (quantity(point.task_s.p50, "s"), quantity(point.task_s.p99, "s"))
            table.add(run.title, point.load, number(point.tasks), number(point.tasks_ok), *times,
                      usd(point.usd_per_task))  # fmt: skip
    return table


def metrics(run: RunEvidence) -> PageTable | None:
    """The server's own metrics at each load: a value, or by how much a counter grew."""
    points = run.bench.points
    names: dict[str, None] = {}
    for point in points:
        names |= dict.fromkeys(point.server)
    if not names:
        return None
    left = len(names) - MAX_METRICS
    more = f"; {left} more are in bench.json" if left > 0 else ""
    columns = [("metric", "code"), *numeric(*(point.load for point in points))]
    table = PageTable(f"Metrics of the server, {run.title}{more}", columns)
    for name in list(names)[:MAX_METRICS]:
        table.add(name, *(number(point.server.get(name)) for point in points))
    return table


def smoke(run: RunEvidence) -> PageTable | None:
    if not run.smoke:
        return None
    columns = [("check", "text"), ("result", "code"), ("over", "code"),
               *texts("evidence", "why it matters")]  # fmt: skip
    table = PageTable(f"Smoke checks, {run.title}", columns)
    for row in sorted(run.smoke, key=lambda row: WORST_FIRST.find(row.outcome)):
        outcome = OUTCOMES.get(row.outcome) or row.outcome
        table.add(f"{row.id} {row.title}", outcome, row.transport, row.evidence, row.reason)
    return table


def decisions(run: RunEvidence) -> PageTable | None:
    if not run.manifest:
        return None
    columns = [("setting", "code"), ("value", "code"), *texts("reason", "evidence", "source")]
    table = PageTable(f"Decisions of the bundle {run.bench.subject.bundle_name}", columns)
    for row in run.manifest["decisions"]:
        value = json.dumps(row["value"], ensure_ascii=False)
        table.add(row["path"], value, row["reason"], row["evidence"], row["source"])
    return table


def memory(run: RunEvidence) -> PageTable | None:
    found = (run.manifest or {}).get("memory", {})
    if not (budget := found.get("per_gpu")):
        return None
    columns = [("part", "text"), ("size", NUMERIC), ("share", BAR)]
    table = PageTable("Memory budget of each GPU, estimated", columns)
    total = budget["total_gib"]
    sizes = {name: budget[key] for key, name in MEMORY_PARTS.items()}
    sizes["free"] = max(0.0, total - sum(sizes.values()))
    for name, size in (*sizes.items(), ("total", total)):
        table.add(name, quantity(size, "GiB"), size / total)
    table.add("KV cache per token", quantity(found["kv_bytes_per_token"], "bytes"), "")
    table.add("tokens in the KV cache", number(found["kv_tokens"]), "")
    table.add("concurrent requests", number(found["max_concurrency"]), "")
    return table


def provenance(run: RunEvidence) -> list[tuple[str, str]]:
    """What a reader needs to reproduce the measurement."""
    result, subject = run.bench, run.bench.subject
    served_by = "its CPU build" if subject.used == subject.engine else "reference engine on CPU"
    rehearsal = f", {served_by}" if subject.rehearsal else ""
    isl = f"isl {number(result.isl)}" if result.isl else None
    osl = f"osl {number(result.osl)}" if result.osl else None
    rows = (
        ("model", " ".join(filter(None, (subject.model, subject.precision)))),
        ("GPUs", subject.gpus),
        ("engine", subject.engine_and_release + rehearsal),
        ("server", " ".join(filter(None, (subject.target, subject.server_version)))),
        ("address", subject.url),
        ("workload", ", ".join(filter(None, (isl, osl, result.workload)))),
        ("seed", None if result.seed is None else str(result.seed)),
        ("client", _client(result)),
        ("client load", _client_load(result)),
        ("measured", " to ".join(filter(None, (result.started, result.ended)))),
        ("bundle", _bundle(run)),
        ("server ready after", _ready_after(run)),
        ("results", run.place),
    )
    return [(name, value) for name, value in rows if value]


def _ready_after(run: RunEvidence) -> str | None:
    seconds = run.start.ready_after_s if run.start else None
    return quantity(seconds, "s") if seconds else None


def phases(runs: Sequence[RunEvidence]) -> PageTable:
    """The seconds of each phase of a start, and those that an earlier start took."""
    columns = [("phase", "text"), *numeric("took", "expected", "difference")]
    table = runs_table("Phases of the start", runs, columns)
    for run in runs:
        for name, took in run.start.phases.items() if run.start else ():
            wanted = run.start.expected.get(name) if run.start else None
            more = took - wanted if took is not None and wanted else None
            sign = "+" if more and more > 0 else ""
            table.add(run.title, name, *(quantity(one, "s") for one in (took, wanted)),
                      UNKNOWN if more is None else f"{sign}{quantity(more, 's')}")  # fmt: skip
    return table.without_empty_columns()


def options_in_force(runs: Sequence[RunEvidence]) -> PageTable:
    """What the plan wants of options and memory, and what the engine logged."""
    columns = [("quantity", "code"), *numeric("planned", "in force", "difference"),
               *texts("unit", "verdict")]  # fmt: skip
    table = runs_table("Planned and in force", runs, columns)
    for run in runs:
        for row in run.start.options if run.start else ():
            table.add(run.title, *row)
    return table


def log_lines(rows: Sequence[tuple[str, str]], caption: str) -> PageTable:
    return PageTable(
        caption, [("file and line", "code"), ("text", "code")], 0, list(map(list, rows))
    )


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
    columns = [*texts("task", "metric"), *numeric("score", "interval", "items", "reference"),
               ("verdict", "text")]  # fmt: skip
    table = runs_table("Quality", runs, columns)
    for run in runs:
        for row in JsonObject(run.bench.quality or {}, run.place).children("tasks"):
            interval = f"{number(row.number('low'))} to {number(row.number('high'))}"
            table.add(run.title, row.text("task"), row.text("metric"), number(row.number("score")),
                      interval, number(row.number("items")), number(row.number("reference")),
                      row.text("verdict"))  # fmt: skip
    return table if table.rows else None
