"""HTTP for the checks: JSON documents and event streams, whose errors are found in the body too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from typing import Any

import httpx

from ..answers import read_json
from ..bounded_answer import MAX_BYTES, STREAMED, TooLate
from ..bounded_answer import client as session
from .client import CheckFailure, RequestRejected

__all__ = ("call", "events", "expect_ok", "get_json", "parse_json", "receive", "session")

MOST_LETTERS = 300  # of what a library says of an answer


def _words(error: httpx.TransportError) -> str:
    """What is wrong; the library repeats a head that is none, which may be of any length."""
    return f"{type(error).__name__}: {error}"[:MOST_LETTERS]


async def receive(request: Awaitable[httpx.Response]) -> httpx.Response:
    try:
        return await request
    except TooLate as error:
        raise CheckFailure(str(error)) from error
    except httpx.TransportError as error:
        raise CheckFailure(f"no answer: {_words(error)}") from error


async def expect_ok(http: httpx.AsyncClient, path: str) -> str:
    status = (await receive(http.get(path))).status_code
    if status != httpx.codes.OK:
        raise CheckFailure(f"GET {path} gives {status}, 200 expected")
    return path


async def get_json(http: httpx.AsyncClient, path: str) -> dict[str, Any]:
    response = await receive(http.get(path))
    return parse_json(response.status_code, response.text)


async def call(http: httpx.AsyncClient, method: str, path: str, **content: Any) -> str:
    """The body of a successful response. Raises `RequestRejected` for an error."""
    response = await receive(http.request(method, path, **content))
    if response.status_code == httpx.codes.OK and not response.text.startswith("{"):
        return response.text
    return json.dumps(parse_json(response.status_code, response.text))


async def events(
    http: httpx.AsyncClient,
    path: str,
    body: Mapping[str, Any],
    timeout_s: float | None = None,
) -> AsyncGenerator[str, None]:
    """The data of every event. Leaving early closes the connection."""
    try:
        async with (
            asyncio.timeout(timeout_s),
            http.stream("POST", path, json=body, extensions=STREAMED) as response,
        ):
            if response.status_code != httpx.codes.OK:
                text = (await response.aread()).decode("utf-8", errors="replace")
                parse_json(response.status_code, text.removeprefix("data:").strip())
            async for line in _lines(response):
                if data := line.removeprefix("data:").strip():
                    yield data
    except TimeoutError:
        raise RequestRejected("the client's deadline is over") from None
    except httpx.TransportError as error:
        raise CheckFailure(f"the stream broke: {_words(error)}") from error


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Lines of an event stream, each as soon as it is whole; httpx also ends one at U+2028."""
    line = bytearray()
    async for part in response.aiter_raw():
        *ended, rest = part.split(b"\n")
        for end in ended:
            yield (line + end).decode("utf-8", errors="replace")
            line.clear()
        line += rest
        if len(line) > MAX_BYTES:
            raise CheckFailure(f"a line of more than {MAX_BYTES >> 20} MiB")
    yield line.decode("utf-8", errors="replace")


def parse_json(status: int, text: str) -> dict[str, Any]:
    """A JSON object that is not an error.

    Raises `RequestRejected` for an error, which may come with status 200 and without a wrapper.
    """
    try:
        found = read_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        if status == httpx.codes.OK:
            raise CheckFailure(f"no JSON object: {text[:80]!r}")
        raise RequestRejected(f"{status}: {text[:200]}")
    if status != httpx.codes.OK or "error" in found or found.get("object") == "error":
        error = found.get("error", found)
        message = error.get("message", error) if isinstance(error, dict) else error
        raise RequestRejected(f"{status}: {message}")
    return found
