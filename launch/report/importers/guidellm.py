"""GuideLLM's benchmarks.json: one benchmark for every load.

JsonObject as its `GenerativeBenchmarksReport` writes them: version 1 (0.4 to 0.6) with `type_` and
`args`, version 2 (0.7 and later) with `kind` and `config.spec`. Its request latency is in seconds.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ..json_object import JsonObject
from . import document
from .document import Document

NAME = "guidellm"
# name here, name there, factor to milliseconds
LATENCIES = (
    ("ttft_ms", "time_to_first_token_ms", 1.0),
    ("tpot_ms", "inter_token_latency_ms", 1.0),
    ("e2e_ms", "request_latency", 1000.0),
)
WORKLOAD = "a GuideLLM data set; the lengths are the means of the requests that succeeded"


def matches(found: Any) -> bool:
    if not isinstance(found, dict) or not isinstance(found.get("benchmarks"), list):
        return False
    return all(isinstance(row, dict) and "metrics" in row for row in found["benchmarks"])


def convert(found: Any, where: str, name: str) -> Document:
    top = JsonObject(found, where)
    rows = list(top.children("benchmarks"))
    backend = top.child("config").child("spec").child("backend")  # version 2
    arguments = top.child("args")
    starts = [value for row in rows if (value := row.number("start_time")) is not None]
    ends = [value for row in rows if (value := row.number("end_time")) is not None]
    result = document.bench(
        NAME,
        name,
        version=top.child("metadata").text("guidellm_version"),
        model=backend.text("model") or arguments.text("model"),
        url=backend.text("target") or arguments.text("target"),
        started=_time(min(starts, default=None)),
        ended=_time(max(ends, default=None)),
        workload=document.lengths(None, None, WORKLOAD, "unknown"),
        points=[_point(row) for row in rows],
    )
    top.check()
    return result


def _point(row: JsonObject) -> Document:
    metrics, strategy = row.child("metrics"), row.child("config").child("strategy")
    totals = metrics.child("request_totals")
    failed, unfinished = totals.number("errored"), totals.number("incomplete")
    return document.point(
        _load(strategy),
        duration_s=row.number("duration"),
        requests={
            "sent": totals.number("total"),
            "ok": totals.number("successful"),
            "failed": failed,
        },
        errors=_errors(failed, unfinished),
        **{ours: _statistics(metrics, theirs, factor) for ours, theirs, factor in LATENCIES},
        prompt_tokens=_statistics(metrics, "prompt_token_count"),
        output_tokens=_statistics(metrics, "output_token_count"),
        output_tokens_per_s=_mean(metrics, "output_tokens_per_second"),
        total_tokens_per_s=_mean(metrics, "tokens_per_second"),
        requests_per_s=_mean(metrics, "requests_per_second"),
    )


def _load(strategy: JsonObject) -> Document:
    kind = strategy.text("kind") or strategy.text("type_")
    if kind == "synchronous":
        return document.load(1, None, None)
    streams = strategy.number("streams") or strategy.number("max_concurrency")
    row = document.load(streams, strategy.number("rate"), None)
    return row | {"kind": "constant"} if kind == "constant" else row


def _errors(failed: float | None, unfinished: float | None) -> Document:
    """Requests that were under way when the time was up count as neither good nor failed."""
    counts = {"not said": failed, "cancelled": unfinished}
    return {kind: {"count": count, "example": ""} for kind, count in counts.items() if count}


def _statistics(metrics: JsonObject, name: str, factor: float = 1.0) -> Document | None:
    good = metrics.child(name).child("successful")
    if not good.number("count"):
        return None  # zeros stand for values that were not measured
    values = {p: good.child("percentiles").number(p) for p in ("p50", "p90", "p95", "p99")}
    values |= {one: good.number(one) for one in ("mean", "min", "max")}
    values["stddev"] = good.number("std_dev")
    scaled = {key: None if value is None else value * factor for key, value in values.items()}
    return document.statistics(scaled | {"n": good.number("count")})


def _mean(metrics: JsonObject, name: str) -> float | None:
    return metrics.child(name).child("successful").number("mean")


def _time(seconds: float | None) -> str | None:
    if seconds is None or not 0 < seconds < 1e11:
        return None
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")
