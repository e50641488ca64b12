"""Nothing that a server answers is a fault of ours: it ends in a failure that says what came."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from builder.errors import BadInput, NotReady, ToolkitError
from launch import discovery, endpoint, serving
from launch.bench import server_metrics, system_under_test
from launch.bench.clients import Api, connect, connection, offered
from launch.bench.request import LoadRequest, RequestRecord
from launch.endpoint import Endpoint
from launch.smoke import concurrency, metrics, negative, suite
from launch.smoke.client import CheckFailure, RequestRejected
from launch.smoke.suite import POSITIVE
from launch.target import Target
from tests.launch.scripted_server import ENDLESS, answering, by_path, say
from tests.security import hostile_server
from tests.security.attacks import CONTROL, survive

# More of them are asked for where somebody looks for new ones.
SEEDS = range(int(os.environ.get("HOSTILE_SEEDS", "25")))
SUITE_SEEDS = SEEDS[: len(SEEDS) // 4]
KINDS = ("openai", "kserve", "grpc")
LOAD = (
    *("--requests=2", "--concurrency=1", "--warmup=1", "--request-timeout=3", "--isl=8"),
    *("--osl=8", "--processes=1", "--window=whole"),
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for what such a server never says are short."""
    monkeypatch.setattr(suite, "CHECK_TIMEOUT_S", 3.0)
    monkeypatch.setattr(suite, "TOKEN_TIMEOUT_S", 1.0)
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

    connection.run(send())
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


@of_seeds(SUITE_SEEDS[: len(SUITE_SEEDS) // 2])
def test_a_measurement_and_its_report_end_as_commands_do(url: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = command("bench", url, *LOAD, f"--run-dir={run}", cwd=tmp_path)
    assert "died with status" not in done.stderr, done.stderr
    if (run / "bench.json").exists():
        page = tmp_path / "page.html"
        command("report", run, "-o", page, cwd=tmp_path)
        assert not page.exists() or not CONTROL.search(page.read_text())


def command(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Of `launch`; it ends with a word of its own."""
    return survive(*words, cwd=cwd, codes=(0, 2, 5, 6), lines=False, most_s=20.0, module="launch")


INDEXES = (
    "{}",
    '{"a": 1}',
    "5",
    "null",
    '"m"',
    '["m"]',
    "[[]]",
    '[{"name": 5, "state": "READY"}]',
    "[",
)


@pytest.mark.parametrize("body", INDEXES)
def test_an_index_of_models_may_have_any_form(body: str) -> None:
    pages = {"index": say(body.encode()), "live": say(b"{}"), "/m": say(b'{"versions": ["1"]}')}
    with answering(by_path(**pages)) as address:
        one = Endpoint("triton", f"http://{address}", model="m")
        [result] = suite.run(one, lambda _: None, [check for check in POSITIVE if check.id == "P3"])
        assert result.outcome == "failed", result
        url = f"triton://{address}?grpc=off&metrics=off"
        if body != "[[]]":
            with pytest.raises(BadInput, match="something else than the models"):
                discovery.identified(endpoint.from_url(url), url)


@pytest.mark.parametrize("name", ["\ud800", "a\r\nX: y", "\x1b[2J", "\u202e", "", 5, "x" * 2000])
def test_a_name_that_is_none_is_not_asked_for(name: object) -> None:
    rows = json.dumps([{"name": name, "state": "READY"}]).encode()
    models = json.dumps({"data": [{"id": name}]}).encode()
    with answering(by_path(index=say(rows), models=say(models))) as address:
        url = f"triton://{address}?grpc=off&metrics=off"
        with pytest.raises(BadInput, match="something else than the models"):
            discovery.identified(endpoint.from_url(url), url)
        with pytest.raises(NotReady, match=r"names no model|another form"):
            system_under_test.reported(endpoint.from_url(f"http://{address}"))


def test_a_model_of_odd_letters_is_named_in_paths_as_urls_have_it() -> None:
    seen: list[bytes] = []

    def answer(connection: Any, question: bytes) -> None:
        seen.append(question.split(b" ", 2)[1])
        say(b"{}")(connection, question)

    with answering(answer) as address:
        url = f"triton://{address}?grpc=off&metrics=off&model=a%2F..%0d%0a%20%E6%B0%B4"
        one = endpoint.from_url(url)
        suite.run(one, lambda _: None, [check for check in POSITIVE if check.id == "P2"])
        measured(one, "generate_stream")
    place = b"/v2/models/a%2F..%0D%0A%20%E6%B0%B4"
    assert {place + b"/config", place + b"/ready", place, place + b"/generate_stream"} <= set(seen)


@pytest.mark.parametrize("positions", [0, -5, 10**12, 1.5, True, "9", [9]])
def test_a_length_that_no_model_has_is_not_tried(positions: object) -> None:
    """A prompt of so many tokens would fill the memory of whoever makes it."""
    models = json.dumps({"data": [{"id": "m", "max_model_len": positions}]}).encode()
    with answering(by_path(models=say(models))) as address:
        url = f"http://{address}"
        assert discovery.identified(endpoint.from_url(url), url).positions is None


def ready_at(address: str, url: str) -> bool:
    """What `up` finds out of a server there, before it has started."""
    path = "/v2/health/ready" if url.startswith("triton") else "/health"
    environment = {"SERVE_HOST": "127.0.0.1", "SERVE_ID": "s"}
    one = Target(
        name="t",
        folder=Path(),
        argv=(),
        ports={"http": int(address.rpartition(":")[2]), "grpc": 1},
        environment=environment,
        ready_port="http",
        ready_path=path,
        start_timeout_s=1,
        stop_timeout_s=1,
        model_name="m",
        restricted_apis=(),
        release="1.2.1",
        engine="tensorrt_llm",
    )
    return serving.is_ready(one)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_server_that_starts_is_ready_or_not(seed: int) -> None:
    with hostile_server.http(seed) as address:
        for url in ("triton", "http"):
            assert ready_at(address, url) in (True, False)


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_probe_of_a_server_without_an_end_is_over_in_time(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(serving, "PROBE_TIMEOUT_S", 0.3)
    with answering(ENDLESS[kind]) as address:
        begun_s = time.monotonic()
        assert not ready_at(address, "triton")
        assert time.monotonic() - begun_s < 20
