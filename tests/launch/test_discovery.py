"""A conversation with a server ends in time, whatever the server does and however slowly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from builder.errors import NotReady
from launch import discovery, endpoint
from launch.bounded_answer import TooLate, client
from launch.cli.main import main
from launch.endpoint import Endpoint
from launch.smoke import http, metrics, suite
from launch.smoke.client import CheckFailure
from tests.launch.scripted_server import ENDLESS, HEAD, answering, by_path, drip, say

LIMIT_S = 0.6
AT_MOST_S = 20.0  # on a busy machine; without a limit they last for ever


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_ANSWER_S", "QUESTION_S"):
        monkeypatch.setattr(discovery, name, LIMIT_S)


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    start_s = time.monotonic()
    yield
    assert time.monotonic() - start_s < AT_MOST_S


@pytest.mark.parametrize("verb", ["smoke", "bench"])
@pytest.mark.parametrize("kind", ENDLESS)
def test_a_server_that_never_says_anything_whole_ends_a_command_with_its_place(
    kind: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(ENDLESS[kind]) as address:
        assert main([verb, f"http://{address}"]) == 5
    what = f"http://{address}/health: takes connections, but gives no whole answer within 0.6 s"
    assert what in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["http", "triton"])
@pytest.mark.parametrize("kind", ENDLESS)
def test_what_a_bundle_names_must_answer_too(kind: str, scheme: str) -> None:
    with answering(ENDLESS[kind]) as address:
        named = endpoint.from_url(f"{scheme}://{address}")
        one = Endpoint(named.server, f"http://{address}", model="m")
        with pytest.raises(NotReady, match="gives no whole answer"):
            discovery.check_answers(one)


def test_a_mute_port_of_grpc_is_named() -> None:
    with answering(ENDLESS["mute"]) as address:
        port = address.partition(":")[2]
        url = f"triton://127.0.0.1?http=off&metrics=off&grpc={port}"
        with pytest.raises(NotReady, match=f"grpc://{address}: takes connections, but"):
            discovery.check_answers(endpoint.from_url(url))


@pytest.mark.parametrize("kind", ["a head in drips", "a body in drips"])
def test_a_server_that_never_lists_its_models_must_be_told_the_name(kind: str) -> None:
    with answering(by_path(models=ENDLESS[kind])) as address:
        url = f"http://{address}"
        with pytest.raises(NotReady, match=f"{url}/v1/models: takes connections, but"):
            discovery.identified(endpoint.from_url(url), url)
        named = f"{url}?model=m"
        assert discovery.identified(endpoint.from_url(named), named).model == "m"


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("is_stream", [False, True])
def test_an_answer_has_a_limit_in_all(kind: str, is_stream: bool) -> None:
    async def ask(url: str) -> None:
        async with client(url, LIMIT_S) as asked:
            if not is_stream:
                await asked.get("/x")
            async with asked.stream("POST", "/x") as response:
                async for _ in response.aiter_raw():
                    pass

    with (
        answering(ENDLESS[kind]) as address,
        pytest.raises(TooLate, match=r"no whole answer within 0\.6 s"),
    ):
        asyncio.run(ask(f"http://{address}"))


def test_metrics_and_versions_in_drips_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "TIMEOUT_S", LIMIT_S)
    with answering(ENDLESS["a body in drips"]) as address:
        one = Endpoint("trtllm_serve", f"http://{address}", model="m")
        assert metrics.engine_info(one)["version"] is None
        with pytest.raises(CheckFailure, match=r"no whole answer within 0\.6 s"):
            asyncio.run(metrics.read(one))


def test_a_configuration_in_drips_holds_up_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "QUESTION_S", LIMIT_S)
    with answering(ENDLESS["a body in drips"]) as address:
        one = endpoint.from_url(f"triton://{address}?grpc=off&metrics=off")
        assert suite.run(one, lambda _: None, []) == []


@pytest.mark.parametrize(
    "header",
    [
        *(b"Content-Type: text/plain; charset=" + name for name in (b"rot13", b"zlib", b"utf-16")),
        *(b"Content-Encoding: " + name for name in (b"gzip", b"deflate", b"br, gzip")),
        *(b"Location: http://[::1", b"Set-Cookie: a=b; Max-Age=\xff", b"X: \xe2\x80\xae"),
    ],
)
def test_headers_of_an_answer_change_nothing_of_it(header: bytes) -> None:
    text = '{"data": [{"id": "水"}]}'
    for status in (b"200", b"302"):
        head = b"HTTP/1.1 " + status + b" OK\r\nConnection: close\r\n" + header + b"\r\n"

        async def ask(url: str) -> tuple[str, list[str]]:
            async with client(url, 9) as asked:
                whole = (await http.receive(asked.get("/x"))).text
                async with asked.stream("GET", "/x") as response:
                    return whole, [line async for line in http._lines(response)]

        with answering(say(text.encode(), head)) as address:
            assert asyncio.run(ask(f"http://{address}")) == (text, [text])


def test_only_a_line_feed_ends_an_event() -> None:
    body = 'data: {"text": "a\u2028b\x85c"}\r\n\r\n: ping\n\ndata: [DONE]\n\n'

    async def ask(url: str) -> list[str]:
        async with client(url, 9) as asked:
            return [data async for data in http.events(asked, "/x", {}) if ":" not in data[:1]]

    with answering(say(body.encode())) as address:
        found = asyncio.run(ask(f"http://{address}"))
    assert found == ['{"text": "a\u2028b\x85c"}', "[DONE]"]


def test_an_answer_of_more_values_than_any_that_is_asked_for_is_not_read() -> None:
    async def ask(url: str) -> None:
        async with client(url, 60) as asked:
            await http.get_json(asked, "/x")

    many = say(b'{"a": [' + b"[]," * 600_000 + b"[]]}")
    with answering(many) as address, pytest.raises(CheckFailure, match="no JSON object"):
        asyncio.run(ask(f"http://{address}"))


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_answer_has_a_bound_of_length(is_stream: bool) -> None:
    async def ask(url: str) -> None:
        async with client(url, 60) as asked:
            if not is_stream:
                await http.get_json(asked, "/x")
            async for _ in http.events(asked, "/x", {}):
                pass

    endless = drip(HEAD + b"\r\n", b"[]," * 20_000, 0)
    with answering(endless) as address, pytest.raises(CheckFailure, match="more than 2,048 KiB"):
        asyncio.run(ask(f"http://{address}"))
