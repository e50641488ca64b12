"""The metrics of a point: throughput, latency, errors and cost of its requests.

A request that failed counts as an error, and in nothing else. Units are in the names; percentiles
are those of `samples`, latencies those of `request`, and throughput is that of the window.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import server_metrics, workers
from .load import NS, LoadPlan
from .request import US_PER_MS, RequestRecord
from .samples import summarize, summarize_counts
from .workers import ProcessUsage

# Per measure and point, so that two runs can be compared with confidence intervals.
MOST_SAMPLES = 2000
SAMPLE_DIGITS = 3
# A point meets an SLO if this share of its requests does.
SHARE_WITHIN_SLO = 0.99
# A load process that uses this share of its CPU time may limit the throughput.
CLIENT_LIMITED_SHARE = 0.7
LONGEST_EXAMPLE = 200
SECONDS_PER_HOUR = 3600
TOKENS_PRICED = 1_000_000
COST_DIGITS = 6


# A closed loop needs its first wave, its last wave and as much between them.
WAVES = 3
# An open loop leaves out this share of its arrivals at each end.
OPEN_RAMP = 0.1
OPEN_LEAST = 20
WindowKind = Literal["steady", "whole"]
# Limits of an SLO for a request, in ms. `itl_ms` holds for the mean gap of its tokens: its TPOT.
LIMITS = ("ttft_ms", "itl_ms", "e2e_ms")


def is_within(slo: Mapping[str, float], one: RequestRecord) -> bool:
    """Whether a request meets the SLO; failed requests and unknown gaps do not."""
    gap_ms = one.tpot_ms if (one.output_tokens or 0) != 1 else 0.0
    values = dict(zip(LIMITS, (one.ttft_ms, gap_ms, one.e2e_ms), strict=True))
    return one.ok and all(
        (value := values[name]) is not None and value <= limit for name, limit in slo.items()
    )


@dataclass(frozen=True, slots=True)
class MetricOptions:
    """SLO, price and window of the measures."""

    slo: Mapping[str, float] | None = None
    num_gpus: int | None = None
    price_per_gpu_hour_usd: float | None = None
    window: WindowKind = "steady"


def measure(
    records: Sequence[RequestRecord],
    plan: LoadPlan,
    options: MetricOptions,
    perf: Sequence[server_metrics.Row] = (),
    usage: Sequence[ProcessUsage] = (),
) -> dict[str, Any]:
    """The measures of all finished requests; `perf` are the server's own metrics, and `usage` is
    the CPU time of the load processes."""
    records = sorted(records, key=lambda one: one.sent_ns)
    good = [one for one in records if one.ok]
    counts: dict[str, Any] = {
        "sent": len(records),
        "ok": len(good),
        "failed": len(records) - len(good),
    }
    document: dict[str, Any] = {"requests": counts, "errors": _errors(records)}
    if not good:
        return {**document, **_NOTHING, "tasks": _tasks(records, plan)}
    held = measurement_window(records, plan, options.window)
    chosen = [one for one in held.chosen if one.ok]
    counts["in_window"] = len(chosen)
    tasks = _tasks(records, plan)
    throughput = _throughput(good, held, options)
    per_s = {key: throughput[f"{key}_per_s"] for key in ("output_tokens", "total_tokens")}
    per_s["tasks"] = tasks and tasks["ok"] / held.seconds
    cpus = len(os.sched_getaffinity(0))
    share = _rounded(workers.share_of_limit(usage, held.from_ns, held.to_ns, cpus))
    limited = share is not None and share >= CLIENT_LIMITED_SHARE
    return {
        "duration_s": round((max(one.ended_ns for one in records) - records[0].sent_ns) / NS, 4),
        "window": held.as_json(records[0].sent_ns),
        **document,
        **_latencies(chosen),
        "queue_ms": server_metrics.since_arrival_ms(chosen, perf, "first_scheduled_time_ns"),
        "server_ttft_ms": server_metrics.since_arrival_ms(chosen, perf, "first_token_time_ns"),
        **throughput,
        "goodput": _goodput(held.chosen, throughput["requests_per_s"], options.slo),
        "speculative": server_metrics.speculative(chosen, perf),
        "kv_cache": server_metrics.kv_cache(chosen, perf),
        "cost": _cost(options.price_per_gpu_hour_usd, options.num_gpus, per_s),
        "tasks": tasks,
        "share_of_limit": share,
        "client_limited": limited,
        "samples": _samples(chosen),
    }


_NOTHING: Mapping[str, Any] = {
    "duration_s": None,
    "window": None,
    **dict.fromkeys(("ttft_ms", "itl_ms", "itl_of", "tpot_ms", "e2e_ms", "late_ms")),
    **dict.fromkeys(("queue_ms", "server_ttft_ms", "prompt_tokens", "output_tokens")),
    **dict.fromkeys(("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")),
    **dict.fromkeys(("output_tokens_per_s_per_user", "output_tokens_per_s_per_gpu")),
    **dict.fromkeys(("goodput", "speculative", "kv_cache", "cost", "share_of_limit")),
    "client_limited": False,
    "samples": {},
}


def _errors(records: Iterable[RequestRecord]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for one in records:
        if failure := one.failure:
            example = failure.message[:LONGEST_EXAMPLE]
            found.setdefault(failure.kind, {"count": 0, "example": example})["count"] += 1
    return found


def _latencies(chosen: Sequence[RequestRecord]) -> dict[str, Any]:
    gaps: Counter[int] = Counter()
    for one in chosen:
        gaps.update(one.gaps_us())
    known = all(one.message_tokens for one in chosen if one.message_ns)
    return {
        "ttft_ms": summarize(one.ttft_ms for one in chosen),
        "itl_ms": summarize_counts({gap / US_PER_MS: count for gap, count in gaps.items()}),
        "itl_of": "tokens" if known else "messages",
        "tpot_ms": summarize(one.tpot_ms for one in chosen),
        "e2e_ms": summarize(one.e2e_ms for one in chosen),
        "late_ms": summarize(one.late_ms for one in chosen),
        "prompt_tokens": summarize(one.prompt_tokens for one in chosen),
        "output_tokens": summarize(one.output_tokens for one in chosen),
    }


def _throughput(
    good: Sequence[RequestRecord], held: Window, options: MetricOptions
) -> dict[str, Any]:
    """Rates over the window; without counts from the server they are unknown."""
    ended = [one for one in good if held.from_ns <= one.ended_ns < held.to_ns]
    output, total = _tokens_per_s(good, held)
    tpot = summarize(one.tpot_ms for one in held.chosen if one.ok)
    per_gpu = output / options.num_gpus if output is not None and options.num_gpus else None
    return {
        "output_tokens_per_s": _rounded(output),
        "total_tokens_per_s": _rounded(total),
        "requests_per_s": _rounded(len(ended) / held.seconds),
        "output_tokens_per_s_per_user": _rounded(1000 / tpot["mean"])
        if tpot and tpot["mean"]  # nothing between tokens that came together
        else None,
        "output_tokens_per_s_per_gpu": _rounded(per_gpu),
    }


def _tokens_per_s(good: Sequence[RequestRecord], held: Window) -> tuple[float | None, float | None]:
    """Output tokens per second, and total tokens with the prompts whose answer began."""
    if any(one.output_tokens is None for one in good):
        return None, None
    output = sum(one.tokens_between(held.from_ns, held.to_ns) for one in good) / held.seconds
    prompts = [
        one.prompt_tokens for one in good if held.from_ns <= (one.first_token_ns or 0) < held.to_ns
    ]
    known = [count for count in prompts if count is not None]
    return output, output + sum(known) / held.seconds if len(known) == len(prompts) else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _goodput(
    chosen: Sequence[RequestRecord], requests_per_s: float, slo: Mapping[str, float] | None
) -> dict[str, float] | None:
    if slo is None:
        return None
    within = sum(is_within(slo, one) for one in chosen)
    good = sum(one.ok for one in chosen)
    return {
        "requests_per_s": round(requests_per_s * within / good, 4) if good else 0.0,
        "share": round(within / len(chosen), 4),
    }


def _tasks(records: Sequence[RequestRecord], plan: LoadPlan) -> dict[str, Any] | None:
    """A task is complete if its last call is; its time includes all calls and waits."""
    if plan.kind != "tasks":
        return None
    rows: dict[int, list[RequestRecord]] = {}
    for one in records:
        rows.setdefault(one.task or 0, []).append(one)
    last = {task[0].task or 0: len(task) - 1 for task in plan.tasks}
    done = [
        row
        for number, row in rows.items()
        if any(one.ok and one.call == last[number] for one in row)
    ]
    times = [
        (max(one.ended_ns for one in row) - min(one.sent_ns for one in row)) / NS for row in done
    ]
    return {
        "count": len(rows),
        "ok": len(done),
        "calls": len(records),
        "retries": sum(one.attempt > 0 for one in records),
        "total_s": summarize(times),
    }


def _samples(chosen: Sequence[RequestRecord]) -> dict[str, list[float]]:
    """Samples in the order of sending, evenly spaced if there are too many."""
    step = max(1, -(-len(chosen) // MOST_SAMPLES))
    return {
        name: [
            round(value, SAMPLE_DIGITS)
            for one in chosen[::step]
            if (value := getattr(one, name)) is not None
        ]
        for name in ("ttft_ms", "tpot_ms", "e2e_ms")
    }


def client_limit(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same over all points: the largest share, and whether any point is limited."""
    shares = [one["share_of_limit"] for one in points if one.get("share_of_limit") is not None]
    marked = any(one.get("client_limited") for one in points)
    return {"share_of_limit": max(shares, default=None), "marked": marked}


