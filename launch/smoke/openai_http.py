"""The OpenAI transport: the completions endpoint of trtllm-serve."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import httpx

from .client import Ask, Fault, Part
from .endpoint import Endpoint
from .http import answer, document, events, expect_ok, json_of, session

DONE = "[DONE]"


class OpenAIClient:
    """Greedy means temperature 0 here, as every OpenAI client has it."""

    transport = "http"
    streams = True

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._http = session(endpoint.url, timeout_s)
        self._model: str | None = None

    async def ready(self) -> None:
        await expect_ok(self._http, "/health")
        await self._served_model()

    async def metadata(self) -> Mapping[str, Any]:
        raise NotImplementedError

    async def config(self) -> Mapping[str, Any]:
        raise NotImplementedError

    async def generate(self, ask: Ask) -> Part:
        response = await answer(self._http.post("/v1/completions", json=await self._body(ask)))
        return _part(document(response.status_code, response.text))

    async def stream(self, ask: Ask) -> AsyncGenerator[Part, None]:
        body = {**await self._body(ask), "stream": True}
        done = False
        async with aclosing(events(self._http, "/v1/completions", body)) as lines:
            async for data in lines:
                if done:
                    raise Fault(f"something follows {DONE}: {data[:80]}")
                if data == DONE:
                    done = True
                else:
                    yield _part(document(httpx.codes.OK, data))
        if not done:
            raise Fault(f"the stream ends without {DONE}")

    async def close(self) -> None:
        await self._http.aclose()

    async def _served_model(self) -> str:
        if self._model is None:
            models = await json_of(self._http, "/v1/models")
            try:
                self._model = str(models["data"][0]["id"])
            except (KeyError, IndexError, TypeError):
                raise Fault("GET /v1/models names no model") from None
        return self._model

    async def _body(self, ask: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": ask.model or await self._served_model(),
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
        }
        if ask.prompt is not None:
            body["prompt"] = ask.prompt
        if ask.stop:
            body["stop"] = list(ask.stop)
        return body


def _part(chunk: Mapping[str, Any]) -> Part:
    """The first choice; the one with a finish reason is the final one."""
    if not chunk.get("choices") and "usage" in chunk:
        return Part("", None, final=False)
    try:
        choice = chunk["choices"][0]
        reason = choice.get("finish_reason")
        return Part(choice["text"] or "", reason, final=reason is not None)
    except (KeyError, IndexError, TypeError, AttributeError):
        raise Fault(f"no completion: {str(chunk)[:120]}") from None
