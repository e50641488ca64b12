"""vLLM's `vllm bench serve --save-result`: a JSON file for every load.

Fields as its `vllm/benchmarks/serve.py` writes them (0.30). Percentiles are those that were asked
for; end-to-end latency is there only with `--percentile-metrics ...,e2el`.
"""

from __future__ import annotations

import re
from typing import Any

from ..fields import Fields
from . import document
from .document import Document

NAME = "vllm bench serve"
OURS = {"ttft_ms": "ttft_ms", "itl_ms": "itl_ms", "tpot_ms": "tpot_ms", "e2e_ms": "e2el_ms"}
DATE = re.compile(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)")


def owns(found: Any) -> bool:
    keys = {"model_id", "tokenizer_id", "output_throughput", "num_prompts"}
    return isinstance(found, dict) and keys <= found.keys()


def convert(found: Any, where: str, name: str) -> Document:
    fields = Fields(found, where)
    counted, asked = fields.number("completed"), fields.number("num_prompts")
    isl, osl = (fields.number(f"total_{side}_tokens") for side in ("input", "output"))
    words = "lengths not said; the means are those of the requests that succeeded"
    result = document.bench(
        NAME,
        api=fields.text("backend") or fields.text("endpoint_type"),
        name=name,
        model=fields.text("model_id"),
        started=_date(fields.text("date")),
        workload=document.lengths(None, None, words, "unknown"),
        points=[_point(fields, counted, asked, isl, osl)],
    )
    fields.check()
    return result


def _point(
    fields: Fields,
    counted: float | None,
    asked: float | None,
    isl: float | None,
    osl: float | None,
) -> Document:
    rate = fields.values.get("request_rate")
    rate_per_s = None if rate == "inf" else fields.number("request_rate")
    failed = fields.number("failed")
    return document.point(
        document.load(fields.number("max_concurrency"), rate_per_s, fields.number("burstiness")),
        duration_s=fields.number("duration"),
        requests={"sent": asked, "ok": counted, "failed": failed},
        errors={"not said": {"count": failed, "example": ""}} if failed else {},
        **{ours: _spread(fields, theirs) for ours, theirs in OURS.items()},
        itl_of="messages",
        prompt_tokens=document.spread({"mean": isl / counted}) if isl and counted else None,
        output_tokens=document.spread({"mean": osl / counted}) if osl and counted else None,
        output_tokens_per_s=fields.number("output_throughput"),
        total_tokens_per_s=fields.number("total_token_throughput"),
        requests_per_s=fields.number("request_throughput"),
        goodput=_goodput(fields.number("request_goodput")),
        speculative=_speculative(fields),
    )


def _spread(fields: Fields, name: str) -> Document | None:
    values = {f"p{p}": fields.number(f"p{p}_{name}") for p in (90, 95, 99)}
    values |= {"mean": fields.number(f"mean_{name}"), "p50": fields.number(f"median_{name}")}
    return document.spread(values | {"stddev": fields.number(f"std_{name}")})


def _goodput(requests_per_s: float | None) -> Document | None:
    return None if requests_per_s is None else {"requests_per_s": requests_per_s}


def _speculative(fields: Fields) -> Document | None:
    length = fields.number("spec_decode_acceptance_length")
    percent = fields.number("spec_decode_acceptance_rate")  # in percent
    if length is None and percent is None:
        return None
    share = None if percent is None else percent / 100
    return {"acceptance_rate": share, "tokens_per_step": length, "source": NAME}


def _date(text: str | None) -> str | None:
    """When the run ended, on the clock and in the time zone of that machine."""
    match = DATE.fullmatch(text or "")
    return "{}-{}-{} {}:{}:{} (local time)".format(*match.groups()) if match else None
