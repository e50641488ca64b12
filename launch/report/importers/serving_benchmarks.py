"""The flat result files of two serving benchmarks: vLLM's and SGLang's.

`vllm bench serve --save-result` (fields of `vllm/benchmarks/serve.py`, 0.30) writes a JSON file for
every load. It has the requested percentiles, and end-to-end latency only with
`--percentile-metrics ...,e2el`.

`sglang.bench_serving` (fields of `sglang/benchmark/serving.py`, 0.5.23) writes a line of JSON for
every load: no model, no date and no count of failed requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..json_object import JsonObject
from . import document
from .document import Document

SGLANG, VLLM = "sglang.bench_serving", "vllm bench serve"
SGLANG_LATENCIES = {
    "ttft_ms": "ttft_ms",
    "itl_ms": "itl_ms",
    "tpot_ms": "tpot_ms",
    "e2e_ms": "e2e_latency_ms",
}
VLLM_LATENCIES = {**SGLANG_LATENCIES, "e2e_ms": "e2el_ms"}
VLLM_DATE = re.compile(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)")


def is_sglang(rows: Sequence[Any]) -> bool:
    return all(
        isinstance(row, dict) and {"backend", "mean_e2e_latency_ms", "completed"} <= row.keys()
        for row in rows
    )


def is_vllm(found: Any) -> bool:
    keys = {"model_id", "tokenizer_id", "output_throughput", "num_prompts"}
    return isinstance(found, dict) and keys <= found.keys()


def convert_sglang(rows: Sequence[Any], where: str, name: str) -> Document:
    lines = [JsonObject(row, f"{where}: line {n}") for n, row in enumerate(rows, 1)]
    first = lines[0]
    result = document.bench(
        SGLANG,
        name,
        api=first.text("backend"),
        model=first.child("server_info").text("model_path"),
        workload=_sglang_workload(first),
        points=[_sglang_point(line) for line in lines],
    )
    for line in lines[1:]:
        first.diagnostics += line.diagnostics
    first.check()
    return result


def convert_vllm(found: Any, where: str, name: str) -> Document:
    fields = JsonObject(found, where)
    workload = "lengths not said; the means are those of the requests that succeeded"
    result = document.bench(
        VLLM,
        name,
        api=fields.text("backend") or fields.text("endpoint_type"),
        model=fields.text("model_id"),
        started=_vllm_date(fields.text("date")),
        workload=document.lengths(None, None, workload, "unknown"),
        points=[_vllm_point(fields)],
    )
    fields.check()
    return result


def _sglang_workload(line: JsonObject) -> Document:
    data_set = line.text("dataset_name")
    if data_set and data_set.startswith("random"):
        isl, osl = line.number("random_input_len"), line.number("random_output_len")
        return document.lengths(
            isl, osl, f"{data_set}, range ratio {line.number('random_range_ratio')}"
        )
    osl = line.number("sharegpt_output_len")
    return document.lengths(None, osl, data_set or "not said", data_set or "unknown")


def _sglang_point(line: JsonObject) -> Document:
    rate = line.values.get("request_rate")
    rate_per_s = rate if isinstance(rate, int | float) and not isinstance(rate, bool) else None
    accepted = line.number("accept_length")
    return document.point(
        document.load(line.number("max_concurrency"), rate_per_s, None),
        requests={"sent": None, "ok": line.number("completed"), "failed": None},
        **_measures(line, SGLANG_LATENCIES),
        total_tokens_per_s=line.number("total_throughput"),
        speculative={"tokens_per_step": accepted, "source": SGLANG} if accepted else None,
    )


def _vllm_point(fields: JsonObject) -> Document:
    rate = fields.values.get("request_rate")
    rate_per_s = None if rate == "inf" else fields.number("request_rate")
    sent, ok, failed = (fields.number(key) for key in ("num_prompts", "completed", "failed"))
    if failed is None and sent is not None and ok is not None:
        failed = sent - ok  # which not every version writes
    goodput = fields.number("request_goodput")
    return document.point(
        document.load(fields.number("max_concurrency"), rate_per_s, fields.number("burstiness")),
        requests={"sent": sent, "ok": ok, "failed": failed},
        errors={"not said": {"count": failed, "example": ""}} if failed else {},
        **_measures(fields, VLLM_LATENCIES),
        total_tokens_per_s=fields.number("total_token_throughput"),
        goodput=None if goodput is None else {"requests_per_s": goodput},
        speculative=_vllm_speculative(fields),
    )


def _measures(fields: JsonObject, latencies: Mapping[str, str]) -> Document:
    """What both tools write under the same names. Their ITL is the gap between messages."""
    completed = fields.number("completed")
    return {
        "duration_s": fields.number("duration"),
        **{ours: _statistics(fields, theirs) for ours, theirs in latencies.items()},
        "itl_of": "messages",
        "prompt_tokens": _mean(fields.number("total_input_tokens"), completed),
        "output_tokens": _mean(fields.number("total_output_tokens"), completed),
        "output_tokens_per_s": fields.number("output_throughput"),
        "requests_per_s": fields.number("request_throughput"),
    }


def _statistics(fields: JsonObject, name: str) -> Document | None:
    values = {f"p{p}": fields.number(f"p{p}_{name}") for p in (90, 95, 99)}
    values |= {"mean": fields.number(f"mean_{name}"), "p50": fields.number(f"median_{name}")}
    values |= {"stddev": fields.number(f"std_{name}"), "max": fields.number(f"max_{name}")}
    return document.statistics(values)


def _mean(total: float | None, count: float | None) -> Document | None:
    return document.statistics({"mean": total / count}) if total is not None and count else None


def _vllm_speculative(fields: JsonObject) -> Document | None:
    length = fields.number("spec_decode_acceptance_length")
    percent = fields.number("spec_decode_acceptance_rate")
    if length is None and percent is None:
        return None
    share = None if percent is None else percent / 100
    return {"acceptance_rate": share, "tokens_per_step": length, "source": VLLM}


def _vllm_date(text: str | None) -> str | None:
    """When the run ended, on the clock and in the time zone of that machine."""
    match = VLLM_DATE.fullmatch(text or "")
    return "{}-{}-{} {}:{}:{} (local time)".format(*match.groups()) if match else None
