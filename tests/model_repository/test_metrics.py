"""The model's own metrics on Triton's metrics port."""

from __future__ import annotations

import time
from contextlib import closing, suppress

import pytest

from tests.model_repository.conftest import MODEL_YAML, Serve, Served


@pytest.fixture(scope="module")
def measured(start: Serve) -> Served:
    """A server whose requests are all known."""
    yaml = MODEL_YAML.replace("true}", "true, max_requests: 1}") + "enable_iter_perf_stats: true\n"
    served = start(yaml)
    served.client.ask("tokens=21 step_ms=20 input=7", streaming=True, return_perf_metrics=True)
    served.wait_for_metrics({'requests_total{outcome="finished"}': 1})  # its place is free again
    served.client.ask("tokens=5 input=3")
    served.wait_for_metrics({'requests_total{outcome="finished"}': 2})
    served.client.refusal("tokens=5", temperature=-1.0)
    served.client.refusal("crash=broken")
    prompt = "tokens=10000 step_ms=10 name=measured"
    with closing(served.client.stream(prompt, streaming=True, max_tokens=10000)) as responses:
        next(responses)
        served.client.refusal("tokens=1")
        served.wait_for_metrics({"requests_running": 1})
    served.wait_for("abort", prompt)
    served.wait_for_metrics({"requests_running": 0, 'requests_total{outcome="cancelled"}': 1})
    return served


@pytest.mark.parametrize(
    ("outcome", "count"),
    [("finished", 2), ("cancelled", 1), ("refused", 1), ("invalid", 1), ("failed", 1)],
)
def test_requests_are_counted_by_how_they_ended(measured: Served, outcome: str, count: int) -> None:
    assert measured.metrics()[f'requests_total{{outcome="{outcome}"}}'] == count


def test_latencies_are_histograms(measured: Served) -> None:
    metrics = measured.metrics()
    assert metrics["time_to_first_token_seconds_count"] == 2
    assert 0.02 < metrics["time_to_first_token_seconds_sum"] < 20  # what it would be in ms
    assert metrics["request_latency_seconds_count"] == 2
    assert 0.4 < metrics["request_latency_seconds_sum"] < 400
    assert metrics["inter_token_latency_seconds_count"] == 1
    assert 0.02 <= metrics["inter_token_latency_seconds_sum"] < 20
    assert metrics["longest_gap_seconds_sum"] >= metrics["inter_token_latency_seconds_sum"]
    assert metrics['inter_token_latency_seconds_bucket{le="+Inf"}'] == 1


def test_a_stream_counts_while_it_runs(start: Serve) -> None:
    served = start()
    prompt, began_s = "tokens=10000 step_ms=1", time.monotonic()
    with closing(served.client.stream(prompt, streaming=True, max_tokens=10000)) as responses:
        next(responses)
        served.wait_for_metrics({"requests_running": 1})
        first = served.metrics()["generated_tokens_total"]
        assert any(served.metrics()["generated_tokens_total"] > first for _ in responses)
        most = (time.monotonic() - began_s) / 0.001
        assert served.metrics()["generated_tokens_total"] <= most, "each counts once"
    with suppress(StopIteration):
        next(responses)


def test_a_server_without_metrics_serves(start: Serve) -> None:
    served = start(options=["--allow-metrics=false"])
    assert served.client.ask("tokens=1")
