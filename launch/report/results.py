"""The results of one run: its bench.json and smoke.json, read and validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from builder.diagnostics import Diagnostic

from ..bench.results import FORMAT
from ..smoke.results import CheckResult
from .json_object import JsonObject, json_field

LATENCIES = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "queue_ms")
SLO_MEASURES = ("ttft_ms", "itl_ms", "e2e_ms")
SMOKE_TEXTS = ("id", "title", "reason", "transport", "outcome", "evidence")
SIZES = ("prompt_tokens", "output_tokens")
RATES = (
    "output_tokens_per_s",
    "total_tokens_per_s",
    "requests_per_s",
    "output_tokens_per_s_per_user",
    "output_tokens_per_s_per_gpu",
)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Statistics of a measure over requests or tokens. Unknown values are None."""

    n: float | None
    mean: float | None
    stddev: float | None
    min: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


UNKNOWN = Distribution(*[None] * 9)


@dataclass(frozen=True, slots=True)
class FailureCount:
    """Requests that failed with one kind of error."""

    kind: str
    count: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One load level and its results. `distributions` and `rates` have the names of bench.json."""

    label: str
    concurrency: int | None = json_field("load.concurrency")
    rate_per_s: float | None = json_field("load.rate_per_s")
    sent: int | None = json_field("requests.sent")
    ok: int | None = json_field("requests.ok")
    failed: int | None = json_field("requests.failed")
    errors: tuple[FailureCount, ...]
    itl_of: str
    distributions: Mapping[str, Distribution]
    rates: Mapping[str, float | None]
    client_limited: bool
    goodput_share: float | None = json_field("goodput.share")
    acceptance_rate: float | None = json_field("speculative.acceptance_rate")
    tokens_per_step: float | None = json_field("speculative.tokens_per_step")
    kv_reused_share: float | None = json_field("kv_cache.reused_share")
    usd_per_million_output_tokens: float | None = json_field("cost.usd_per_million_output_tokens")
    usd_per_task: float | None = json_field("cost.usd_per_task")
    tasks: int | None = json_field("tasks.count")
    tasks_ok: int | None = json_field("tasks.ok")
    task_s: Distribution
    server: Mapping[str, float | None]

    def stats(self, name: str) -> Distribution:
        return self.distributions.get(name, UNKNOWN)

    def rate(self, name: str) -> float | None:
        return self.rates.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSystem:
    """The system under test: model, hardware, engine, bundle and server."""

    name: str
    model: str | None
    precision: str | None
    gpu: str | None
    num_gpus: int | None
    engine: str | None = json_field("engine.name")
    release: str | None = json_field("engine.release")
    used: str | None = json_field("engine.used")
    rehearsal: bool = json_field("engine.rehearsal")
    bundle_name: str | None = json_field("bundle.name")
    bundle_folder: str | None = json_field("bundle.folder")
    bundle_digest: str | None = json_field("bundle.digest")
    target: str | None
    url: str | None
    server_version: str | None

    @property
    def gpus(self) -> str | None:
        return f"{self.num_gpus or '?'}x {self.gpu}" if self.gpu else None

    @property
    def engine_and_release(self) -> str:
        return " ".join(filter(None, (self.engine, self.release)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResults:
    """A bench.json. `imported` says that another tool measured; `share_of_limit` is how near the
    client came to its own limit."""

    subject: MeasuredSystem
    started: str | None
    ended: str | None
    outcome: str | None
    failure: str | None
    imported: bool
    toolkit_version: str | None
    tool: str
    tool_version: str | None = json_field("client.version")
    api: str | None = json_field("client.api")
    processes: int | None = json_field("client.processes")
    cpus: int | None = json_field("client.host.cpus")
    share_of_limit: float | None = json_field("client.share_of_limit")
    near_limit: bool = json_field("client.marked")
    workload: str | None = json_field("workload.words")
    kind: str | None = json_field("workload.kind")
    ignore_eos: bool | None = json_field("workload.ignore_eos")
    context_length: float | None = json_field("workload.context_length")
    isl: float | None = json_field("workload.isl")
    osl: float | None = json_field("workload.osl")
    slo: Mapping[str, float]
    price_per_gpu_hour_usd: float | None
    seed: int | None
    points: tuple[LoadPoint, ...]
    largest_concurrency_within_slo: int | None
    quality: Mapping[str, Any] | None

    @property
    def interrupted(self) -> bool:
        return self.outcome == "interrupted"

    @property
    def clean_points(self) -> tuple[LoadPoint, ...]:
        """Points that served requests without failures; only they count in a headline."""
        return tuple(point for point in self.points if not point.failed and point.ok != 0)

    @property
    def headline(self) -> LoadPoint | None:
        """The point with the highest output of those at which no request failed."""
        rates = [(rate, p) for p in self.clean_points if (rate := p.rate(RATES[0]))]
        return max(rates, key=lambda pair: pair[0])[1] if rates else None

    @property
    def sent(self) -> int:
        return sum(point.sent or 0 for point in self.points)

    @property
    def ok(self) -> int:
        return sum(point.ok or 0 for point in self.points)

    @property
    def failed(self) -> int:
        return sum(point.failed or 0 for point in self.points)


def read_bench(document: Any, where: str) -> BenchResults:
    """A bench.json as dataclasses. Raises `BadInput` with everything that is wrong in it."""
    top = JsonObject(document, where)
    _check_format(top)
    subject = top.child("subject")
    slo = {name: top.child("slo").number(name) for name in SLO_MEASURES}
    results = top.read(
        BenchResults,
        subject=subject.read(
            MeasuredSystem, name=subject.text("name") or subject.text("model") or where
        ),
        tool=top.child("client").text("tool") or "an unnamed client",
        slo={name: value for name, value in slo.items() if value is not None},
        points=tuple(sorted(map(_point, top.children("points")), key=_load_order)),
        quality=top.child("quality").values or None,
    )
    top.check()
    return results


def read_smoke(document: Any, where: str) -> list[CheckResult]:
    """The results in a smoke.json. Raises `BadInput` with everything that is wrong in it."""
    top = JsonObject(document, where)
    rows = [
        CheckResult(
            **{name: row.text(name) or "" for name in SMOKE_TEXTS},  # type: ignore[arg-type]
            seconds=row.number("seconds") or 0.0,
        )
        for row in top.children("results")
    ]
    top.check()
    return rows


def _check_format(top: JsonObject) -> None:
    """The parts without which nothing else can be read."""
    top.check()
    if (found := top.number("format")) != FORMAT:
        what = f"is {found}; this version reads {FORMAT}"
        remedy = "measure again, or use the version that measured"
        top.diagnostics.append(Diagnostic(f"{top.where}: format", what, remedy))
        top.check()
    for key in ("subject", "points"):
        top.require(key)


def _load_order(point: LoadPoint) -> tuple[bool, float]:
    """Whatever the order in which they were measured, loads stand from the least to the most."""
    return (point.rate_per_s is not None, point.rate_per_s or point.concurrency or 0)


def check_counts(row: JsonObject) -> None:
    """Diagnostics of counts of a point that contradict each other, and of speeds below 0."""
    requests = row.child("requests")
    sent, ok, failed = (requests.count(key) for key in ("sent", "ok", "failed"))
    if sent is not None and (ok or 0) + (failed or 0) > sent:
        requests.fault("sent", f"is {sent}, with {ok or 0} successes and {failed or 0} failures")
    for name in RATES:
        if (row.number(name) or 0) < 0:
            row.fault(name, "is below 0")


def _point(row: JsonObject) -> LoadPoint:
    row.require("label")
    check_counts(row)
    return row.read(
        LoadPoint,
        label=row.text("label") or "",
        errors=tuple(
            FailureCount(kind, one.count("count") or 0, one.text("example") or "")
            for kind, one in row.named("errors").items()
        ),
        itl_of=row.text("itl_of") or "tokens",
        distributions={name: row.child(name).read(Distribution) for name in (*LATENCIES, *SIZES)},
        rates={name: row.number(name) for name in RATES},
        task_s=row.child("tasks").child("total_s").read(Distribution),
        server=_server(row.child("server")),
    )


def _server(fields: JsonObject) -> dict[str, float | None]:
    """Each metric of the server: its value, or the increase of a counter."""
    values = {}
    for name, value in fields.values.items():
        if isinstance(value, dict):
            pair = fields.child(name)
            before, after = pair.number("before"), pair.number("after")
            values[name] = None if before is None or after is None else after - before
        else:
            values[name] = fields.number(name)
    return values