def largest_within_slo(points: Iterable[Mapping[str, Any]]) -> int | None:
    """The largest concurrency up to which the SLO holds at every point that was measured."""
    largest = None
    closed = [one for one in points if one["load"]["kind"] in ("concurrency", "tasks")]
    for one in sorted(closed, key=lambda one: int(one["load"]["concurrency"])):
        if not one["goodput"] or one["goodput"]["share"] < SHARE_WITHIN_SLO:
            break
        largest = int(one["load"]["concurrency"])
    return largest


def _cost(
    price_per_gpu_hour_usd: float | None,
    num_gpus: int | None,
    per_s: Mapping[str, float | None],
) -> dict[str, float | None] | None:
    """Costs in USD, from the rates of `output_tokens`, `total_tokens` and `tasks`."""
    if price_per_gpu_hour_usd is None or not num_gpus:
        return None
    usd_per_s = price_per_gpu_hour_usd * num_gpus / SECONDS_PER_HOUR

    def each(name: str, count: int) -> float | None:
        done = per_s.get(name)
        return round(usd_per_s / done * count, COST_DIGITS) if done else None

    return {
        "usd_per_million_output_tokens": each("output_tokens", TOKENS_PRICED),
        "usd_per_million_total_tokens": each("total_tokens", TOKENS_PRICED),
        "usd_per_task": each("tasks", 1),
    }


