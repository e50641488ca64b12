"""What the server itself told of requests: speculation, reuse of the KV cache, time in its queue.

It comes with the answers (Triton's outputs, the usage of OpenAI's) or from `/perf_metrics`, whose
rows are here brought under the names of the Triton outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import summary
from .seen import NS_PER_MS, Seen

ANSWERS, PERF_METRICS = "answers", "/perf_metrics"
NS_PER_S = 1e9
# What a stream of trtllm-serve says of speculation.
TOKENS_PER_STEP = "tokens_per_step"

Row = Mapping[str, float]
# Where each value is in a row of /perf_metrics, and what makes it one of the Triton outputs'.
PLACES: Mapping[str, tuple[str, str, float]] = {
    "arrival_time_ns": ("timing_metrics", "arrival_time", NS_PER_S),
    "first_scheduled_time_ns": ("timing_metrics", "first_scheduled_time", NS_PER_S),
    "first_token_time_ns": ("timing_metrics", "first_token_time", NS_PER_S),
    "kv_cache_reused_block": ("kv_cache_metrics", "num_reused_blocks", 1),
    "kv_cache_missed_block": ("kv_cache_metrics", "num_missed_blocks", 1),
    "acceptance_rate": ("speculative_decoding", "acceptance_rate", 1),
    "total_accepted_draft_tokens": ("speculative_decoding", "total_accepted_draft_tokens", 1),
    "total_draft_tokens": ("speculative_decoding", "total_draft_tokens", 1),
}


def perf_row(document: Mapping[str, Any]) -> Row:
    """One request of `/perf_metrics`; what it lacks is missing."""
    metrics = document.get("perf_metrics") or {}
    found = {}
    for name, (group, key, factor) in PLACES.items():
        value = (metrics.get(group) or {}).get(key)
        if isinstance(value, int | float):
            found[name] = value * factor
    return found


def speculative(seen: Sequence[Seen], perf: Sequence[Row]) -> dict[str, Any] | None:
    """Accepted draft tokens over drafted ones, and tokens per step of the engine."""
    for source, rows in _sources(seen, perf):
        drafted = sum(row.get("total_draft_tokens", 0) for row in rows)
        accepted = sum(row.get("total_accepted_draft_tokens", 0) for row in rows)
        rates = [row["acceptance_rate"] for row in rows if row.get("acceptance_rate")]
        if drafted or rates:
            rate = accepted / drafted if drafted else sum(rates) / len(rates)
            steps = _tokens_per_step(seen)
            return {"acceptance_rate": round(rate, 4), "tokens_per_step": steps, "source": source}
    steps = _tokens_per_step(seen)
    if steps is None or steps <= 1:
        return None
    return {"acceptance_rate": None, "tokens_per_step": steps, "source": ANSWERS}


def _tokens_per_step(seen: Sequence[Seen]) -> float | None:
    pairs = [
        (one.record.output_tokens, one.record.server[TOKENS_PER_STEP])
        for one in seen
        if one.record.output_tokens and one.record.server.get(TOKENS_PER_STEP)
    ]
    steps = sum(tokens / per_step for tokens, per_step in pairs)
    return round(sum(tokens for tokens, _ in pairs) / steps, 4) if steps else None


def kv_cache(seen: Sequence[Seen], perf: Sequence[Row]) -> dict[str, Any] | None:
    """Of all prompt tokens, or of all blocks of prompts, the share that was there already."""
    for source, rows in _sources(seen, perf):
        reused = sum(row.get("kv_cache_reused_block", 0) for row in rows)
        missed = sum(row.get("kv_cache_missed_block", 0) for row in rows)
        if reused + missed:
            return {"reused_share": round(reused / (reused + missed), 4), "source": source}
    pairs = [(one.record.cached_tokens, one.record.prompt_tokens) for one in seen]
    known = [(cached, prompt) for cached, prompt in pairs if cached is not None and prompt]
    if not known:
        return None
    share = sum(cached for cached, _ in known) / sum(prompt for _, prompt in known)
    return {"reused_share": round(share, 4), "source": "usage"}


def queue_ms(seen: Sequence[Seen], perf: Sequence[Row]) -> summary.Summary | None:
    """From a request's arrival at the engine to its first schedule, by the engine's clock."""
    return _between(seen, perf, "arrival_time_ns", "first_scheduled_time_ns")


def server_ttft_ms(seen: Sequence[Seen], perf: Sequence[Row]) -> summary.Summary | None:
    """From a request's arrival at the engine to its first token, by the engine's clock."""
    return _between(seen, perf, "arrival_time_ns", "first_token_time_ns")


def _between(
    seen: Sequence[Seen], perf: Sequence[Row], start: str, end: str
) -> summary.Summary | None:
    for _, rows in _sources(seen, perf):
        times = [row[end] - row[start] for row in rows if row.get(start) and row.get(end)]
        if times:
            return summary.of(time / NS_PER_MS for time in times)
    return None


def _sources(
    seen: Sequence[Seen], perf: Sequence[Row]
) -> Iterable[tuple[str, Sequence[Mapping[str, float]]]]:
    return (ANSWERS, [one.record.server for one in seen]), (PERF_METRICS, perf)
