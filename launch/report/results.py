"""Reads bench.json and smoke.json of a run; every value of a wrong type gets a diagnostic."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

from builder import files
from builder.diagnostics import Diagnostic
from builder.errors import BadInput
from builder.facts.published_results import SHORT_NAMES
from builder.number_format import number

from ..bench.results import FORMAT
from ..smoke.results import CheckResult

# Of a result file with a figure for every token of thousands of requests.
MAX_VALUES = 4_000_000
REMEDY = "write the file again with the tool that made it"

T = TypeVar("T")


# How `JsonObject.read` takes a field, by the first word of its annotation.
KINDS = {"str": "text", "float": "number", "int": "count", "bool": "flag"}


def json_field(path: str) -> Any:
    """A dataclass field that `JsonObject.read` takes from a dotted path, not from its own name."""
    return field(metadata={"path": path})


class UnknownFormat(BadInput):
    """A file that is no result of a known tool."""


class JsonObject:
    """A JSON object and its location; missing and null values become `None`.

    All objects of one document collect their diagnostics in one list, which `check` raises.
    """

    def __init__(
        self, document: Any, where: str, path: str = "", diagnostics: list[Diagnostic] | None = None
    ) -> None:
        self.where, self.path = where, path
        self.diagnostics: list[Diagnostic] = [] if diagnostics is None else diagnostics
        if not isinstance(document, dict):
            self._wrong("", document, "an object")
            document = {}
        self.values: dict[str, Any] = document
        self._children: dict[str, JsonObject] = {}

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is None or isinstance(value, str):
            return value
        self._wrong(key, value, "text")
        return None

    def number(self, key: str) -> float | None:
        value = self.values.get(key)
        if value is None or (_is_number(value) and math.isfinite(value)):
            return value  # an int stays one: it is a count
        self._wrong(key, value, "a number")
        return None

    def count(self, key: str) -> int | None:
        value = self.number(key)
        if value is not None and value >= 0 and value == int(value):
            return int(value)
        if value is not None:
            self._wrong(key, value, "a count")
        return None

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        self._wrong(key, value, "true or false")
        return False

    def child(self, key: str) -> JsonObject:
        """The object under a key, empty if it is missing."""
        if key not in self._children:
            found = {} if (value := self.values.get(key)) is None else value
            child = JsonObject(found, self.where, self._at(key), self.diagnostics)
            self._children[key] = child
        return self._children[key]

    def children(self, key: str) -> Iterator[JsonObject]:
        value = self.values.get(key)
        if not isinstance(value, list):
            if value is not None:
                self._wrong(key, value, "a list")
            return
        for index, item in enumerate(value):
            yield JsonObject(item, self.where, f"{self._at(key)}[{index}]", self.diagnostics)

    def read(self, dataclass: type[T], **others: Any) -> T:
        """A dataclass with the values in `others`; the rest is read by annotation."""
        for one in fields(dataclass):  # type: ignore[arg-type]
            if one.name not in others:
                *parents, key = one.metadata.get("path", one.name).split(".")
                holder = reduce(JsonObject.child, parents, self)
                kind, _, optional = str(one.type).partition(" ")
                is_absent = bool(optional) and key not in holder
                others[one.name] = None if is_absent else getattr(holder, KINDS[kind])(key)
        return dataclass(**others)

    def require(self, key: str) -> None:
        if key not in self:
            self.fault(key, "is missing")

    def fault(self, key: str, what: str) -> None:
        location = self._at(key) or "the document"
        self.diagnostics.append(Diagnostic(f"{self.where}: {location}", what, REMEDY))

    def check(self) -> None:
        """Raises `BadInput` with every diagnostic so far."""
        if self.diagnostics:
            raise BadInput(self.diagnostics)

    def _wrong(self, key: str, value: object, expected: str) -> None:
        self.fault(key, f"is {_shown(value)}; {expected} is expected")

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}".strip(".")


def load_json(text: str) -> Any:
    """JSON with NaN and infinities as null, since some tools write them for unknown values."""
    return files.parse_json(text, max_values=MAX_VALUES, constant=lambda _: None)


def read_text(path: Path) -> str:
    content = files.read_bytes(path, BadInput, files.MAX_JSON_BYTES)
    try:
        return content.decode("utf-8-sig")
    except ValueError:
        what = "is not UTF-8 text"
        raise UnknownFormat(Diagnostic(str(path), what, "give a result file")) from None


def read_json(path: Path) -> Any:
    try:
        return load_json(read_text(path))
    except ValueError as error:
        what = f"is not valid JSON: {error}"
        raise BadInput(Diagnostic(str(path), what, REMEDY)) from None


def _is_number(value: object) -> bool:
    """A number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < 1 << 1000


