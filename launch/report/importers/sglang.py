"""SGLang's serving benchmark: a line of JSON for every load.

Fields as its `sglang/benchmark/serving.py` writes them (0.5.23). It writes no model, no date and
no count of failed requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..fields import Fields
from . import document
from .document import Document

NAME = "sglang.bench_serving"
OURS = {"ttft_ms": "ttft_ms", "itl_ms": "itl_ms", "tpot_ms": "tpot_ms", "e2e_ms": "e2e_latency_ms"}


def owns(rows: Sequence[Any]) -> bool:
    return all(
        isinstance(row, dict) and {"backend", "mean_e2e_latency_ms", "completed"} <= row.keys()
        for row in rows
    )


def convert(rows: Sequence[Any], where: str, name: str) -> Document:
    lines = [Fields(row, f"{where}: line {n}") for n, row in enumerate(rows, 1)]
    first = lines[0]
    result = document.bench(
        NAME,
        api=first.text("backend"),
        name=name,
        model=first.child("server_info").text("model_path"),
        workload=_workload(first),
        points=[_point(line) for line in lines],
    )
    for line in lines:
        first.diagnostics += line.diagnostics if line is not first else []
    first.check()
    return result


def _workload(line: Fields) -> Document:
    data_set = line.text("dataset_name")
    if data_set and data_set.startswith("random"):
        isl, osl = line.number("random_input_len"), line.number("random_output_len")
        return document.lengths(
            isl, osl, f"{data_set}, range ratio {line.number('random_range_ratio')}"
        )
    osl = line.number("sharegpt_output_len")
    return document.lengths(None, osl, data_set or "not said", data_set or "unknown")


def _point(line: Fields) -> Document:
    rate = line.values.get("request_rate")
    rate_per_s = rate if isinstance(rate, int | float) and not isinstance(rate, bool) else None
    row = document.load(line.number("max_concurrency"), rate_per_s, None)
    accepted = line.number("accept_length")
    completed = line.number("completed")
    return document.point(
        row,
        duration_s=line.number("duration"),
        requests={"sent": None, "ok": completed, "failed": None},
        **{ours: _spread(line, theirs) for ours, theirs in OURS.items()},
        itl_of="messages",
        prompt_tokens=_mean(line.number("total_input_tokens"), completed),
        output_tokens=_mean(line.number("total_output_tokens"), completed),
        output_tokens_per_s=line.number("output_throughput"),
        total_tokens_per_s=line.number("total_throughput"),
        requests_per_s=line.number("request_throughput"),
        speculative={"tokens_per_step": accepted, "source": NAME} if accepted else None,
    )


def _spread(line: Fields, name: str) -> Document | None:
    values = {f"p{p}": line.number(f"p{p}_{name}") for p in (90, 95, 99)}
    values |= {"mean": line.number(f"mean_{name}"), "p50": line.number(f"median_{name}")}
    values |= {"stddev": line.number(f"std_{name}"), "max": line.number(f"max_{name}")}
    return document.spread(values)


def _mean(total: float | None, count: float | None) -> Document | None:
    return document.spread({"mean": total / count}) if total is not None and count else None
