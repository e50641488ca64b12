"""AIPerf's profile_export_aiperf.json: one load.

JsonObject as AIPerf 0.13 writes them, schema 1.4 of its "JSON Export Schema". What it calls
inter-token latency is a mean per request, which is the TPOT of this report; its inter-chunk latency
is the gap between messages.
"""

from __future__ import annotations

from typing import Any

from ..json_object import JsonObject
from . import document
from .document import Document

NAME = "aiperf"
METRICS = {
    "ttft_ms": "time_to_first_token",
    "itl_ms": "inter_chunk_latency",
    "tpot_ms": "inter_token_latency",
    "e2e_ms": "request_latency",
    "prompt_tokens": "input_sequence_length",
    "output_tokens": "output_sequence_length",
}
STATISTIC_NAMES = {"n": "count", "mean": "avg", "stddev": "std"}
TO_MS = {"ms": 1.0, "sec": 1e3, "s": 1e3, "us": 1e-3, "ns": 1e-6, "tokens": 1.0}


def matches(found: Any) -> bool:
    if not isinstance(found, dict) or "input_config" not in found:
        return False
    return isinstance(found.get("request_latency"), dict) and "request_count" in found


def convert(found: Any, where: str, name: str) -> Document:
    fields = JsonObject(found, where)
    settings = fields.child("input_config")
    data_set = next(settings.children("datasets"), JsonObject({}, where))
    prompts = data_set.child("prompts")
    isl, osl = (prompts.child(side).number("mean") for side in ("isl", "osl"))
    model = next(settings.child("models").children("items"), JsonObject({}, where))
    result = document.bench(
        NAME,
        name,
        version=fields.text("aiperf_version"),
        api=settings.child("endpoint").text("type"),
        model=model.text("name"),
        url=_first_text(settings.child("endpoint").values.get("urls")),
        started=_utc(fields.text("start_time")),
        ended=_utc(fields.text("end_time")),
        interrupted=fields.flag("was_cancelled"),
        workload=document.lengths(isl, osl, f"data set of type {data_set.text('type')}"),
        seed=fields.child("run_info").number("random_seed"),
        points=[_point(fields, _phase(settings))],
    )
    fields.check()
    return result


def _first_text(found: object) -> str | None:
    texts = (one for one in found if isinstance(one, str)) if isinstance(found, list) else iter(())
    return next(texts, None)


def _phase(settings: JsonObject) -> JsonObject:
    """The load that was measured; others warm the server up."""
    phases = list(settings.children("phases"))
    measured = [one for one in phases if one.text("kind") == "profiling"]
    return (measured or phases or [JsonObject({}, settings.where)])[0]


def _point(fields: JsonObject, phase: JsonObject) -> Document:
    good = fields.child("request_count").number("avg")
    failed = fields.child("error_request_count").number("avg")
    if failed is None and "error_summary" in fields:
        failed = sum(row.number("count") or 0 for row in fields.children("error_summary"))
    if good is None and failed:
        good = 0  # whose measures are left out
    goodput = fields.child("goodput").number("avg")
    return document.point(
        document.load(phase.number("concurrency"), phase.number("rate"), None),
        duration_s=fields.child("benchmark_duration").number("avg"),
        requests={
            "sent": None if good is None else good + (failed or 0),
            "ok": good,
            "failed": failed,
        },
        errors=_errors(fields),
        **{ours: _statistics(fields.child(theirs)) for ours, theirs in METRICS.items()},
        itl_of="messages",
        output_tokens_per_s=fields.child("output_token_throughput").number("avg"),
        total_tokens_per_s=fields.child("total_token_throughput").number("avg"),
        requests_per_s=fields.child("request_throughput").number("avg"),
        goodput=None if goodput is None else {"requests_per_s": goodput},
    )


def _statistics(metric: JsonObject) -> Document | None:
    factor = TO_MS.get(metric.text("unit") or "ms")
    if factor is None:
        return None  # an unknown unit
    values = {name: metric.number(STATISTIC_NAMES.get(name, name)) for name in document.STATISTICS}
    return document.statistics(
        {
            name: value if value is None or name == "n" else value * factor
            for name, value in values.items()
        }
    )


def _errors(fields: JsonObject) -> Document:
    rows = {}
    for row in fields.children("error_summary"):
        details = row.child("error_details")
        kind = details.text("type") or "not said"
        rows[kind] = {"count": row.number("count"), "example": details.text("message") or ""}
    return rows


def _utc(text: str | None) -> str | None:
    return f"{text[:23]}Z" if text and "T" in text else text
