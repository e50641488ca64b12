"""Triton's HTTP transport: the generate extension, metadata, health and what else it serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import httpx

from .client import Ask, Fault, NotOffered, Part, Refused
from .endpoint import Endpoint
from .http import answer, asked, document, events, expect_ok, json_of, session
from .triton_tensors import PUBLISHED, inputs, part

# How each API that may be restricted is asked for something harmless.
APIS = {
    "health": ("GET", "/v2/health/live"),
    "metadata": ("GET", "/v2"),
    "shared-memory": ("GET", "/v2/systemsharedmemory/status"),
    "model-config": ("GET", "/v2/models/{model}/config"),
    "model-repository": ("POST", "/v2/repository/index"),
    "statistics": ("GET", "/v2/models/stats"),
    "trace": ("GET", "/v2/trace/setting"),
    "logging": ("GET", "/v2/logging"),
}


class TritonHttpClient:
    transport = "http"

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self.streams = True
        url = endpoint.url or ""
        self._http = session(url, timeout_s, endpoint.access.http_headers)
        self._without_key = session(url, timeout_s)
        self._model = endpoint.model or ""
        self._declared: Mapping[str, str] | None = None

    async def ready(self) -> str:
        paths = ("/v2/health/live", "/v2/health/ready", f"/v2/models/{self._model}/ready")
        return f"{', '.join([await expect_ok(self._http, path) for path in paths])} give 200"

    async def served(self) -> str:
        server = await json_of(self._http, "/v2")
        versions = (await self.metadata()).get("versions", [])
        response = await answer(self._http.post("/v2/repository/index"))
        if not response.is_success:
            document(response.status_code, response.text)
        states = [row.get("state") for row in response.json() if row["name"] == self._model]
        if states != ["READY"]:
            raise Fault(f"the index gives {self._model} the states {states}, one READY expected")
        return f"Triton {server['version']}, {self._model} {', '.join(versions)} is READY"

    async def metadata(self) -> Mapping[str, Any]:
        return await json_of(self._http, f"/v2/models/{self._model}")

    async def config(self) -> Mapping[str, Any]:
        return await json_of(self._http, f"/v2/models/{self._model}/config")

    async def generate(self, ask: Ask) -> Part:
        path = self._path(ask, "generate")
        response = await answer(self._http.post(path, json=await self._body(ask, False)))
        return _part(document(response.status_code, response.text))

    async def stream(self, ask: Ask, timeout_s: float | None = None) -> AsyncGenerator[Part, None]:
        """The extension marks no final event; the one with a finish reason is taken for it."""
        path, body = self._path(ask, "generate_stream"), await self._body(ask, True)
        try:
            async with asyncio.timeout(timeout_s), aclosing(events(self._http, path, body)) as all_:
                async for data in all_:
                    yield _part(document(httpx.codes.OK, data))
        except TimeoutError:
            raise Refused("the client's deadline is over") from None

    async def misuse(self, how: str, ask: Ask) -> str:
        method, _, api = how.partition(" ")
        generate, good = self._path(ask, "generate"), await self._body(ask, False)
        match method:
            case "closed" if api in APIS:
                verb, path = APIS[api]
                return await asked(self._without_key, verb, path.format(model=self._model))
            case "load" | "unload":
                path = f"/v2/repository/models/{self._model}/{method}"
                return await asked(self._http, "POST", path, json={})
            case "malformed_json":
                return await asked(self._http, "POST", generate, content=b'{"text_input": "a"')
            case "empty_body":
                return await asked(self._http, "POST", generate, content=b"")
            case "wrong_shape":
                wrong = {**good, "sampling_param_max_tokens": [1, 2]}
                return await asked(self._http, "POST", generate, json=wrong)
            case "unknown_input":
                wrong = {**good, "no_such_input": 1}
                return await asked(self._http, "POST", generate, json=wrong)
            case "unary" if self.streams:
                tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["a"]}
                path = self._path(ask, "infer")
                return await asked(self._http, "POST", path, json={"inputs": [tensor]})
            case "many_responses" if self.streams:
                return await asked(self._http, "POST", generate, json={**good, "streaming": True})
            case "streaming" if not self.streams:
                return await asked(self._http, "POST", generate, json={**good, "streaming": True})
            case "unknown_url":
                return await asked(self._http, "GET", "/v2/no_such_thing")
            case "wrong_method":
                return await asked(self._http, "GET", generate)
        raise NotOffered(f"HTTP knows no {how.replace('_', ' ')}")

    async def close(self) -> None:
        await self._http.aclose()
        await self._without_key.aclose()

    def _path(self, ask: Ask, verb: str) -> str:
        return f"/v2/models/{ask.model or self._model}/{verb}"

    async def _body(self, ask: Ask, streaming: bool) -> dict[str, Any]:
        """Inputs of one element as scalars, which is how the extension writes them.

        What is no input of the model is taken for a parameter of the request.
        """
        if self._declared is None:
            found = (await self.metadata()).get("inputs", ())
            self._declared = {row["name"]: row["datatype"] for row in found} or PUBLISHED
        tensors = inputs(ask, streaming, self._declared)
        rows = {name: list(tensor.values) for name, tensor in tensors.items()}
        one = {name: row[0] if len(row) == 1 else row for name, row in rows.items()}
        named = {"id": ask.request_id} if ask.request_id else {}
        return {**one, **ask.parameters, **named}


def _part(found: Mapping[str, Any]) -> Part:
    values = {name: row if isinstance(row, list) else [row] for name, row in found.items()}
    if "text_output" not in values:
        raise Fault(f"no text_output in {str(found)[:120]}")
    return part({name: row for name, row in values.items() if row}, None, found.get("id", ""))
