"""The results of one run: its bench.json and smoke.json, read and validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from builder.diagnostics import Diagnostic

from ..bench.results import FORMAT
from .json_object import JsonObject

LATENCIES = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "queue_ms")
SIZES = ("prompt_tokens", "output_tokens")
SMOKE_COUNTS = ("checks", "passed", "failed", "warnings", "skipped")
SMOKE_TEXTS = ("id", "title", "outcome", "transport", "evidence", "reason")
RATES = (
    "output_tokens_per_s",
    "total_tokens_per_s",
    "requests_per_s",
    "output_tokens_per_s_per_user",
    "output_tokens_per_s_per_gpu",
)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Statistics of a measure over requests, or over tokens. What is unknown is None."""

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
class FailureKind:
    """Requests that failed with one kind of error."""

    kind: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One load level and its results. `distributions` and `rates` have the names of bench.json."""

    label: str
    concurrency: int | None
    rate_per_s: float | None
    sent: int | None
    ok: int | None
    failed: int | None
    errors: tuple[FailureKind, ...]
    itl_of: str
    distributions: Mapping[str, Distribution]
    rates: Mapping[str, float | None]
    client_limited: bool
    goodput_share: float | None
    acceptance_rate: float | None
    tokens_per_step: float | None
    kv_reused_share: float | None
    usd_per_million_output_tokens: float | None
    usd_per_task: float | None
    tasks: int | None
    tasks_ok: int | None
    task_s: Distribution
    server: Mapping[str, float | None]

    def stats(self, name: str) -> Distribution:
        return self.distributions.get(name, UNKNOWN)

    def rate(self, name: str) -> float | None:
        return self.rates.get(name)


@dataclass(frozen=True, slots=True)
class MeasuredSystem:
    """The system under test: model, hardware, engine, bundle and server."""

    name: str
    model: str | None
    precision: str | None
    gpu: str | None
    num_gpus: int | None
    engine: str | None
    release: str | None
    rehearsal: bool
    bundle_name: str | None
    bundle_folder: str | None
    bundle_digest: str | None
    target: str | None
    url: str | None
    server_version: str | None

    @property
    def gpus(self) -> str | None:
        return f"{self.num_gpus or '?'}x {self.gpu}" if self.gpu else None

    @property
    def engine_and_release(self) -> str:
        return " ".join(filter(None, (self.engine, self.release)))


@dataclass(frozen=True, slots=True)
class BenchResults:
    """A bench.json. `imported` says that another tool measured; `share_of_limit` is how near the
    client came to its own limit."""

    subject: MeasuredSystem
    started: str | None
    ended: str | None
    interrupted: bool
    imported: bool
    toolkit_version: str | None
    tool: str
    tool_version: str | None
    api: str | None
    processes: int | None
    cpus: int | None
    share_of_limit: float | None
    near_limit: bool
    workload: str | None
    isl: float | None
    osl: float | None
    slo: Mapping[str, float]
    price_per_gpu_hour_usd: float | None
    seed: int | None
    points: tuple[LoadPoint, ...]
    largest_concurrency_within_slo: int | None
    quality: Mapping[str, Any] | None

    @property
    def sent(self) -> int:
        return sum(point.sent or 0 for point in self.points)

    @property
    def failed(self) -> int:
        return sum(point.failed or 0 for point in self.points)


def read_bench(document: Any, where: str) -> BenchResults:
    """A bench.json as dataclasses. Raises `BadInput` with everything that is wrong in it."""
    top = JsonObject(document, where)
    _check_format(top)
    points = tuple(_point(row) for row in top.children("points"))
    client, workload = top.child("client"), top.child("workload")
    results = BenchResults(
        subject=_measured_system(top.child("subject"), where),
        started=top.text("started"),
        ended=top.text("ended"),
        interrupted=top.text("outcome") == "interrupted",
        imported=top.flag("imported"),
        toolkit_version=top.text("toolkit_version"),
        tool=client.text("tool") or "an unnamed client",
        tool_version=client.text("version"),
        api=client.text("api"),
        processes=client.count("processes"),
        cpus=client.child("host").count("cpus"),
        share_of_limit=client.number("share_of_limit"),
        near_limit=client.flag("marked"),
        workload=workload.text("words"),
        isl=workload.number("isl"),
        osl=workload.number("osl"),
        slo=_slo(top.child("slo")),
        price_per_gpu_hour_usd=top.number("price_per_gpu_hour_usd"),
        seed=top.count("seed"),
        points=points,
        largest_concurrency_within_slo=top.count("largest_concurrency_within_slo"),
        quality=top.child("quality").values or None,
    )
    top.check()
    return results


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


def _measured_system(fields: JsonObject, where: str) -> MeasuredSystem:
    engine, bundle = fields.child("engine"), fields.child("bundle")
    return MeasuredSystem(
        name=fields.text("name") or fields.text("model") or where,
        model=fields.text("model"),
        precision=fields.text("precision"),
        gpu=fields.text("gpu"),
        num_gpus=fields.count("num_gpus"),
        engine=engine.text("name"),
        release=engine.text("release"),
        rehearsal=engine.flag("rehearsal"),
        bundle_name=bundle.text("name"),
        bundle_folder=bundle.text("folder"),
        bundle_digest=bundle.text("digest"),
        target=fields.text("target"),
        url=fields.text("url"),
        server_version=fields.text("server_version"),
    )


def _slo(fields: JsonObject) -> dict[str, float]:
    values = {name: fields.number(name) for name in ("ttft_ms", "itl_ms", "e2e_ms")}
    return {name: value for name, value in values.items() if value is not None}


def _point(row: JsonObject) -> LoadPoint:
    load, requests, tasks = row.child("load"), row.child("requests"), row.child("tasks")
    goodput, speculative = row.child("goodput"), row.child("speculative")
    row.require("label")
    return LoadPoint(
        label=row.text("label") or "",
        concurrency=load.count("concurrency"),
        rate_per_s=load.number("rate_per_s"),
        sent=requests.count("sent"),
        ok=requests.count("ok"),
        failed=requests.count("failed"),
        errors=tuple(
            FailureKind(kind, one.count("count") or 0, one.text("example") or "")
            for kind, one in row.named("errors").items()
        ),
        itl_of=row.text("itl_of") or "tokens",
        distributions={name: _distribution(row.child(name)) for name in (*LATENCIES, *SIZES)},
        rates={name: row.number(name) for name in RATES},
        client_limited=row.flag("client_limited"),
        goodput_share=goodput.number("share"),
        acceptance_rate=speculative.number("acceptance_rate"),
        tokens_per_step=speculative.number("tokens_per_step"),
        kv_reused_share=row.child("kv_cache").number("reused_share"),
        usd_per_million_output_tokens=row.child("cost").number("usd_per_million_output_tokens"),
        usd_per_task=row.child("cost").number("usd_per_task"),
        tasks=tasks.count("count"),
        tasks_ok=tasks.count("ok"),
        task_s=_distribution(tasks.child("total_s")),
        server=_server(row.child("server")),
    )


def _distribution(row: JsonObject) -> Distribution:
    return Distribution(*(row.number(name) for name in Distribution.__slots__))


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


@dataclass(frozen=True, slots=True)
class SmokeResults:
    """A smoke.json. Each row of `results` has the texts of `SMOKE_TEXTS`."""

    checks: int
    passed: int
    failed: int
    warnings: int
    skipped: int
    results: tuple[Mapping[str, str], ...]


def read_smoke(document: Any, where: str) -> SmokeResults:
    """Raises `BadInput` with everything that is wrong in the document."""
    top = JsonObject(document, where)
    results = SmokeResults(
        **{name: top.count(name) or 0 for name in SMOKE_COUNTS},
        results=tuple(
            {name: row.text(name) or "" for name in SMOKE_TEXTS} for row in top.children("results")
        ),
    )
    top.check()
    return results
