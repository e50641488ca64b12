"""Each alert that a rehearsal can provoke fires on a real Prometheus, and ends.

One story is told to a real Triton with the production model, on an engine that does as its prompts
say, while a real Prometheus asks it and a real blackbox exporter probes it. All times are a
sixtieth. What cannot be provoked here:

- GpuError and GpuMemoryFaulty: there is no GPU, and no DCGM exporter without one.
- EnginesDiffer: there is one instance.
- QueueIsSlow: the scripted engine reports the same short time in its queue for every request.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from builder import pipeline
from builder.bundle import Bundle
from builder.facts import release
from builder.observability import alerts, metrics
from launch import engine, triton
from launch.process import ServerProcess
from supervisor.ports import free_ports
from tests.model_repository.conftest import ENGINE_STUB
from tests.monitoring.conftest import Prometheus, Start, wait_for, watch
from tests.monitoring.programs import program

NAME = f"alerts-test-{os.getpid()}"
MAX_REQUESTS = 8
NOT_HERE = {"GpuError", "GpuMemoryFaulty", "EnginesDiffer", "QueueIsSlow"}
PROVOKED = sorted({row.name for row in alerts.all_of()} - NOT_HERE)

NGRAM = "{decoding_type: NGram, max_draft_len: 3, max_matching_ngram_size: 2}"

# Prompts, which are scripts for the engine.
FAILS = "tokens=5 fail=broken"
SLOW = "tokens=6 step_ms=120"
ENDLESS = "tokens=100000 step_ms=50"
MUTE = "tokens=1 step_ms=8000"
HANGS = "tokens=5 hang=loop"


@dataclass(frozen=True)
class House:
    """A Triton that comes and goes on the same ports, and its clients."""

    bundle: Bundle
    start: Start
    folder: Path
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.bundle.launch['targets']['triton']['ports']['http']}"

    def open(
        self, programs: list[Path], certificate_days: int, kv_blocks_used: int
    ) -> ServerProcess:
        """Start the bundle's own script, on an engine that says so much of its KV cache is used."""
        model = self.bundle.folder / "triton/model_repository/tensorrt_llm/1/model.yaml"
        options = {**yaml.safe_load(model.read_text()), "kv_blocks_used": kv_blocks_used}
        (self.folder / "model.yaml").write_text(yaml.safe_dump(options))
        server = self.start(
            "bash",
            self.bundle.folder / "triton/serve.sh",
            PATH=os.pathsep.join([*map(str, programs), os.environ["PATH"]]),
            LLM_CONFIG_PATH=str(self.folder / "model.yaml"),
            **self._certificate(certificate_days),
        )
        wait_for(server, f"{self.url}/v2/health/ready")
        return server

    def _certificate(self, days: int) -> dict[str, str]:
        certificate, key = self.folder / "server.pem", self.folder / "server.key"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x"]
        files = ["-days", str(days), "-keyout", str(key), "-out", str(certificate)]
        subprocess.run([*command, *files], check=True, capture_output=True)
        return {"SERVE_TLS_CERTIFICATE": str(certificate), "SERVE_TLS_KEY": str(key)}

    @contextmanager
    def crowd(self, *prompts: str) -> Iterator[None]:
        """Clients that each ask the same again and again, and hang up in the end."""
        clients = [
            asyncio.run_coroutine_threadsafe(self._client(prompt), self.loop) for prompt in prompts
        ]
        yield
        for client in clients:
            client.cancel()

    async def _client(self, prompt: str) -> None:
        body = {
            "text_input": prompt,
            "streaming": True,
            "sampling_param_max_tokens": 100000,
            "sampling_param_return_perf_metrics": True,
        }
        url = f"{self.url}/v2/models/tensorrt_llm/generate_stream"
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=None) as http:
            while True:
                try:
                    async with http.stream("POST", url, json=body) as response:
                        await response.aread()
                except httpx.TransportError:
                    pass  # the server is stopped in between
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module", autouse=True)
def swept() -> Iterator[None]:
    """What a killed server leaves behind is removed when all programs have ended."""
    yield
    triton.sweep_shared_memory(NAME)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    found = asyncio.new_event_loop()
    thread = threading.Thread(target=found.run_forever)
    thread.start()
    yield found
    found.call_soon_threadsafe(found.stop)
    thread.join()
    found.close()


