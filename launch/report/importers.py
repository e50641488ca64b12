"""Reads result files of other tools as bench.json documents; missing values are null."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder.diagnostics import Diagnostic
from builder.errors import BadInput
from builder.facts import data_file, plain_data

from ..bench.results import BENCH, FORMAT, KIND
from .results import JsonObject, UnknownFormat, load_json, read_text

SUPPORTED = "bench.json, aiperf, sglang.bench_serving, vllm bench serve and guidellm"

CAVEATS = "benchmark_tools.yaml"


def caveats(tool: str) -> Sequence[Mapping[str, str]]:
    """Known ways in which the numbers of a tool mislead, each with its source."""
    found: Mapping[str, Sequence[Mapping[str, str]]] = data_file.shipped(
        CAVEATS, plain_data.BENCHMARK_TOOLS
    )
    return found.get(tool, ())


def read(path: Path) -> Any:
    """The bench.json document of a result file; `imported` is true in another tool's.

    Raises `BadInput`.
    """
    rows = _rows(path)
    where, name = str(path), path.stem
    if rows and is_sglang(rows):
        return convert_sglang(rows, where, name)
    found = rows[0] if len(rows) == 1 else None
    if isinstance(found, dict) and found.get("kind") == KIND:
        return {**found, "imported": False}
    if is_aiperf(found):
        return convert_aiperf(found, where, name)
    if is_guidellm(found):
        return convert_guidellm(found, where, name)
    if is_vllm(found):
        return convert_vllm(found, where, name)
    raise UnknownFormat(
        Diagnostic(where, "has no known result format", f"known are those of {SUPPORTED}")
    )


def _rows(path: Path) -> list[Any]:
    """The JSON value of a file, or one for every line."""
    text = read_text(path)
    try:
        return [load_json(text)]
    except ValueError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            if len(lines) > 1:
                return [load_json(line) for line in lines]
        except ValueError:
            pass  # the error of the whole file says more
        what = f"is neither JSON nor lines of JSON: {error}"
        remedy = f"give a run folder or a file of {SUPPORTED}"
        kind = BadInput if path.name == BENCH else UnknownFormat
        raise kind(Diagnostic(str(path), what, remedy)) from None


Document = dict[str, Any]
STATISTICS = ("n", "mean", "stddev", "min", "p50", "p90", "p95", "p99", "max")


def _document(
    tool: str,
    name: str,
    *,
    model: str | None,
    points: Sequence[Document],
    version: str | None = None,
    api: str | None = None,
    url: str | None = None,
    interrupted: bool = False,
    **others: Any,
) -> Document:
    """`others` are `workload`, and `started`, `ended` and `seed` where the file has them."""
    return {
        "format": FORMAT,
        "kind": KIND,
        "imported": True,
        "outcome": "interrupted" if interrupted else "complete",
        "subject": {"name": model or name, "model": model, "url": url},
        "client": {"tool": tool, "version": version, "api": api},
        "points": list(points),
        **others,
    }


def _load(
    concurrency: float | None, rate_per_s: float | None = None, burstiness: float | None = None
) -> Document:
    if rate_per_s is not None:
        kind = "poisson" if burstiness in (None, 1) else "gamma"
        row = {"kind": kind, "rate_per_s": rate_per_s, "concurrency": concurrency}
        return row | ({"burstiness": burstiness} if kind == "gamma" else {})
    return {"kind": "concurrency" if concurrency else "unlimited", "concurrency": concurrency}


def _point(row: Document, **values: Any) -> Document:
    """A point under a load; rates per user follow from the mean time per output token."""
    tpot = (values.get("tpot_ms") or {}).get("mean")
    label = f"c{row['concurrency']:g}" if row["concurrency"] else "unlimited"
    if row.get("rate_per_s") is not None:
        label = f"r{row['rate_per_s']:g}"
    return {
        "load": row,
        "label": label,
        "errors": {},
        "itl_of": "tokens",
        **values,
        "output_tokens_per_s_per_user": 1000 / tpot if tpot else None,
        "output_tokens_per_s_per_gpu": None,
    }


def _statistics(read: Callable[[str], float | None], factor: float = 1) -> Document | None:
    """Statistics under the names of bench.json, or null if they are missing."""
    row = {name: read(name) for name in STATISTICS}
    if all(value is None for value in row.values()):
        return None
    return {
        name: value if value is None or name == "n" else value * factor
        for name, value in row.items()
    }


def _lengths(isl: float | None, osl: float | None, text: str, kind: str = "fixed") -> Document:
    return {"kind": kind, "isl": isl, "osl": osl, "words": text}


# AIPerf 0.13, schema 1.4 of its "JSON Export Schema": profile_export_aiperf.json, one load. What it
# calls inter-token latency is a mean per request, which is the TPOT of this report; its inter-chunk
# latency is the gap between messages.
AIPERF = "aiperf"
AIPERF_METRICS = {
    "ttft_ms": "time_to_first_token",
    "itl_ms": "inter_chunk_latency",
    "tpot_ms": "inter_token_latency",
    "e2e_ms": "request_latency",
    "prompt_tokens": "input_sequence_length",
    "output_tokens": "output_sequence_length",
}
AIPERF_STATISTICS = {"n": "count", "mean": "avg", "stddev": "std"}
AIPERF_UNITS_TO_MS = {"ms": 1.0, "sec": 1e3, "s": 1e3, "us": 1e-3, "ns": 1e-6, "tokens": 1.0}


def is_aiperf(found: Any) -> bool:
    if not isinstance(found, dict) or "input_config" not in found:
        return False
    return isinstance(found.get("request_latency"), dict) and "request_count" in found


def convert_aiperf(found: Any, where: str, name: str) -> Document:
    fields = JsonObject(found, where)
    settings = fields.child("input_config")
    data_set = next(settings.children("datasets"), JsonObject({}, where))
    prompts = data_set.child("prompts")
    isl, osl = (prompts.child(side).number("mean") for side in ("isl", "osl"))
    model = next(settings.child("models").children("items"), JsonObject({}, where))
    named = settings.child("endpoint").values.get("urls")
    urls = named if isinstance(named, list) else []
    phases = list(settings.children("phases"))  # the others are warm-up
    measured = [one for one in phases if one.text("kind") == "profiling"]
    result = _document(
        AIPERF,
        name,
        version=fields.text("aiperf_version"),
        api=settings.child("endpoint").text("type"),
        model=model.text("name"),
        url=next((one for one in urls if isinstance(one, str)), None),
        started=_utc(fields.text("start_time")),
        ended=_utc(fields.text("end_time")),
        interrupted=fields.flag("was_cancelled"),
        workload=_lengths(isl, osl, f"data set of type {data_set.text('type')}"),
        seed=fields.child("run_info").number("random_seed"),
        points=[_aiperf_point(fields, (measured or phases or [JsonObject({}, settings.where)])[0])],
    )
    fields.check()
    return result


def _aiperf_point(fields: JsonObject, phase: JsonObject) -> Document:
    good = fields.child("request_count").number("avg")
    failed = fields.child("error_request_count").number("avg")
    if failed is None and "error_summary" in fields:
        failed = sum(row.number("count") or 0 for row in fields.children("error_summary"))
    if good is None and failed:
        good = 0  # whose measures are left out
    goodput = fields.child("goodput").number("avg")
    return _point(
        _load(phase.number("concurrency"), phase.number("rate")),
        duration_s=fields.child("benchmark_duration").number("avg"),
        requests={
            "sent": None if good is None else good + (failed or 0),
            "ok": good,
            "failed": failed,
        },
        errors=_aiperf_errors(fields),
        **{
            ours: _aiperf_statistics(fields.child(theirs))
            for ours, theirs in AIPERF_METRICS.items()
        },
        itl_of="messages",
        output_tokens_per_s=fields.child("output_token_throughput").number("avg"),
        total_tokens_per_s=fields.child("total_token_throughput").number("avg"),
        requests_per_s=fields.child("request_throughput").number("avg"),
        goodput=None if goodput is None else {"requests_per_s": goodput},
    )


def _aiperf_statistics(metric: JsonObject) -> Document | None:
    factor = AIPERF_UNITS_TO_MS.get(metric.text("unit") or "ms")
    if factor is None:
        return None  # an unknown unit
    return _statistics(lambda name: metric.number(AIPERF_STATISTICS.get(name, name)), factor)


def _aiperf_errors(fields: JsonObject) -> Document:
    rows = {}
    for row in fields.children("error_summary"):
        details = row.child("error_details")
        kind = details.text("type") or "not said"
        rows[kind] = {"count": row.number("count"), "example": details.text("message") or ""}
    return rows


def _utc(text: str | None) -> str | None:
    return f"{text[:23]}Z" if text and "T" in text else text


# GuideLLM's `GenerativeBenchmarksReport`, one benchmark for every load: version 1 (0.4 to 0.6) has
# `type_` and `args`, version 2 (0.7 and later) `kind` and `config.spec`.
GUIDELLM = "guidellm"
# name here, name there, factor to milliseconds
GUIDELLM_MEASURES = (
    ("ttft_ms", "time_to_first_token_ms", 1.0),
    ("tpot_ms", "inter_token_latency_ms", 1.0),
    ("e2e_ms", "request_latency", 1000.0),
    ("prompt_tokens", "prompt_token_count", 1.0),
    ("output_tokens", "output_token_count", 1.0),
)
GUIDELLM_RATES = {
    "output_tokens_per_s": "output_tokens_per_second",
    "total_tokens_per_s": "tokens_per_second",
    "requests_per_s": "requests_per_second",
}
GUIDELLM_STATISTICS = {"n": "count", "stddev": "std_dev"}
GUIDELLM_WORKLOAD = "a GuideLLM data set; the lengths are the means of the requests that succeeded"


def is_guidellm(found: Any) -> bool:
    if not isinstance(found, dict) or not isinstance(found.get("benchmarks"), list):
        return False
    return all(isinstance(row, dict) and "metrics" in row for row in found["benchmarks"])


def convert_guidellm(found: Any, where: str, name: str) -> Document:
    top = JsonObject(found, where)
    rows = list(top.children("benchmarks"))
    backend = top.child("config").child("spec").child("backend")  # version 2
    arguments = top.child("args")
    result = _document(
        GUIDELLM,
        name,
        version=top.child("metadata").text("guidellm_version"),
        model=backend.text("model") or arguments.text("model"),
        url=backend.text("target") or arguments.text("target"),
        started=_time(min, [row.number("start_time") for row in rows]),
        ended=_time(max, [row.number("end_time") for row in rows]),
        workload=_lengths(None, None, GUIDELLM_WORKLOAD, "unknown"),
        points=[_guidellm_point(row) for row in rows],
    )
    top.check()
    return result


def _guidellm_point(row: JsonObject) -> Document:
    metrics, strategy = row.child("metrics"), row.child("config").child("strategy")
    totals = metrics.child("request_totals")
    failed, unfinished = totals.number("errored"), totals.number("incomplete")
    errors = {"not said": {"count": failed, "example": ""}} if failed else {}
    if unfinished:  # when the time was up: neither good nor failed
        errors["cancelled"] = {"count": unfinished, "example": ""}
    return _point(
        _guidellm_load(strategy),
        duration_s=row.number("duration"),
        requests={
            "sent": totals.number("total"),
            "ok": totals.number("successful"),
            "failed": failed,
        },
        errors=errors,
        **{
            ours: _guidellm_statistics(metrics, theirs, factor)
            for ours, theirs, factor in GUIDELLM_MEASURES
        },
        **{
            ours: metrics.child(theirs).child("successful").number("mean")
            for ours, theirs in GUIDELLM_RATES.items()
        },
    )


def _guidellm_load(strategy: JsonObject) -> Document:
    kind = strategy.text("kind") or strategy.text("type_")
    if kind == "synchronous":
        return _load(1)
    streams = strategy.number("streams") or strategy.number("max_concurrency")
    row = _load(streams, strategy.number("rate"))
    return row | {"kind": "constant"} if kind == "constant" else row


def _guidellm_statistics(metrics: JsonObject, name: str, factor: float) -> Document | None:
    good = metrics.child(name).child("successful")
    if not good.number("count"):
        return None  # zeros stand for values that were not measured

    def read(statistic: str) -> float | None:
        holder = good.child("percentiles") if statistic.startswith("p") else good
        return holder.number(GUIDELLM_STATISTICS.get(statistic, statistic))

    return _statistics(read, factor)


def _time(end: Callable[[list[float]], float], seconds: Sequence[float | None]) -> str | None:
    """The first or the last of Unix times, if any is one."""
    known = [one for one in seconds if one is not None and 0 < one < 1e11]
    if not known:
        return None
    moment = datetime.fromtimestamp(end(known), UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")


# `vllm bench serve --save-result` (vllm/benchmarks/serve.py, 0.30) writes a JSON file for every
# load, with the requested percentiles, and end-to-end latency only with
# `--percentile-metrics ...,e2el`. `sglang.bench_serving` (sglang/benchmark/serving.py, 0.5.23)
# writes a line of JSON for every load: no model, no date and no count of failed requests.
SGLANG, VLLM = "sglang.bench_serving", "vllm bench serve"
SGLANG_LATENCIES = {
    "ttft_ms": "ttft_ms",
    "itl_ms": "itl_ms",
    "tpot_ms": "tpot_ms",
    "e2e_ms": "e2e_latency_ms",
}
FLAT_STATISTICS = {"stddev": "std", "p50": "median"}
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
    result = _document(
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
    # Of the end of the run, in the local time of that machine.
    match = VLLM_DATE.fullmatch(fields.text("date") or "")
    result = _document(
        VLLM,
        name,
        api=fields.text("backend") or fields.text("endpoint_type"),
        model=fields.text("model_id"),
        started="{}-{}-{} {}:{}:{} (local time)".format(*match.groups()) if match else None,
        workload=_lengths(None, None, workload, "unknown"),
        points=[_vllm_point(fields)],
    )
    fields.check()
    return result


def _sglang_workload(line: JsonObject) -> Document:
    data_set = line.text("dataset_name")
    if data_set and data_set.startswith("random"):
        isl, osl = line.number("random_input_len"), line.number("random_output_len")
        return _lengths(isl, osl, f"{data_set}, range ratio {line.number('random_range_ratio')}")
    osl = line.number("sharegpt_output_len")
    return _lengths(None, osl, data_set or "not said", data_set or "unknown")


def _sglang_point(line: JsonObject) -> Document:
    rate = line.values.get("request_rate")
    rate_per_s = rate if isinstance(rate, int | float) and not isinstance(rate, bool) else None
    accepted = line.number("accept_length")
    return _point(
        _load(line.number("max_concurrency"), rate_per_s),
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
    return _point(
        _load(fields.number("max_concurrency"), rate_per_s, fields.number("burstiness")),
        requests={"sent": sent, "ok": ok, "failed": failed},
        errors={"not said": {"count": failed, "example": ""}} if failed else {},
        **_measures(fields, VLLM_LATENCIES),
        total_tokens_per_s=fields.number("total_token_throughput"),
        goodput=None if goodput is None else {"requests_per_s": goodput},
        speculative=_vllm_speculative(fields),
    )


def _measures(fields: JsonObject, latencies: Mapping[str, str]) -> Document:
    """Measures with the same names in both tools. Their ITL is the gap between messages."""
    completed = fields.number("completed")
    return {
        "duration_s": fields.number("duration"),
        **{ours: _flat_statistics(fields, theirs) for ours, theirs in latencies.items()},
        "itl_of": "messages",
        "prompt_tokens": _flat_mean(fields.number("total_input_tokens"), completed),
        "output_tokens": _flat_mean(fields.number("total_output_tokens"), completed),
        "output_tokens_per_s": fields.number("output_throughput"),
        "requests_per_s": fields.number("request_throughput"),
    }


def _flat_statistics(fields: JsonObject, name: str) -> Document | None:
    return _statistics(lambda one: fields.number(f"{FLAT_STATISTICS.get(one, one)}_{name}"))


def _flat_mean(total: float | None, count: float | None) -> Document | None:
    mean = total / count if total is not None and count else None
    return _statistics(lambda name: mean if name == "mean" else None)


def _vllm_speculative(fields: JsonObject) -> Document | None:
    length = fields.number("spec_decode_acceptance_length")
    percent = fields.number("spec_decode_acceptance_rate")
    if length is None and percent is None:
        return None
    share = None if percent is None else percent / 100
    return {"acceptance_rate": share, "tokens_per_step": length, "source": VLLM}
