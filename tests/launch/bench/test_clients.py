"""Every client says of a request what the server did, whatever the server is."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reference_server.log import LogEntry
from benchmarks.reference_server.process import ReferenceServer
from benchmarks.reference_server.responses import INPUT_TOKENS, TOKEN, script
from benchmarks.reference_server.schedule import HEADER, MS, Schedule
from builder.errors import BadInput, NotReady
from launch.access import Access
from launch.bench.clients import APIS, Api, connect, connection, offered
from launch.bench.clients.http1 import EventPattern
from launch.bench.request import LoadRequest, RequestRecord
from launch.endpoint import Endpoint, from_url
from tests.launch.bench.conftest import Reference
from tests.model_repository.conftest import Served

Servers = Callable[[Api], ReferenceServer]
Run = Callable[[Coroutine[Any, Any, None]], None]
COUNTED = {"openai_chat": "usage", "openai_completions": "usage"}


@pytest.fixture(params=["loop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """The loop of the load, and the usual one, which TLS needs."""
    runs: dict[str, Run] = {"loop": connection.run, "asyncio": asyncio.run}
    return runs[request.param]


def ask_all(
    endpoint: Endpoint, api: Api, requests: list[LoadRequest], run: Run = connection.run
) -> list[RequestRecord]:
    """Side by side, in the order of the requests."""
    records: list[RequestRecord] = []

    async def send() -> None:
        client = connect(endpoint, api)
        asked = (client.send(replace(one, index=i)) for i, one in enumerate(requests))
        records.extend(await asyncio.gather(*asked))

    run(send())
    return records


@pytest.mark.parametrize("api", APIS)
def test_times_begin_when_the_connection_is_made(
    reference_servers: Servers, api: Api, run: Run
) -> None:
    """On both ways to the server: a connection that takes long is no time to first token."""
    server, connected_ns, records = reference_servers(api), list[int](), list[RequestRecord]()

    async def send() -> None:
        loop = asyncio.get_running_loop()
        connect_socket = loop.sock_connect

        async def slowly(stream: socket.socket, address: Any) -> None:
            await asyncio.sleep(0.05)
            await connect_socket(stream, address)
            connected_ns.append(time.monotonic_ns())

        loop.sock_connect = slowly  # type: ignore[method-assign, assignment]
        ask = LoadRequest("Hi", 1, headers={HEADER: "id=0"})
        records.append(await connect(server.endpoint, api).send(ask))

    run(send())
    server.log(1)
    assert records[0].ok
    assert records[0].sent_ns >= connected_ns[-1]


def test_a_process_that_waits_between_two_clocks_reads_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead_ns, read, waits = connection.read_clocks()[1], time.time_ns, iter([0.02])

    def slowly() -> int:
        if wait_s := next(waits, None):  # sleeping for 0 s would give a busy processor away
            time.sleep(wait_s)
        return read()

    monkeypatch.setattr(time, "time_ns", slowly)
    assert abs(connection.read_clocks()[1] - ahead_ns) < 10 * MS


# How far the kernel's stamps of what arrives may be from the clock that stamps what is sent.
CLOCKS_NS = 100_000


def ask_reference(
    server: ReferenceServer, ask: LoadRequest, run: Run = connection.run
) -> tuple[RequestRecord, LogEntry]:
    ask = dataclasses.replace(ask, headers={HEADER: "id=0"})
    [record] = ask_all(server.endpoint, server.api, [ask], run)
    return record, server.log(1)[0]


@pytest.mark.parametrize("api", APIS)
def test_a_record_says_what_the_server_did(reference_servers: Servers, api: Api, run: Run) -> None:
    record, entry = ask_reference(
        reference_servers(api), LoadRequest("Hi", 12, ignore_eos=True, keep_text=True), run
    )
    assert record.failure is None
    assert (record.output_tokens, record.requested_tokens) == (12, 12)
    assert record.count_source == COUNTED.get(api, "final")
    assert record.message_tokens == (1,) * 12
    assert record.prompt_tokens == INPUT_TOKENS
    assert (record.finish_reason, record.text) == ("length", TOKEN * 12)
    assert entry.first_ns is not None
    assert entry.last_ns is not None
    assert record.first_token_ns is not None
    assert record.last_token_ns is not None
    assert record.sent_ns < entry.arrived_ns + CLOCKS_NS
    assert entry.first_ns < record.first_token_ns + CLOCKS_NS
    assert entry.last_ns < record.last_token_ns + CLOCKS_NS
    assert record.first_token_ns < record.last_token_ns <= record.ended_ns


def test_a_prompt_may_be_longer_than_a_socket_holds(reference_servers: Servers, run: Run) -> None:
    record, _ = ask_reference(
        reference_servers("openai_completions"), LoadRequest("long " * 2_000_000, 4), run
    )
    assert record.failure is None
    assert record.output_tokens == 4


@pytest.mark.parametrize("api", APIS)
def test_no_server_is_told_as_refused(api: Api) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    kind = "trtllm_serve" if api.startswith("openai") else "triton"
    endpoint = Endpoint(kind, f"http://{address}", grpc=address, model="m")

    async def prepare() -> None:
        await connect(endpoint, api).prepare()

    if kind == "triton":
        with pytest.raises(NotReady, match=address):
            connection.run(prepare())
    else:
        [record] = ask_all(endpoint, api, [LoadRequest("Hi", timeout_s=5)])
        assert record.failure is not None
        assert (record.failure.kind, record.failure.retryable) == ("refused", True)
        assert record.failure.message == "Connection refused"


def test_an_endpoint_has_apis_of_its_kind_only() -> None:
    triton = from_url("triton://127.0.0.1?http=off&grpc=8001")
    assert offered(triton) == ("grpc",)
    with pytest.raises(BadInput, match="known: grpc"):
        connect(triton, "generate_stream")
    with pytest.raises(BadInput, match="known: openai_chat, openai_completions"):
        connect(from_url("http://127.0.0.1:1"), "grpc")


@pytest.mark.parametrize("api", ["openai_chat", "generate_stream", "grpc"])
def test_a_client_that_is_busy_still_knows_when_a_token_came(
    reference_servers: Servers, api: Api
) -> None:
    server, records = reference_servers(api), list[RequestRecord]()
    entries, sent_ns = dict[int, LogEntry](), list[int]()

    async def send() -> None:
        client = connect(server.endpoint, api)
        await client.prepare()
        loop, sent = asyncio.get_running_loop(), asyncio.Event()
        send_all = loop.sock_sendall

        async def tell(stream: socket.socket, data: Any) -> None:
            await send_all(stream, data)
            sent.set()

        loop.sock_sendall = tell  # type: ignore[method-assign, assignment]
        asked = asyncio.create_task(client.send(LoadRequest("Hi", 1, headers={HEADER: "id=0"})))
        await sent.wait()
        entries.update(server.log(1))  # busy until the server has sent it all
        sent_ns.append(time.monotonic_ns())
        time.sleep(0.05)
        records.append(await asked)

    connection.run(send())
    assert records[0].first_token_ns is not None
    assert entries[0].first_ns is not None
    assert entries[0].first_ns <= records[0].first_token_ns + CLOCKS_NS
    assert records[0].first_token_ns < sent_ns[0] + CLOCKS_NS


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"a":"x","content":"two words"}', "two words"),
        (b'{"a":"x","content":""}', ""),
        ('{"a":"x","content":"\u00e9"}'.encode(), "\u00e9"),
        (b'{"a":"x","content":"a","b":"c"}', None),
        (b'{"a":"y","content":"b"}', None),
        (b'{"a":"x","content":"\\n"}', None),
        (b'{"a":"x","content":"\xff"}', None),
        (b'{"a":"x","content":"}', None),
    ],
)
def test_an_event_that_differs_in_its_text_alone_needs_no_json(
    data: bytes, text: str | None
) -> None:
    pattern = EventPattern()
    assert pattern.text(data) is None
    pattern.learn(b'{"a":"x","content":"one"}', "one")
    assert pattern.text(data) == text


@pytest.mark.parametrize("data", [b'{"a":"one","content":"one"}', b'{"content":"\\u006fne"}'])
def test_where_a_text_stands_must_be_certain(data: bytes) -> None:
    pattern = EventPattern()
    pattern.learn(data, "one")
    assert pattern.text(data) is None


def test_a_chat_takes_no_token_ids(reference_servers: Servers) -> None:
    with pytest.raises(BadInput, match="use openai_completions"):
        ask_all(reference_servers("openai_chat").endpoint, "openai_chat", [LoadRequest((1, 2))])


def test_a_request_that_is_given_up_closes_its_connection(run: Run) -> None:
    closed: list[bool] = []

    async def give_up() -> None:
        begun = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            begun.set()
            while await reader.read(100):
                pass
            closed.append(True)
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = connect(Endpoint("trtllm_serve", url, model="m"), "openai_chat")
        asked = asyncio.create_task(client.send(LoadRequest("Hi")))
        await begun.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        server.close()
        deadline = time.monotonic() + 120
        while not closed and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    run(give_up())
    assert closed == [True]


def test_the_key_and_the_headers_of_an_ask_are_sent() -> None:
    heads: list[bytes] = []

    async def send() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base"
        endpoint = Endpoint("trtllm_serve", url, model="m", access=Access(key="secret"))
        record = await connect(endpoint, "openai_chat").send(LoadRequest("Hi", headers={"a": "b"}))
        assert record.failure is not None
        assert (record.failure.kind, record.failure.message) == ("http", "401: no")
        assert record.status == 401
        server.close()

    connection.run(send())
    assert heads[0].startswith(b"POST /base/v1/chat/completions HTTP/1.1\r\n")
    assert b"\r\napi-key: secret\r\n" in heads[0]
    assert b"\r\na: b\r\n" in heads[0]


def test_a_server_over_tls_is_measured(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject)
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    steps = script(Schedule(tokens=5), "openai_chat").steps
    records: list[RequestRecord] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.writelines(step.data for step in steps)
        writer.close()

    async def send() -> None:
        server = await asyncio.start_server(answer, "localhost", 0, ssl=tls)
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        for root in (certificate.read_bytes(), None):
            endpoint = Endpoint("trtllm_serve", url, model="m", access=Access(root=root))
            records.append(await connect(endpoint, "openai_chat").send(LoadRequest("Hi", 5)))
        server.close()

    connection.run(send())
    trusted, unknown = records
    assert (trusted.failure, trusted.output_tokens) == (None, 5)
    assert unknown.failure is not None
    assert unknown.failure.kind == "refused"
    assert "certificate" in unknown.failure.message.lower()


def triton(served: Served) -> Endpoint:
    return Endpoint(
        "triton", served.client.http_url, grpc=served.client.grpc_url, model="tensorrt_llm"
    )


@pytest.mark.parametrize("api", ["grpc", "generate_stream"])
def test_triton_counts_tokens_of_every_message(served: Served, api: Api) -> None:
    prompt = "tokens=7 per_step=3 step_ms=30"
    [record] = ask_all(triton(served), api, [LoadRequest(prompt, 20, keep_text=True)])
    assert record.failure is None
    assert (record.output_tokens, record.count_source) == (7, "final")
    assert record.message_tokens == (3, 3, 1)
    assert record.prompt_tokens == 8
    assert record.text == "0:0 0:1 0:2 0:3 0:4 0:5 0:6"
    assert record.finish_reason == "stop"
    assert record.server["total_draft_tokens"] >= record.server["total_accepted_draft_tokens"]


@pytest.mark.parametrize("api", ["grpc", "generate_stream"])
def test_triton_may_end_before_the_tokens_that_are_due(served: Served, api: Api) -> None:
    [record] = ask_all(triton(served), api, [LoadRequest("tokens=5", 9, ignore_eos=True)])
    assert record.failure is not None
    assert record.failure.kind == "wrong_count"


@pytest.mark.parametrize(("api", "kind"), [("grpc", "in_stream"), ("generate_stream", "in_stream")])
def test_an_error_in_a_stream_of_triton_is_told(served: Served, api: Api, kind: str) -> None:
    prompt = "tokens=20 fail=overheated fail_at=3 step_ms=20"
    [record] = ask_all(triton(served), api, [LoadRequest(prompt, 30)])
    assert record.failure is not None
    assert record.failure.kind == kind
    assert "overheated" in record.failure.message
    assert record.first_token_ns is not None


@pytest.mark.parametrize("api", ["openai_chat", "openai_completions"])
def test_trtllm_serve_is_measured(reference: Reference, api: Api) -> None:
    request = LoadRequest("one two three", 8, ignore_eos=True, temperature=0.0)
    [record] = ask_all(from_url(reference.url), api, [request])
    assert record.failure is None
    assert (record.output_tokens, record.count_source) == (8, "usage")
    assert record.prompt_tokens


def test_trtllm_serve_takes_token_ids(reference: Reference) -> None:
    [record] = ask_all(from_url(reference.url), "openai_completions", [LoadRequest((5, 6, 7), 4)])
    assert record.failure is None
    assert record.prompt_tokens == 3
