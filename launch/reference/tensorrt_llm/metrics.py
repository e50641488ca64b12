"""What is measured: of one request, of one engine iteration, and of a server as Prometheus text."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Lock


def steady_time() -> timedelta:
    """The steady clock, as the engine reports points in time."""
    return timedelta(seconds=time.monotonic())


@dataclass(slots=True)
class TimingMetrics:
    """Points on the steady clock."""

    arrival_time: timedelta
    first_scheduled_time: timedelta = timedelta()
    first_token_time: timedelta = timedelta()
    last_token_time: timedelta = timedelta()
    kv_cache_size: int = 0


@dataclass(slots=True)
class KvCacheMetrics:
    """Blocks of the KV cache that the request took; the reference engine reuses none."""

    num_total_allocated_blocks: int = 0
    num_new_allocated_blocks: int = 0
    num_reused_blocks: int = 0
    num_missed_blocks: int = 0
    kv_cache_hit_rate: float = 0.0


@dataclass(slots=True)
class SpeculativeDecodingMetrics:
    total_accepted_draft_tokens: int = 0
    total_draft_tokens: int = 0

    @property
    def acceptance_rate(self) -> float:
        if not self.total_draft_tokens:
            return 0.0
        return self.total_accepted_draft_tokens / self.total_draft_tokens


@dataclass(slots=True)
class RequestPerfMetrics:
    timing_metrics: TimingMetrics
    kv_cache_metrics: KvCacheMetrics = field(default_factory=KvCacheMetrics)
    speculative_decoding: SpeculativeDecodingMetrics = field(
        default_factory=SpeculativeDecodingMetrics
    )
    first_iter: int | None = None
    last_iter: int | None = None

    def latencies_s(self, num_tokens: int) -> dict[str, float]:
        """Latencies in seconds, by the name of their histogram without its unit."""
        timing = self.timing_metrics

        def between(start: timedelta, end: timedelta) -> float:
            return (end - start).total_seconds()

        decode_s = between(timing.first_token_time, timing.last_token_time)
        return {
            "e2e_request_latency": between(timing.arrival_time, timing.last_token_time),
            "time_to_first_token": between(timing.arrival_time, timing.first_token_time),
            "request_queue_time": between(timing.arrival_time, timing.first_scheduled_time),
        } | ({"time_per_output_token": decode_s / (num_tokens - 1)} if num_tokens > 1 else {})


_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_HISTOGRAMS = (
    "e2e_request_latency",
    "time_to_first_token",
    "time_per_output_token",
    "request_queue_time",
)


class Histogram:
    """Counts of seconds in the cumulative buckets of the Prometheus text format."""

    def __init__(self) -> None:
        self._counts = [0] * len(_BUCKETS_S)
        self._sum, self._count = 0.0, 0

    def observe(self, seconds: float) -> None:
        self._sum += seconds
        self._count += 1
        for index, bound in enumerate(_BUCKETS_S):
            self._counts[index] += seconds <= bound

    def lines(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        yield f"# HELP {name} {name.removesuffix('_seconds').replace('_', ' ')} in seconds"
        yield f"# TYPE {name} histogram"
        for bound, count in zip(_BUCKETS_S, self._counts, strict=True):
            yield f"{name}_bucket{_labels({**labels, 'le': str(bound)})} {count}"
        yield f"{name}_bucket{_labels({**labels, 'le': '+Inf'})} {self._count}"
        yield f"{name}_sum{_labels(labels)} {self._sum}"
        yield f"{name}_count{_labels(labels)} {self._count}"


class ServerMetrics:
    """The Prometheus metrics of a server, by the release's names."""

    def __init__(self, prefix: str, model_name: str) -> None:
        self._prefix = prefix
        self._labels = {"model_name": model_name, "engine_type": "reference"}
        self._finished: Counter[str] = Counter()
        self._histograms = {name: Histogram() for name in _HISTOGRAMS}
        self._lock = Lock()

    def finished(self, reasons: Iterable[str], metrics: RequestPerfMetrics, tokens: int) -> None:
        with self._lock:
            self._finished.update(reasons)
            for name, seconds in metrics.latencies_s(tokens).items():
                self._histograms[name].observe(seconds)

    def text(self) -> str:
        """The text exposition format, version 0.0.4."""
        with self._lock:
            name = f"{self._prefix}request_success_total"
            lines = [f"# HELP {name} finished requests", f"# TYPE {name} counter"]
            for reason, count in sorted(self._finished.items()):
                lines.append(
                    f"{name}{_labels({**self._labels, 'finished_reason': reason})} {count}"
                )
            for key, histogram in self._histograms.items():
                lines += histogram.lines(f"{self._prefix}{key}_seconds", self._labels)
        return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"
