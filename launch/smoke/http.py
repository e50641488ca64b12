"""HTTP as the checks need it: JSON documents and event streams, judged by their body."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Mapping
from typing import Any

import httpx

from .client import Fault, Refused


def session(
    url: str, timeout_s: float, headers: Mapping[str, str] | None = None
) -> httpx.AsyncClient:
    """A client that goes straight to the server, whatever proxy the environment names.

    No connection is kept: Triton 2.51 waits for open ones when it stops, until its exit timeout.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(
        base_url=url,
        timeout=timeout_s,
        trust_env=False,
        headers=headers,
        limits=limits,
        verify=url.startswith("https:"),  # no certificates are loaded where none is shown
    )


async def answer(request: Awaitable[httpx.Response]) -> httpx.Response:
    try:
        return await request
    except httpx.TransportError as fault:
        raise Fault(f"no answer: {type(fault).__name__}: {fault}") from fault


async def expect_ok(http: httpx.AsyncClient, path: str) -> str:
    status = (await answer(http.get(path))).status_code
    if status != httpx.codes.OK:
        raise Fault(f"GET {path} gives {status}, 200 expected")
    return path


async def json_of(http: httpx.AsyncClient, path: str) -> dict[str, Any]:
    response = await answer(http.get(path))
    return document(response.status_code, response.text)


async def asked(http: httpx.AsyncClient, method: str, path: str, **content: Any) -> str:
    """The body of a good answer, whatever it holds. Raises `Refused` for an error."""
    response = await answer(http.request(method, path, **content))
    if response.status_code == httpx.codes.OK and not response.text.startswith("{"):
        return response.text
    return json.dumps(document(response.status_code, response.text))


async def events(
    http: httpx.AsyncClient,
    path: str,
    body: Mapping[str, Any],
    timeout_s: float | None = None,
) -> AsyncGenerator[str, None]:
    """The data of every event. Leaving early closes the connection."""
    timeout = httpx.USE_CLIENT_DEFAULT if timeout_s is None else httpx.Timeout(timeout_s)
    try:
        async with http.stream("POST", path, json=body, timeout=timeout) as response:
            if response.status_code != httpx.codes.OK:
                text = (await response.aread()).decode("utf-8", errors="replace")
                document(response.status_code, text.removeprefix("data:").strip())
            async for line in response.aiter_lines():
                if data := line.removeprefix("data:").strip():
                    yield data
    except httpx.TransportError as fault:
        raise Fault(f"the stream broke: {type(fault).__name__}: {fault}") from fault


def document(status: int, text: str) -> dict[str, Any]:
    """A JSON object that is no error.

    Raises `Refused` for an error, which may come with status 200 and with or without a wrapper.
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        if status == httpx.codes.OK:
            raise Fault(f"no JSON object: {text[:80]!r}")
        raise Refused(f"{status}: {text[:200]}")
    if status != httpx.codes.OK or "error" in found or found.get("object") == "error":
        error = found.get("error", found)
        message = error.get("message", error) if isinstance(error, dict) else error
        raise Refused(f"{status}: {message}")
    return found
