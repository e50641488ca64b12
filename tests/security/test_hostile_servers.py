"""Nothing that a server answers is a fault of ours: it ends in a failure that says what came."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from builder.errors import ToolkitError
from launch import discovery, endpoint
from launch.bench import server_metrics, system_under_test
from launch.bench.clients import Api, connect, offered, receiver
from launch.bench.request import LoadRequest, RequestRecord
from launch.endpoint import Endpoint
from launch.smoke import concurrency, metrics, negative, suite
from launch.smoke.client import CheckFailure, RequestRejected
from tests.security import hostile_server
from tests.security.attacks import CONTROL, survive

# More of them are asked for where somebody looks for new ones.
SEEDS = range(int(os.environ.get("HOSTILE_SEEDS", "25")))
SUITE_SEEDS = SEEDS[: len(SEEDS) // 4]
KINDS = ("openai", "kserve", "grpc")
LOAD = ("--requests=2", "--concurrency=1", "--warmup=1", "--request-timeout=3", "--isl=8")
LOAD += ("--osl=8", "--processes=1", "--window=whole")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for what such a server never says are short."""
    monkeypatch.setattr(suite, "CHECK_TIMEOUT_S", 3.0)
    monkeypatch.setattr(suite, "PROBE_TIMEOUT_S", 1.0)
    monkeypatch.setattr(metrics, "COUNTED_S", 0.05)
    monkeypatch.setattr(metrics, "PERIOD_S", 0.05)
    monkeypatch.setattr(metrics, "POLL_S", 0.01)
    monkeypatch.setattr(concurrency, "BEGIN_TIMEOUT_S", 1.0)
    monkeypatch.setattr(concurrency, "TRIES", 2)
    monkeypatch.setattr(negative, "FREE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(discovery, "FIRST_ANSWER_S", 2.0)
    monkeypatch.setattr(discovery, "QUESTION_S", 1.0)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    kind, seed = request.param
    with ExitStack() as stack:
        if kind == "grpc":
            port = stack.enter_context(hostile_server.over_grpc(seed)).rpartition(":")[2]
            yield f"triton://127.0.0.1?http=off&metrics=off&grpc={port}&model=m"
        else:
            address = stack.enter_context(hostile_server.http(seed))
            port = address.rpartition(":")[2]
            more = f"triton://{address}?grpc=off&metrics={port}&model=m"
            yield f"http://{address}" if kind == "openai" else more


def of_seeds(seeds: range) -> pytest.MarkDecorator:
    rows = [(kind, seed) for kind in KINDS for seed in seeds]
    return pytest.mark.parametrize("url", rows, ids=[f"{k}-{s}" for k, s in rows], indirect=True)


def found_at(url: str) -> Endpoint:
    """Whatever answers may be refused; then what the URL says is asked all the same."""
    named = endpoint.from_url(url)
    try:
        return discovery.identified(named, url)
    except ToolkitError:
        return named


def measured(served: Endpoint, api: Api) -> list[RequestRecord]:
    records: list[RequestRecord] = []

    async def send() -> None:
        client = connect(served, api)
        try:
            await client.prepare()
            for index in range(2):
                asked = LoadRequest("Hi", 8, index=index, timeout_s=2, keep_text=index > 0)
                records.append(await client.send(asked))
        except ToolkitError:
            assert not records

    receiver.run(send())
    return records


@of_seeds(SEEDS)
def test_what_is_asked_beside_the_checks(url: str) -> None:
    served = found_at(url)
    try:
        discovery.check_answers(served)
        system_under_test.reported(served)
    except ToolkitError as error:
        assert error.diagnostics
    metrics.engine_info(served)
    try:
        server_metrics.changes(server_metrics.read(served), server_metrics.read(served))
    except (CheckFailure, RequestRejected) as error:
        assert str(error)
    for api in offered(served):
        for record in measured(served, api):
            assert record.failure or record.output_tokens is None or record.output_tokens >= 0


@of_seeds(SUITE_SEEDS)
def test_every_check_ends_with_a_result(url: str) -> None:
    served = found_at(url)
    results = suite.run(served, lambda _: None)
    assert len(results) > 20
    assert {one.outcome for one in results} <= {"passed", "failed", "warned", "skipped"}


@of_seeds(SUITE_SEEDS)
def test_a_measurement_and_its_report_end_as_commands_do(url: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    codes, limits = (0, 2, 5, 6), {"most_s": 20.0, "lines": False, "module": "launch"}
    done = survive("bench", url, *LOAD, f"--run-dir={run}", cwd=tmp_path, codes=codes, **limits)
    assert "died with status" not in done.stderr, done.stderr
    if (run / "bench.json").exists():
        page = tmp_path / "page.html"
        survive("report", run, "-o", page, cwd=tmp_path, codes=(0, 2), **limits)
        assert not page.exists() or not CONTROL.search(page.read_text())
