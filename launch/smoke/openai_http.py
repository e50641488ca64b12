"""The OpenAI transport: the completion endpoints of trtllm-serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import httpx

from .client import Ask, Fault, NotOffered, Part, Refused
from .endpoint import Endpoint
from .http import answer, asked, document, events, expect_ok, json_of, session

DONE = "[DONE]"
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
EMPTY = Part("", None, final=False)
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


class OpenAIClient:
    """Greedy means temperature 0 here, as every OpenAI client has it."""

    transport = "http"
    streams = True

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._http = session(endpoint.url or "", timeout_s)
        self._model = endpoint.model

    async def ready(self) -> str:
        await expect_ok(self._http, "/health")
        if self._model is not None:
            return "/health gives 200"
        await self._served_model()
        return "/health gives 200, /v1/models names a model"

    async def served(self) -> str:
        model = await self._served_model()
        try:
            version = (await json_of(self._http, "/version")).get("version")
        except Refused:
            version = "without a version"
        return f"trtllm-serve {version}, model {model}"

    async def metadata(self) -> Mapping[str, Any]:
        raise NotOffered("trtllm-serve tells no tensors")

    async def config(self) -> Mapping[str, Any]:
        raise NotOffered("trtllm-serve tells no model configuration")

    async def generate(self, ask: Ask) -> Part:
        response = await answer(self._http.post(_path(ask), json=await self._body(ask)))
        return _part(document(response.status_code, response.text))

    async def stream(self, ask: Ask, timeout_s: float | None = None) -> AsyncGenerator[Part, None]:
        body = {**await self._body(ask), "stream": True}
        done = False
        try:
            async with (
                asyncio.timeout(timeout_s),
                aclosing(events(self._http, _path(ask), body)) as lines,
            ):
                async for data in lines:
                    if done:
                        raise Fault(f"something follows {DONE}: {data[:80]}")
                    if data == DONE:
                        done = True
                    else:
                        yield _part(document(httpx.codes.OK, data))
        except TimeoutError:
            raise Refused("the client's deadline is over") from None
        if not done:
            raise Fault(f"the stream ends without {DONE}")

    async def misuse(self, how: str, ask: Ask) -> str:
        good = await self._body(ask)
        if how in ("malformed_json", "empty_body"):
            content = b'{"prompt": "a"' if how == "malformed_json" else b""
            headers = {"Content-Type": "application/json"}
            return await asked(self._http, "POST", COMPLETIONS, content=content, headers=headers)
        wrong: dict[str, dict[str, Any]] = {
            "wrong_shape": {"max_tokens": [1, 2]},
            "unknown_input": {"no_such_field": 1},
            "stream_options": {"stream_options": {"include_usage": True}, "stream": False},
        }
        if how in wrong:
            return await asked(self._http, "POST", COMPLETIONS, json={**good, **wrong[how]})
        if how in ("unknown_url", "wrong_method"):
            path = "/no/such/thing" if how == "unknown_url" else COMPLETIONS
            return await asked(self._http, "GET", path)
        if how == "image_file":
            picture = {"type": "image_url", "image_url": {"url": "file:///etc/hostname"}}
            message = {"role": "user", "content": [{"type": "text", "text": "What?"}, picture]}
            body = {"model": good["model"], "max_tokens": 4, "messages": [message]}
            return await asked(self._http, "POST", CHAT, json=body)
        raise NotOffered(f"trtllm-serve knows no {how.replace('_', ' ')}")

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
        """`top_k` is left out: it is an extension, and temperature 0 is greedy without it."""
        if ask.metrics:
            raise NotOffered("trtllm-serve tells no metrics in its answers")
        values = {
            "prompt": ask.prompt if ask.messages is None else None,
            "messages": ask.messages,
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "top_p": ask.top_p,
            "seed": ask.seed,
            "stop": list(ask.stop) or None,
            "ignore_eos": ask.ignore_eos or None,
            "logprobs": 1 if ask.logprobs else None,
            "top_k": ask.top_k if ask.top_k != 1 else None,
            "response_format": ask.json_schema and {"type": "json", "schema": ask.json_schema},
        }
        body = {name: value for name, value in values.items() if value is not None}
        return {"model": ask.model or await self._served_model(), **body, **ask.parameters}


def _path(ask: Ask) -> str:
    return COMPLETIONS if ask.messages is None else CHAT


def _part(chunk: Mapping[str, Any]) -> Part:
    """The first choice; the one with a finish reason is the final one."""
    usage = chunk.get("usage") or {}
    counts: dict[str, Any] = {name: usage.get(name) for name in COUNTS}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    measured = {} if cached is None else {"cached_tokens": float(cached)}
    if not chunk.get("choices") and usage:
        return replace(EMPTY, measured=measured, **counts)
    try:
        choice = chunk["choices"][0]
        reason = choice.get("finish_reason")
        text = choice["text"] if "text" in choice else _said(choice)
        steps = choice.get("avg_decoded_tokens_per_iter")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise Fault(f"no completion: {str(chunk)[:120]}") from None
    scored = (choice.get("logprobs") or {}).get("token_logprobs") or ()
    if steps is not None:
        measured["tokens_per_step"] = float(steps)
    return replace(
        EMPTY,
        text=text or "",
        finish_reason=reason,
        final=reason is not None,
        logprobs=tuple(float(value) for value in scored if value is not None),
        measured=measured,
        **counts,
    )


def _said(choice: Mapping[str, Any]) -> str | None:
    said: str | None = (choice.get("message") or choice["delta"]).get("content")
    return said
