"""Triton's HTTP transport: the generate extension, metadata and health."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import httpx

from .client import Ask, Fault, Part
from .endpoint import Endpoint
from .http import answer, document, events, expect_ok, json_of, session
from .triton_inputs import finish_reason, inputs


class TritonHttpClient:
    transport = "http"

    def __init__(self, endpoint: Endpoint, timeout_s: float, streams: bool) -> None:
        self.streams = streams
        self._http = session(endpoint.url, timeout_s)
        self._model = endpoint.model or ""

    async def ready(self) -> None:
        for path in ("/v2/health/live", "/v2/health/ready", f"/v2/models/{self._model}/ready"):
            await expect_ok(self._http, path)

    async def metadata(self) -> Mapping[str, Any]:
        return await json_of(self._http, f"/v2/models/{self._model}")

    async def config(self) -> Mapping[str, Any]:
        return await json_of(self._http, f"/v2/models/{self._model}/config")

    async def generate(self, ask: Ask) -> Part:
        path = self._path(ask, "generate")
        response = await answer(self._http.post(path, json=_body(ask, streaming=False)))
        return _part(document(response.status_code, response.text))

    async def stream(self, ask: Ask) -> AsyncGenerator[Part, None]:
        """The extension marks no final event; the one with a finish reason is taken for it."""
        path = self._path(ask, "generate_stream")
        async with aclosing(events(self._http, path, _body(ask, streaming=True))) as lines:
            async for data in lines:
                yield _part(document(httpx.codes.OK, data))

    async def close(self) -> None:
        await self._http.aclose()

    def _path(self, ask: Ask, verb: str) -> str:
        return f"/v2/models/{ask.model or self._model}/{verb}"


def _body(ask: Ask, streaming: bool) -> dict[str, Any]:
    """Inputs of one element as scalars, which is how the extension writes them."""
    elements = inputs(ask, streaming)
    return {name: row[0] if len(row) == 1 else row for name, row in elements.items()}


def _part(found: Mapping[str, Any]) -> Part:
    text = found.get("text_output")
    if not isinstance(text, str):
        raise Fault(f"text_output is {text!r}, a string is expected")
    reason = finish_reason(found.get("finish_reason"))
    return Part(text, reason, final=reason is not None)