@pytest.fixture(scope="module")
def drifted(programs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The programs, with an engine of another version."""
    folder = tmp_path_factory.mktemp("drifted")
    package = shutil.copytree(ENGINE_STUB, folder / "stub") / "tensorrt_llm/__init__.py"
    package.write_text(package.read_text().replace('"1.2.1+stub"', '"1.1.0+stub"'))
    return [engine.python_overlay(folder / "python", [folder / "stub"], Path), *programs]


@dataclass(frozen=True)
class Story:
    """The alerts that fired, those that still did at the end, and all metrics with their labels."""

    fired: set[str]
    left: set[str]
    metrics: Mapping[str, set[str]]


@pytest.fixture(scope="module")
def ports() -> Mapping[str, int]:
    names = ("http", "grpc", "metrics", "blackbox", "dcgm", "prometheus")
    return dict(zip(names, free_ports(len(names)), strict=True))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, ports: Mapping[str, int]) -> Bundle:
    given = [
        f"name={NAME}",
        f"workload.concurrency={MAX_REQUESTS}",
        "slo={ttft_ms: 50, itl_ms: 50}",
        f"engine_config.speculative_config={NGRAM}",
        f"targets.triton.max_requests={MAX_REQUESTS}",
        "targets.triton.grpc_tls={certificate: /tls/server.pem, key: /tls/server.key}",
        *(f"targets.triton.{name}_port={ports[name]}" for name in ("http", "grpc", "metrics")),
        "targets.monitoring.server=triton",
        "targets.monitoring.speed=60",
        "targets.monitoring.acceptance_floor=0.6",
        f"targets.monitoring.blackbox='127.0.0.1:{ports['blackbox']}'",
        f"targets.monitoring.dcgm_port={ports['dcgm']}",
    ]
    folder = tmp_path_factory.mktemp("bundle") / "b"
    return pipeline.render("llama-tiny", folder, given, more_targets=["monitoring"])


@pytest.fixture(scope="module")
def story(
    start: Start,
    bundle: Bundle,
    ports: Mapping[str, int],
    programs: list[Path],
    drifted: list[Path],
    loop: asyncio.AbstractEventLoop,
    tmp_path_factory: pytest.TempPathFactory,
) -> Story:
    folder = tmp_path_factory.mktemp("house")
    house = House(bundle, start, folder, loop)
    blackbox = probe(start, bundle, ports["blackbox"])
    prometheus = watch(start, bundle, ports["prometheus"], folder / "tsdb")

    server = come_and_go(house, drifted, prometheus)
    overload(house, prometheus)
    blackbox.stop()
    prometheus.wait("ExporterDown", "NothingWatched")
    probe(start, bundle, ports["blackbox"])
    with house.crowd(ENDLESS, HANGS):
        prometheus.wait("NoProgress")
    server.stop()
    house.open(programs, certificate_days=90, kv_blocks_used=25)
    prometheus.wait(gone=tuple(PROVOKED), within_s=120)
    return Story(prometheus.fired(), prometheus.firing(), prometheus.metrics())


def come_and_go(house: House, drifted: list[Path], prometheus: Prometheus) -> ServerProcess:
    """Restarts, of a server that is not as it should be."""
    server = house.open(drifted, certificate_days=9, kv_blocks_used=99)
    for _ in range(2):
        prometheus.wait_for("instance:llm_ready == 1")
        server.stop()
        prometheus.wait("ServerNotReady")
        server = house.open(drifted, certificate_days=9, kv_blocks_used=99)
    prometheus.wait("RestartLoop")
    return server


def overload(house: House, prometheus: Prometheus) -> None:
    """Streams that fail, that are slow, and then more of them than the server takes."""
    with house.crowd(FAILS, FAILS, SLOW, SLOW, SLOW):
        prometheus.wait(
            *("EngineVersionDrift", "CertificateExpires", "KvCacheNearlyFull"),
            *("RequestsFail", "AvailabilityBurnsFast", "AvailabilityBurnsSlowly"),
            *("TtftBurnsFast", "TtftBurnsSlowly", "ItlBurnsFast", "ItlBurnsSlowly"),
            "AcceptanceCollapsed",
            within_s=45,
        )
    with house.crowd(*[MUTE] * (MAX_REQUESTS + 2)):
        prometheus.wait("QueueGrows", "NearSaturation", "RequestsRefused")


def probe(start: Start, bundle: Bundle, port: int) -> ServerProcess:
    """The exporter that probes, as soon as it answers."""
    config = bundle.folder / "monitoring/blackbox.yml"
    listen = f"--web.listen-address=127.0.0.1:{port}"
    server = start(program("prometheus-blackbox-exporter"), f"--config.file={config}", listen)
    wait_for(server, f"http://127.0.0.1:{port}/-/healthy")
    return server


@pytest.mark.parametrize("alert", PROVOKED)
def test_the_alert_fires(alert: str, story: Story) -> None:
    assert alert in story.fired


@pytest.mark.parametrize("alert", PROVOKED)
def test_the_alert_ends(alert: str, story: Story) -> None:
    assert alert not in story.left


def test_nothing_else_fired(story: Story) -> None:
    assert story.fired <= set(PROVOKED)


def test_the_server_exports_every_metric_that_the_data_knows(story: Story) -> None:
    for family in metrics.of_server("triton", release.load("1.2.1")).values():
        for sample in family.samples:
            assert story.metrics.get(sample, set()) >= {"__name__", *family.labels}, sample


def test_every_signal_was_recorded(story: Story, bundle: Bundle) -> None:
    rules = yaml.safe_load((bundle.folder / "monitoring/rules/recording.yml").read_text())
    recorded = {rule["record"] for rule in rules["groups"][0]["rules"]}
    gpu = {name for name in recorded if name.startswith("gpu:")}
    assert recorded - gpu <= set(story.metrics)
