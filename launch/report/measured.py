"""What one run measured: a bench.json document, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from builder.diagnostics import Diagnostic

from ..bench.document import FORMAT
from .fields import Fields

LATENCIES = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "queue_ms")
SIZES = ("prompt_tokens", "output_tokens")
RATES = (
    "output_tokens_per_s",
    "total_tokens_per_s",
    "requests_per_s",
    "output_tokens_per_s_per_user",
    "output_tokens_per_s_per_gpu",
)


@dataclass(frozen=True, slots=True)
class Spread:
    """How a measure is spread over requests, or over tokens. What is not known is None."""

    n: float | None
    mean: float | None
    stddev: float | None
    min: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


UNKNOWN = Spread(*[None] * 9)


@dataclass(frozen=True, slots=True)
class Errors:
    """Requests that failed in one way."""

    kind: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Point:
    """One load and what came of it. `spreads` and `rates` go by the names of bench.json."""

    label: str
    load: str
    concurrency: int | None
    rate_per_s: float | None
    duration_s: float | None
    window: str | None
    sent: int | None
    ok: int | None
    failed: int | None
    errors: tuple[Errors, ...]
    itl_of: str
    spreads: Mapping[str, Spread]
    rates: Mapping[str, float | None]
    goodput_share: float | None
    goodput_per_s: float | None
    acceptance_rate: float | None
    tokens_per_step: float | None
    speculative_source: str | None
    kv_reused_share: float | None
    usd_per_million_output_tokens: float | None
    usd_per_task: float | None
    tasks: int | None
    tasks_ok: int | None
    task_s: Spread
    server: Mapping[str, float | None]

    def spread(self, name: str) -> Spread:
        return self.spreads.get(name, UNKNOWN)

    def rate(self, name: str) -> float | None:
        return self.rates.get(name)


@dataclass(frozen=True, slots=True)
class Subject:
    """What was measured."""

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


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. `share_of_limit` is how near the client came to its own limit."""

    subject: Subject
    started: str | None
    ended: str | None
    interrupted: bool
    toolkit_version: str | None
    tool: str
    tool_version: str | None
    api: str | None
    processes: int | None
    cpus: int | None
    calibration: Mapping[str, Any] | None
    share_of_limit: float | None
    near_limit: bool
    workload: str | None
    workload_kind: str | None
    isl: float | None
    osl: float | None
    slo: Mapping[str, float]
    price_per_gpu_hour_usd: float | None
    seed: int | None
    points: tuple[Point, ...]
    largest_concurrency_within_slo: int | None
    quality: Mapping[str, Any] | None

    @property
    def sent(self) -> int:
        return sum(point.sent or 0 for point in self.points)

    @property
    def failed(self) -> int:
        return sum(point.failed or 0 for point in self.points)


def read(document: Any, where: str) -> Measured:
    """A document as dataclasses. Raises `BadInput` with everything that is wrong in it."""
    top = Fields(document, where)
    _check_form(top)
    points = tuple(_point(row) for row in top.children("points"))
    client, workload = top.child("client"), top.child("workload")
    measured = Measured(
        subject=_subject(top.child("subject"), where),
        started=top.text("started"),
        ended=top.text("ended"),
        interrupted=top.text("outcome") == "interrupted",
        toolkit_version=top.text("toolkit_version"),
        tool=client.text("tool") or "a client that is not named",
        tool_version=client.text("version"),
        api=client.text("api"),
        processes=client.count("processes"),
        cpus=client.child("host").count("cpus"),
        calibration=client.child("calibration").values or None,
        share_of_limit=client.number("share_of_limit"),
        near_limit=client.flag("marked"),
        workload=workload.text("words"),
        workload_kind=workload.text("kind"),
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
    return measured


def _check_form(top: Fields) -> None:
    """The parts without which nothing else can be read."""
    top.check()
    if (found := top.number("format")) != FORMAT:
        what = f"is {found}; this version reads {FORMAT}"
        remedy = "measure again, or use the version that measured"
        top.diagnostics.append(Diagnostic(f"{top.where}: format", what, remedy))
        top.check()
    for key in ("subject", "points"):
        top.need(key)


def _subject(fields: Fields, where: str) -> Subject:
    engine, bundle = fields.child("engine"), fields.child("bundle")
    return Subject(
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


def _slo(fields: Fields) -> dict[str, float]:
    values = {name: fields.number(name) for name in ("ttft_ms", "itl_ms", "e2e_ms")}
    return {name: value for name, value in values.items() if value is not None}


def _point(row: Fields) -> Point:
    load, requests, tasks = row.child("load"), row.child("requests"), row.child("tasks")
    goodput, speculative = row.child("goodput"), row.child("speculative")
    row.need("label")
    return Point(
        label=row.text("label") or "",
        load=load.text("kind") or "",
        concurrency=load.count("concurrency"),
        rate_per_s=load.number("rate_per_s"),
        duration_s=row.number("duration_s"),
        window=row.child("window").text("kind"),
        sent=requests.count("sent"),
        ok=requests.count("ok"),
        failed=requests.count("failed"),
        errors=tuple(
            Errors(kind, one.count("count") or 0, one.text("example") or "")
            for kind, one in row.named("errors").items()
        ),
        itl_of=row.text("itl_of") or "tokens",
        spreads={name: _spread(row.child(name)) for name in (*LATENCIES, *SIZES)},
        rates={name: row.number(name) for name in RATES},
        goodput_share=goodput.number("share"),
        goodput_per_s=goodput.number("requests_per_s"),
        acceptance_rate=speculative.number("acceptance_rate"),
        tokens_per_step=speculative.number("tokens_per_step"),
        speculative_source=speculative.text("source"),
        kv_reused_share=row.child("kv_cache").number("reused_share"),
        usd_per_million_output_tokens=row.child("cost").number("usd_per_million_output_tokens"),
        usd_per_task=row.child("cost").number("usd_per_task"),
        tasks=tasks.count("count"),
        tasks_ok=tasks.count("ok"),
        task_s=_spread(tasks.child("total_s")),
        server=_server(row.child("server")),
    )


def _spread(fields: Fields) -> Spread:
    return Spread(*(fields.number(name) for name in Spread.__slots__))


def _server(fields: Fields) -> dict[str, float | None]:
    """Each metric of the server: its value, or by how much it grew."""
    grown = {}
    for name, value in fields.values.items():
        if isinstance(value, dict):
            pair = fields.child(name)
            before, after = pair.number("before"), pair.number("after")
            grown[name] = None if before is None or after is None else after - before
        else:
            grown[name] = fields.number(name)
    return grown
