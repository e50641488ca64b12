"""The model's metrics on Triton's metrics port, brought there once a second.

Families are those of `HISTOGRAMS`, `COUNTERS` and `GAUGES`, `requests_total` and `engine_info`.
Labels: `model` and `version` are Triton's; `engine_info` has `release`, by which a stand-in
for the engine is known as that; `requests_total` has `outcome`, one of `finished`,
`cancelled` (by the client, a stop request or a time limit), `refused` (above a limit; worth a
retry), `invalid` (the client's fault) and `failed` (ours). A histogram gets one value per request.

The engine reports queue time and drafts if `return_perf_metrics` is set, and its KV cache if the
engine option `enable_iter_perf_stats` is true.

A value costs a round trip to the server process. Therefore any thread leaves its values here, under
a lock, and one thread of this module takes them to Triton. Responses and tokens are counted by
the streams themselves.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, get_args

import triton_python_backend_utils as pb_utils

from .inputs import Outcome
from .response import Output, Stream

PREFIX = "trtllm_model_"
PERIOD_S = 1.0
SECOND = timedelta(seconds=1)
# Upper bounds in seconds: of what takes the time of a request, and of a token.
REQUEST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 5.0)

HISTOGRAMS: Mapping[str, tuple[tuple[float, ...], str]] = {
    "time_to_first_token_seconds": (REQUEST_S, "Arrival of a stream to its first response"),
    "inter_token_latency_seconds": (TOKEN_S, "Mean time between the tokens of one stream"),
    "longest_gap_seconds": (TOKEN_S, "Longest time between two responses of one stream"),
    "request_latency_seconds": (REQUEST_S, "Arrival of a request to its last response"),
    "queue_time_seconds": (REQUEST_S, "Arrival of a request at the engine to its first schedule"),
}
COUNTERS: Mapping[str, str] = {
    "responses_total": "Responses that carried output",
    "prompt_tokens_total": "Prompt tokens of the requests that gave output",
    "generated_tokens_total": "Tokens sent to clients",
    "draft_tokens_total": "Draft tokens of speculative decoding",
    "accepted_draft_tokens_total": "Draft tokens of speculative decoding that were accepted",
}
GAUGES: Mapping[str, str] = {
    "requests_running": "Requests that have a first response or are not streamed",
    "requests_waiting": "Streams without a first response",
    "kv_cache_utilization": "Share of the KV cache's blocks that is in use",
}


class MetricsRecorder:
    """Takes values from any thread, and once a second those of the streams that run."""

    def __init__(
        self, labels: Mapping[str, str], engine_version: str, running: Callable[[], list[Stream]]
    ) -> None:
        self._running = running
        self.kv_cache_utilization: float | None = None
        self._lock = threading.Lock()
        # What came since the last time.
        self._counts: Counter[str] = Counter()
        self._observations: list[tuple[str, float]] = []
        self._closed = threading.Event()
        self._families: list[Any] = []  # Triton drops a family that nothing refers to
        self._metrics = self._declare(labels, engine_version)
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def record_first_response(self, stream: Stream, output: Output) -> None:
        with self._lock:
            self._counts["prompt_tokens_total"] += len(output.prompt_token_ids)
            if stream.request.streaming:
                waited_s = stream.first_sent_s - stream.arrival_s
                self._observations.append(("time_to_first_token_seconds", waited_s))

    def record_finished(self, stream: Stream, output: Output) -> None:
        """Its last response was sent, and was no error."""
        perf_metrics = getattr(output.sequences[0], "request_perf_metrics", None)
        with self._lock:
            durations = [("request_latency_seconds", stream.last_sent_s - stream.arrival_s)]
            if stream.request.streaming and stream.responses > 1 and stream.tokens > 1:
                generating_s = stream.last_sent_s - stream.first_sent_s
                durations += [
                    ("inter_token_latency_seconds", generating_s / (stream.tokens - 1)),
                    ("longest_gap_seconds", stream.longest_gap_s),
                ]
            self._observations.extend(durations)
            if perf_metrics is not None:
                timing, drafts = perf_metrics.timing_metrics, perf_metrics.speculative_decoding
                queued_s = (timing.first_scheduled_time - timing.arrival_time) / SECOND
                self._observations.append(("queue_time_seconds", queued_s))
                self._counts["draft_tokens_total"] += drafts.total_draft_tokens
                self._counts["accepted_draft_tokens_total"] += drafts.total_accepted_draft_tokens

    def record_end(self, outcome: Outcome, stream: Stream | None = None) -> None:
        """A request ended; without a stream, it never began."""
        with self._lock:
            self._counts[f"requests_total/{outcome}"] += 1
            if stream is not None:
                self._count(stream)

    def close(self) -> None:
        """Bring the last values to Triton."""
        self._closed.set()
        self._thread.join()

    def _declare(self, labels: Mapping[str, str], engine_version: str) -> dict[str, Any]:
        kinds = pb_utils.MetricFamily
        metrics: dict[str, Any] = {}
        for name, (buckets, words) in HISTOGRAMS.items():
            family = self._family(name, words, kinds.HISTOGRAM)
            metrics[name] = family.Metric(labels=labels, buckets=list(buckets))
        for name, words in COUNTERS.items():
            metrics[name] = self._family(name, words, kinds.COUNTER).Metric(labels=labels)
        for name, words in GAUGES.items():
            metrics[name] = self._family(name, words, kinds.GAUGE).Metric(labels=labels)
        requests = self._family("requests_total", "Requests by how they ended", kinds.COUNTER)
        for outcome in get_args(Outcome):
            metric = requests.Metric(labels={**labels, "outcome": outcome})
            metrics[f"requests_total/{outcome}"] = metric
        engine = self._family("engine_info", "The engine that serves, by its version", kinds.GAUGE)
        metrics["engine_info"] = engine.Metric(labels={**labels, "release": engine_version})
        metrics["engine_info"].set(1)
        return metrics

    def _family(self, name: str, words: str, kind: Any) -> Any:
        family = pb_utils.MetricFamily(name=f"{PREFIX}{name}", description=words, kind=kind)
        self._families.append(family)
        return family

    def _run(self) -> None:
        last = False
        while not last:
            last = self._closed.wait(PERIOD_S)
            self._bring()

    def _bring(self) -> None:
        running = self._running()
        with self._lock:
            for stream in running:
                self._count(stream)
            counts, self._counts = self._counts, Counter()
            observations, self._observations = self._observations, []
        for name, number in counts.items():
            self._metrics[name].increment(number)
        for name, value in observations:
            self._metrics[name].observe(value)
        waiting = sum(stream.request.streaming and not stream.responses for stream in running)
        self._metrics["requests_waiting"].set(waiting)
        self._metrics["requests_running"].set(len(running) - waiting)
        if self.kv_cache_utilization is not None:
            self._metrics["kv_cache_utilization"].set(self.kv_cache_utilization)

    def _count(self, stream: Stream) -> None:
        """What it has sent since it was last counted."""
        responses, tokens = stream.counted
        stream.counted = stream.responses, stream.tokens
        self._counts["responses_total"] += stream.responses - responses
        self._counts["generated_tokens_total"] += stream.tokens - tokens
