"""Clients that misuse a server: what each can cost is bounded, and others are served meanwhile."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.model_repository.conftest import Serve, Served

MOST, MOST_UNARY_HTTP, MOST_RUNNING, MOST_BYTES = 16, 12, 4, 100_000
ABUSED = f"""
triton_config:
  max_batch_size: 0
  decoupled: true
  cancellation_check_period_ms: 50
  max_requests: {MOST}
  max_unary_http_requests: {MOST_UNARY_HTTP}
  max_unary_http_running: {MOST_RUNNING}
  max_prompt_bytes: {MOST_BYTES}
  max_tokens_per_request: 100000
  max_seconds_per_request: 6
model: some/checkpoint
"""
FORWARDED = ["--grpc-header-forward-pattern", "^user-agent$"]
# Without an abort it would take a quarter of an hour.
ENDLESS = "tokens=100000 per_step=1 step_ms=10 name={}"
SERVED_S = 5.0  # below the limit of a request, which would free its place too
HANG_S = 30.0
MB = 2**20


@pytest.fixture(scope="module")
def abused(start: Serve) -> Served:
    return start(ABUSED, options=FORWARDED, unary=True)


@pytest.fixture(autouse=True)
def others_are_served(abused: Served) -> Iterator[None]:
    """Streams of both protocols during and after the abuse, and nothing left of it."""
    yield
    assert_served(abused)
    abused.wait_for_metrics({"requests_running": 0, "requests_waiting": 0}, 15)
    assert abused.server.exit_status(0) is None


def assert_served(served: Served) -> None:
    """Soon: a client may be refused until the places of those that left are free."""
    begun_s = time.monotonic()
    while not (text := _streamed(served)):
        assert time.monotonic() - begun_s < SERVED_S
    assert text == "0:0 0:1"
    answer = served.client.generate_stream(text_input="tokens=2", streaming=True)
    assert "0:1" in answer.text
    assert time.monotonic() - begun_s < SERVED_S


def _streamed(served: Served) -> str:
    parts = list(served.client.stream("tokens=2", streaming=True))
    return "".join(part.text[0] for part in parts if not part.error)


def connect(served: Served) -> socket.socket:
    address = urlsplit(served.client.http_url)
    return socket.create_connection((address.hostname, address.port), timeout=20)


def http_request(verb: str, body: bytes, length: int | None = None) -> bytes:
    head = f"POST /v2/models/tensorrt_llm/{verb} HTTP/1.1\r\nHost: here\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


def abandon(served: Served, verb: str, prompt: str, reset: bool, **inputs: Any) -> None:
    """Send a request, wait until the engine has it or it is refused, and leave."""
    client = connect(served)
    if reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    body = {"text_input": prompt, "sampling_param_max_tokens": 100000, **inputs}
    client.sendall(http_request(verb, json.dumps(body).encode()))
    served.wait_for("submit", prompt)
    client.close()


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_stream_of_http_that_is_left_is_aborted(abused: Served, reset: bool) -> None:
    prompts = [ENDLESS.format(f"left-{reset}-{index}") for index in range(MOST)]
    with ThreadPoolExecutor(MOST) as pool:
        list(
            pool.map(
                lambda prompt: abandon(abused, "generate_stream", prompt, reset, streaming=True),
                prompts,
            )
        )
    for prompt in prompts:
        abused.wait_for("abort", prompt)


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
def test_requests_that_nobody_waits_for_leave_room_for_others(abused: Served, verb: str) -> None:
    """Not streamed over HTTP: Triton does not say that their clients left."""
    prompts = [ENDLESS.format(f"gone-{verb}-{index}") for index in range(MOST_RUNNING)]
    for prompt in prompts:
        abandon(abused, verb, prompt, reset=True)
    waiting = [connect(abused) for _ in range(MOST_UNARY_HTTP - MOST_RUNNING)]
    for index, client in enumerate(waiting):
        body = {"text_input": ENDLESS.format(f"waits-{verb}-{index}"), "max_tokens": 100000}
        client.sendall(http_request(verb, json.dumps(body).encode()))
    abused.wait_for_metrics({"requests_running": MOST_UNARY_HTTP})
    refusal = abused.client.post(verb, {"text_input": "tokens=1"})
    assert f"{MOST_UNARY_HTTP} requests over HTTP that are not streamed" in refusal.text
    assert "stream the answer, use gRPC, or retry later" in refusal.text
    assert_served(abused)
    assert not [e for e in abused.events("submit") if f"waits-{verb}" in e["prompt"]]
    for client in waiting:
        client.close()
    # They end by the time limit, as nothing else ends them.
    for prompt in prompts:
        abused.wait_for("abort", prompt)


def test_requests_of_grpc_are_not_held_for_requests_that_nobody_waits_for(abused: Served) -> None:
    with ThreadPoolExecutor(MOST) as pool:
        texts = pool.map(lambda _: abused.client.ask("tokens=3 step_ms=200")[0].text, range(MOST))
        assert list(texts) == [["0:0 0:1 0:2"]] * MOST


def too_long_by_http(served: Served) -> str:
    return served.client.generate(text_input=" word" * (50 * MB // 5)).text


def too_long_by_grpc(served: Served) -> str:
    return served.client.refusal(" word" * (50 * MB // 5))


def too_long_as_a_parameter(served: Served) -> str:
    return served.client.refusal("tokens=1", parameters={"stop": "x" * 50 * MB})


def too_many_tokens(served: Served) -> str:
    return served.client.refusal(None, input_ids=[1] * (MOST_BYTES // 4 + 1))


@pytest.mark.parametrize(
    "send",
    [
        too_long_by_http,
        too_long_by_grpc,
        too_long_as_a_parameter,
        too_many_tokens,
    ],
)
def test_what_is_too_long_is_refused_before_any_work(
    abused: Served, send: Callable[[Served], str]
) -> None:
    before_mib, submitted = abused.memory_mib, len(abused.events("submit"))
    begun_s = time.monotonic()
    with closing(abused.client.stream("tokens=400 step_ms=10", streaming=True)) as beside:
        next(beside)
        refusal = send(abused)
        assert f"bytes; this server takes at most {MOST_BYTES} in a request" in refusal
        assert next(beside).text
    assert time.monotonic() - begun_s < HANG_S
    assert abused.memory_mib - before_mib < 500
    assert len(abused.events("submit")) == submitted + 1


def test_the_longest_prompt_that_is_allowed_is_taken(abused: Served) -> None:
    prompt = "tokens=1 "
    prompt += "x" * (MOST_BYTES - len(prompt))
    assert abused.client.ask(prompt)
    assert "100001 bytes" in abused.client.refusal(prompt + "x")


def test_a_prompt_that_takes_long_to_read_holds_up_no_other_request(abused: Served) -> None:
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(abused.client.ask, "tokens=1 tokenize_ms=4000 name=slow")
        abused.wait_for_metrics({"requests_running": 1})
        refusal = abused.client.refusal("tokens=1", max_tokens=0)
        assert not slow.done()
        assert "max_tokens: is 0" in refusal
        assert slow.result()


def test_a_client_that_reads_nothing_holds_up_nobody(abused: Served) -> None:
    with closing(connect(abused)) as client:
        prompt = "tokens=100000 per_step=50 step_ms=5 name=deaf"
        body = {"text_input": prompt, "streaming": True, "max_tokens": 100000}
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(http_request("generate_stream", json.dumps(body).encode()))
        abused.wait_for("submit", prompt)
        for _ in range(5):
            assert_served(abused)


def test_a_body_that_never_comes_holds_up_nobody(abused: Served) -> None:
    with ExitStack() as stack:
        for _ in range(64):
            client = stack.enter_context(closing(connect(abused)))
            client.sendall(http_request("generate", b'{"text_input": "tok', 10_000))
        assert_served(abused)


def test_a_thousand_connections_that_say_nothing_hold_up_nobody(abused: Served) -> None:
    with ExitStack() as stack:
        for address in [abused.client.http_url, f"//{abused.client.grpc_url}"] * 500:
            place = (urlsplit(address).hostname, urlsplit(address).port)
            stack.enter_context(closing(socket.create_connection(place, timeout=20)))
        assert_served(abused)


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 99999999999999999999",
        "Content-Length: -1",
        "Content-Length: 2\r\nContent-Length: 200",
        "Content-Length: 2\r\nInference-Header-Content-Length: 999999999999",
        "Content-Length: 2\r\nContent-Encoding: gzip",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 2",
        "X: " + "a" * MB,
    ],
    ids=lambda head: head[:60],
)
def test_a_head_that_lies_is_refused_or_left(abused: Served, head: str) -> None:
    # One that is reset at once can be neither written to nor half closed.
    with closing(connect(abused)) as client, suppress(OSError):
        place = "POST /v2/models/tensorrt_llm/infer HTTP/1.1\r\nHost: here\r\n"
        client.sendall(f"{place}{head}\r\n\r\n{{}}".encode())
        client.shutdown(socket.SHUT_WR)
        assert b" 200 " not in client.recv(4096)


def test_a_head_that_drips_holds_up_nobody(abused: Served) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(connect(abused))) for _ in range(64)]
        for byte in b"POST /v2/mod":
            for client in clients:
                with suppress(ConnectionError):  # Triton may refuse such a client
                    client.send(bytes([byte]))
        assert_served(abused)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text_input"',
        b"{" * 100_000,
        b"[" * 100_000,
        b'{"text_input": "tokens=1", "a": ' + b"[" * 50_000,
        b'{"text_input": "\xff\xfe"}',
        b'{"text_input": "\\ud800"}',
        b'{"text_input": "tokens=1", "id": "\xff\xfe"}',
        b'{"text_input": "tokens=1", "\xff": 1}',
        json.dumps({"text_input": "tokens=1", "id": "i" * MB}).encode(),
        b'{"text_input": NaN}',
        b'{"text_input": "tokens=1", "temperature": 1e999}',
        b'{"text_input": "tokens=1", "max_tokens": 1e308}',
        b'{"text_input": "tokens=1", "parameters": [1]}',
        b'{"text_input": ' + json.dumps(["x"] * 100_000).encode() + b"}",
        b'{"messages": "' + b"[" * 50_000 + b'"}',
        json.dumps({"text_input": "tokens=1", "k" * MB: 1}).encode(),
        json.dumps({"text_input": "tokens=1", **{f"key{n}": n for n in range(20_000)}}).encode(),
    ],
    ids=lambda body: repr(body[:40]),
)
def test_a_hostile_body_is_refused(abused: Served, body: bytes) -> None:
    begun_s = time.monotonic()
    url = f"{abused.client.http_url}/v2/models/tensorrt_llm/generate"
    response = httpx.post(url, content=body, timeout=20, trust_env=False, verify=False)
    assert 400 <= response.status_code < 600
    assert "Traceback" not in response.text
    assert "Traceback" not in abused.log
    assert len(response.text) < 1000
    assert time.monotonic() - begun_s < HANG_S


def test_nobody_else_may_pass_requests_on(abused: Served) -> None:
    """The socket between the two models answers only to a child of the same server."""
    of_processes = Path("/proc/self/ns/pid").readlink()
    names = [
        f"\0trtllm_model/{of_processes}/{folder.name}/tensorrt_llm" for folder in abused.processes
    ]
    with socket.socket(socket.AF_UNIX) as stranger:
        assert any(stranger.connect_ex(name) == 0 for name in names)
        stranger.settimeout(5)
        assert stranger.recv(1) == b""


def test_clients_that_come_and_go_leave_nothing(abused: Served) -> None:
    def come_and_go(index: int) -> None:
        prompt = ENDLESS.format(f"brief-{index}")
        with closing(abused.client.stream(prompt, streaming=True, max_tokens=100000)) as stream:
            next(stream, None)

    threads = threading.active_count()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(come_and_go, range(64)))
    assert threading.active_count() <= threads + 1
