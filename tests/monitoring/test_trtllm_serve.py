"""trtllm-serve under a real Prometheus, with the reference engine: its metrics, and its end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest

from builder import pipeline
from builder.bundle import Bundle
from builder.facts import release
from builder.observability import metrics
from supervisor.ports import free_ports
from tests.launch.conftest import Launch
from tests.monitoring.conftest import Start, watch

NAME = f"serve-test-{os.getpid()}"


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    [port] = free_ports(1)
    given = [
        f"name={NAME}",
        "slo={ttft_ms: 1, itl_ms: 10}",
        f"targets.trtllm_serve.port={port}",
        "targets.monitoring={server: trtllm_serve, speed: 60, blackbox: null, dcgm_port: null}",
    ]
    return pipeline.render("llama-tiny", tmp_path / "b", given, more_targets=["monitoring"])


def test_its_alerts_fire_and_end(
    bundle: Bundle, launch: Launch, start: Start, tmp_path: Path
) -> None:
    """First tokens come later than the objective; then nobody asks; then the server is gone."""
    [port] = free_ports(1)
    prometheus = watch(start, bundle, port, tmp_path / "tsdb")
    launcher = launch("up", bundle.folder, "--target", "trtllm_serve", "--engine", "reference")
    url = launcher.line("http").removeprefix("http: ")
    prometheus.wait_for("instance:llm_ready == 1")
    with httpx.Client(trust_env=False, verify=False, base_url=url, timeout=60) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        while "TtftBurnsFast" not in prometheus.firing():
            body = {"model": model, "prompt": "one two", "max_tokens": 4}
            client.post("/v1/completions", json=body).raise_for_status()
    prometheus.wait(gone=("TtftBurnsFast",))
    assert "TtftBurnsFast" not in prometheus.firing()
    assert "ServerNotReady" not in prometheus.firing()
    known = metrics.of_server("trtllm_serve", release.load("1.2.1"))
    samples = {sample for row in known.values() for sample in row.samples}
    assert samples <= set(prometheus.metrics())
    launcher.signal(signal.SIGTERM)
    prometheus.wait("ServerNotReady")
    assert "ServerNotReady" in prometheus.firing()
    assert launcher.end() == 0
