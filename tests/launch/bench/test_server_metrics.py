"""What a server counts: read from a running one, and what changed between two readings."""

from __future__ import annotations

import http.server
import json
import math
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import httpx
import pytest

from benchmarks.reference_server.process import ReferenceServer
from launch import endpoint
from launch.bench import server_metrics
from launch.bench.server_metrics import MetricsReading
from launch.bounded_answer import MAX_BYTES
from launch.endpoint import Endpoint
from launch.smoke import metrics
from tests.launch.bench.conftest import Reference
from tests.model_repository.conftest import Served


def test_requests_and_iterations_since_the_last_reading_are_told(reference: Reference) -> None:
    at = endpoint.from_url(reference.url)
    before = server_metrics.read(at)
    body = {"model": "any", "prompt": "time", "max_tokens": 4, "ignore_eos": True}
    httpx.post(
        f"{reference.url}/v1/completions", json=body, trust_env=False, verify=False
    ).raise_for_status()
    after = server_metrics.read(at)
    [row] = after.perf
    assert row["first_token_time_ns"] > row["arrival_time_ns"] > 0
    found = server_metrics.changes(before, after)
    assert found["iterations"] >= 4
    [success] = [value for name, value in found.items() if "request_success_total" in name]
    assert success["after"] - (success["before"] or 0) == 1
    assert not any("_bucket" in name for name in found)
    assert server_metrics.read(at).perf == []


def test_what_the_model_brings_to_triton_later_is_waited_for(served: Served) -> None:
    at = Endpoint("triton", None, metrics=served.metrics_url)
    before = server_metrics.read(at)
    for _ in range(3):
        served.client.ask("tokens=2")
    found = server_metrics.changes(before, server_metrics.read(at, before, 3))
    grown = {name: value["after"] - (value["before"] or 0) for name, value in found.items()}
    [requests] = [value for name, value in grown.items() if name.startswith(metrics.REQUESTS)]
    [tokens] = [value for name, value in grown.items() if "generated_tokens_total" in name]
    assert (requests, tokens) == (3, 6)


def test_a_server_that_tells_nothing_is_no_fault() -> None:
    with ReferenceServer("openai_completions") as server:
        found = server_metrics.read(server.endpoint)
    assert (found.samples, found.perf) == ({}, [])
    assert len(found.absent) == 3


def test_only_what_changed_is_kept() -> None:
    before = MetricsReading({"a_total": 1.0, "b_total": 5.0, 'c_bucket{le="1"}': 1.0})
    after = MetricsReading({"a_total": 3.0, "b_total": 5.0, 'c_bucket{le="1"}': 2.0, "new": 1.0})
    assert server_metrics.changes(before, after) == {
        "a_total": {"before": 1.0, "after": 3.0},
        "new": {"before": None, "after": 1.0},
    }


def test_iterations_are_told_by_their_means() -> None:
    rows = [{"active": 2, "kv": {"used": 10, "on": True}}, {"active": 4, "kv": {"used": 20}}]
    assert server_metrics.changes(MetricsReading(), MetricsReading(iterations=rows)) == {
        "iterations": 2,
        "iteration mean active": 3.0,
        "iteration mean kv.used": 15.0,
    }


MANY = 10**400
REUSED = {"kv_cache_reused_block": 3}


def test_iterations_of_any_depth_and_length_are_taken() -> None:
    deep: dict[str, Any] = {"kept": 1}
    for _ in range(5000):
        deep = {"a": deep, "b": 1}
    found = server_metrics.changes(MetricsReading(), MetricsReading(iterations=[deep, {"b": MANY}]))
    assert found["iteration mean b"] == 1
    assert len(found) == 2 + server_metrics.LEVELS


class Answering(http.server.BaseHTTPRequestHandler):
    """Gives each path the text that the test wants, and 404 to all others."""

    texts: ClassVar[dict[str, str]] = {}

    def do_GET(self) -> None:
        text = self.texts.get(self.path)
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def answering() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<html>", "GET /perf_metrics gives no JSON"),
        ("{}", "GET /perf_metrics gives no list of objects"),
        ("[1]", "GET /perf_metrics gives no list of objects"),
        pytest.param("[" * 200_000, "GET /perf_metrics gives no JSON", id="deep"),
        (None, "GET /perf_metrics gives 404"),
    ],
)
def test_what_a_server_does_not_tell_is_said(answering: str, text: str | None, words: str) -> None:
    known = {"/metrics": '[{"a": 1}]', "/prometheus/metrics": "some_total 3\n"}
    Answering.texts = known | ({} if text is None else {"/perf_metrics": text})
    found = server_metrics.read(endpoint.from_url(answering))
    assert words in found.absent
    assert found.iterations == [{"a": 1}]
    assert found.requests == ()


@pytest.mark.parametrize(
    ("groups", "row"),
    [
        ([1], {}),
        ({"timing_metrics": "x", "kv_cache_metrics": {"num_reused_blocks": 3}}, REUSED),
        ({"timing_metrics": {"arrival_time": MANY, "first_token_time": math.inf}}, {}),
    ],
)
def test_of_a_request_only_numbers_are_read(groups: Any, row: dict[str, float]) -> None:
    assert server_metrics.perf_row({"perf_metrics": groups}) == row


def test_all_requests_of_a_long_point_are_read(answering: str) -> None:
    """Some 10,000, of 1 KB each."""
    count = 10_000
    groups = {"kv_cache_metrics": {"num_reused_blocks": 3}, "more": {"a" * 1000: [1] * 20}}
    text = json.dumps([{"request_id": 1, "perf_metrics": groups}] * count)
    assert len(text) > MAX_BYTES
    Answering.texts = {"/metrics": "[]", "/perf_metrics": text}
    assert server_metrics.read(endpoint.from_url(answering)).perf == [REUSED] * count


def test_a_reading_waits_for_no_request_that_has_not_ended(
    answering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that have were counted at the reading before."""
    Answering.texts = {"/prometheus/metrics": f"{metrics.REQUESTS} 5\n"}
    at = endpoint.from_url(answering)
    before = server_metrics.read(at)
    for name in ("PERIOD_S", "COUNTED_S"):
        monkeypatch.setattr(metrics, name, 60.0)
    began_s = time.monotonic()
    again = server_metrics.read(at, before)
    assert again.samples == before.samples != {}
    assert time.monotonic() - began_s < 30