@dataclass(frozen=True, slots=True)
class Window:
    """The time that throughput is measured in; `chosen` are the requests whose latencies count."""

    kind: WindowKind
    from_ns: int
    to_ns: int
    chosen: Sequence[RequestRecord]

    @property
    def seconds(self) -> float:
        return (self.to_ns - self.from_ns) / NS

    def as_json(self, start_ns: int) -> dict[str, Any]:
        from_s, to_s = ((at_ns - start_ns) / NS for at_ns in (self.from_ns, self.to_ns))
        return {"kind": self.kind, "from_s": round(from_s, 4), "to_s": round(to_s, 4)}


def measurement_window(
    records: Sequence[RequestRecord], plan: LoadPlan, wanted: WindowKind
) -> Window:
    """Requests are chosen by the order of sending, so that long ones are not favoured.

    The window of a closed loop is the time in which all streams were busy: without the first wave,
    which comes all together, and the last, whose concurrency falls. Tasks, traces and short loads
    count as a whole.
    """
    edge = _edge(len(records), plan) if wanted == "steady" else 0
    chosen = records[edge : len(records) - edge]
    if edge and chosen[0].sent_ns < records[-1].sent_ns:
        return Window("steady", chosen[0].sent_ns, records[-1].sent_ns, chosen)
    last_ns = max(one.ended_ns for one in records)
    return Window("whole", records[0].sent_ns, last_ns + 1, records)


def _edge(count: int, plan: LoadPlan) -> int:
    if plan.kind == "concurrency":
        return plan.concurrency if count >= WAVES * plan.concurrency else 0
    if plan.kind in ("poisson", "gamma") and count >= OPEN_LEAST:
        return int(count * OPEN_RAMP)
    return 0