def _shown(value: object) -> str:
    if value is None:
        return "null"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


LATENCIES = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "queue_ms")
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
    """Statistics of a measure over requests or tokens; unknown values become `None`."""

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

    @property
    def load(self) -> str:
        """The load in a table."""
        if self.rate_per_s:
            return f"{number(self.rate_per_s)} requests/s"
        return f"{number(self.concurrency)} concurrent" if self.concurrency else self.label

    @property
    def load_text(self) -> str:
        """The load in a sentence."""
        if self.rate_per_s or not self.concurrency:
            return self.load
        return f"{self.load} request{'s' * (self.concurrency > 1)}"

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
    options: Mapping[str, Any]
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
    """A bench.json, `imported` from another tool or not; `share_of_limit` is the client's load."""

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
        points = [point for point in self.clean_points if point.rate(RATES[0])]
        return max(points, key=lambda point: point.rate(RATES[0]) or 0, default=None)

    @property
    def sent(self) -> int:
        return self._total("sent")

    @property
    def ok(self) -> int:
        return self._total("ok")

    @property
    def failed(self) -> int:
        return self._total("failed")

    def _total(self, count: str) -> int:
        return sum(getattr(point, count) or 0 for point in self.points)


def read_bench(document: Any, where: str) -> BenchResults:
    """A bench.json as dataclasses. Raises `BadInput` with everything that is wrong in it."""
    top = JsonObject(document, where)
    top.check()
    if (found := top.number("format")) != FORMAT:
        what = f"is {found}; this version reads {FORMAT}"
        remedy = "measure again, or use the version that measured"
        top.diagnostics.append(Diagnostic(f"{top.where}: format", what, remedy))
        top.check()
    for key in ("subject", "points"):
        top.require(key)
    subject = top.child("subject")
    limits = top.child("slo")
    slo = {name: one for name in SHORT_NAMES if (one := limits.number(name)) is not None}
    results = top.read(
        BenchResults,
        subject=subject.read(
            MeasuredSystem,
            name=subject.text("name") or subject.text("model") or where,
            options=subject.child("options").values,
        ),
        tool=top.child("client").text("tool") or "an unnamed client",
        slo=slo,
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


def _load_order(point: LoadPoint) -> tuple[bool, float]:
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
    errors = row.child("errors")
    return row.read(
        LoadPoint,
        label=row.text("label") or "",
        errors=tuple(
            FailureCount(
                kind,
                errors.child(kind).count("count") or 0,
                errors.child(kind).text("example") or "",
            )
            for kind in errors.values
        ),
        itl_of=row.text("itl_of") or "tokens",
        distributions={name: row.child(name).read(Distribution) for name in (*LATENCIES, *SIZES)},
        rates={name: row.number(name) for name in RATES},
        task_s=row.child("tasks").child("total_s").read(Distribution),
        server=_server(row.child("server")),
    )


def _server(fields: JsonObject) -> dict[str, float | None]:
    values = {}
    for name, value in fields.values.items():
        if isinstance(value, dict):
            pair = fields.child(name)
            before, after = pair.number("before"), pair.number("after")
            values[name] = None if before is None or after is None else after - before
        else:
            values[name] = fields.number(name)
    return values
