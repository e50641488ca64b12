"""The HTTP transports: the OpenAI API of engines' own servers, and Triton's REST API.

Errors are found in the body too, which may come with status 200."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import httpx

from ..answers import model_name, read_json
from ..bounded_answer import MAX_BYTES, TooLate, streamed
from ..bounded_answer import client as session
from ..endpoint import Endpoint
from .client import (
    CheckFailure,
    Completion,
    NotSupported,
    RequestRejected,
    SmokeRequest,
    reading,
)
from .triton_tensors import declared_inputs, inputs, read_outputs

MOST_LETTERS = 300  # of what a library says of an answer


def _words(error: httpx.TransportError) -> str:
    """The start of an error message: the library repeats invalid heads of any length."""
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
    max_tokens: object = None,
    timeout_s: float | None = None,
) -> AsyncGenerator[str, None]:
    """The data of every event. Leaving early closes the connection."""
    try:
        async with (
            asyncio.timeout(timeout_s),
            http.stream("POST", path, json=body, extensions=streamed(max_tokens)) as response,
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
            raise CheckFailure(f"a line of more than {MAX_BYTES >> 10:,} KiB")
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


DONE = "[DONE]"
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
# Where the text of a message is: an answer that ends while the model reasons has no content.
TEXTS = ("content", "reasoning_content", "reasoning")
EMPTY = Completion("", None, final=False)
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")

# Wrong requests by name: method, path and content.
Misuses = dict[str, tuple[str, str, dict[str, Any]]]

# How a server is asked for text that fits a schema.
SCHEMA_FORMATS: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "json": lambda schema: {"type": "json", "schema": schema},
    "json_schema": lambda schema: {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema},
    },
}

# A harmless request to each API of Triton that may be restricted.
RESTRICTED_APIS = {
    "health": ("GET", "/v2/health/live"),
    "metadata": ("GET", "/v2"),
    "shared-memory": ("GET", "/v2/systemsharedmemory/status"),
    "model-config": ("GET", "/v2/models/{model}/config"),
    "model-repository": ("POST", "/v2/repository/index"),
    "statistics": ("GET", "/v2/models/stats"),
    "trace": ("GET", "/v2/trace/setting"),
    "logging": ("GET", "/v2/logging"),
}


class OpenAIClient:
    """Greedy means temperature 0 here, as every OpenAI client has it."""

    transport = "http"
    streams = True

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._http = session(endpoint.url or "", timeout_s, endpoint.access.http_headers)
        self._server = endpoint.record
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
            version = (await get_json(self._http, "/version")).get("version")
        except RequestRejected:
            version = "without a version"
        return f"{self._server.title} {version}, model {model}"

    async def metadata(self) -> Mapping[str, Any]:
        raise NotSupported(f"{self._server.title} reports no tensors")

    async def config(self) -> Mapping[str, Any]:
        raise NotSupported(f"{self._server.title} reports no model configuration")

    async def generate(self, request: SmokeRequest) -> Completion:
        body = await self._body(request)
        response = await receive(self._http.post(_path(request), json=body))
        return _completion(parse_json(response.status_code, response.text))

    async def stream(
        self, request: SmokeRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[Completion, None]:
        body = {**await self._body(request), "stream": True}
        done = False
        async with aclosing(
            events(self._http, _path(request), body, request.max_tokens, timeout_s)
        ) as lines:
            async for data in lines:
                if done:
                    raise CheckFailure(f"something follows {DONE}: {data[:80]}")
                if data == DONE:
                    done = True
                else:
                    yield _completion(parse_json(httpx.codes.OK, data))
        if not done:
            raise CheckFailure(f"the stream ends without {DONE}")

    async def misuse(self, how: str, request: SmokeRequest) -> str:
        good = await self._body(request)
        as_json = {"Content-Type": "application/json"}
        image = {"type": "image_url", "image_url": {"url": "file:///etc/hostname"}}
        message = {"role": "user", "content": [{"type": "text", "text": "What?"}, image]}
        chat = {"model": good["model"], "max_tokens": 4, "messages": [message]}
        alone = {"stream_options": {"include_usage": True}, "stream": False}
        misuses: Misuses = {
            "malformed_json": (
                "POST", COMPLETIONS, {"content": b'{"prompt": "a"', "headers": as_json}
            ),
            "empty_body": ("POST", COMPLETIONS, {"content": b"", "headers": as_json}),
            "wrong_shape": ("POST", COMPLETIONS, {"json": {**good, "max_tokens": [1, 2]}}),
            "unknown_input": ("POST", COMPLETIONS, {"json": {**good, "no_such_field": 1}}),
            "stream_options": ("POST", COMPLETIONS, {"json": {**good, **alone}}),
            "unknown_url": ("GET", "/no/such/thing", {}),
            "wrong_method": ("GET", COMPLETIONS, {}),
            "image_file": ("POST", CHAT, {"json": chat}),
        }  # fmt: skip
        return await _misused(self._http, misuses, how, self._server.title)

    async def close(self) -> None:
        await self._http.aclose()

    async def _served_model(self) -> str:
        if self._model is None:
            models = await get_json(self._http, "/v1/models")
            try:
                self._model = model_name(models["data"][0]["id"])
            except (KeyError, IndexError, TypeError, ValueError):
                raise CheckFailure("GET /v1/models names no model") from None
        return self._model

    async def _body(self, request: SmokeRequest) -> dict[str, Any]:
        """`top_k` is left out: it is an extension, and temperature 0 is greedy without it."""
        if request.metrics:
            raise NotSupported(f"{self._server.title} reports no metrics in its answers")
        schema = request.json_schema
        values = {
            "prompt": request.prompt if request.messages is None else None,
            "messages": request.messages,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            "stop": list(request.stop) or None,
            "ignore_eos": request.ignore_eos or None,
            "logprobs": 1 if request.logprobs else None,
            "top_k": request.top_k if request.top_k != 1 else None,
            "response_format": schema and SCHEMA_FORMATS[self._server.json_schema_format](schema),
        }
        body = {name: value for name, value in values.items() if value is not None}
        return {"model": request.model or await self._served_model(), **body, **request.parameters}


class TritonHttpClient:
    """Triton's generate extension, metadata, health and the other APIs that it serves."""

    transport = "http"

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self.streams = True
        url = endpoint.url or ""
        self._http = session(url, timeout_s, endpoint.access.http_headers)
        self._without_key = session(url, timeout_s)
        self._model = endpoint.model or ""
        self._name = quote(self._model, safe="")  # in paths
        self._place = f"/v2/models/{self._name}"
        self._declared: Mapping[str, str] | None = None

    async def ready(self) -> str:
        paths = ("/v2/health/live", "/v2/health/ready", f"{self._place}/ready")
        return f"{', '.join([await expect_ok(self._http, path) for path in paths])} give 200"

    async def served(self) -> str:
        server = await get_json(self._http, "/v2")
        versions = (await self.metadata()).get("versions", [])
        response = await receive(self._http.post("/v2/repository/index"))
        if not response.is_success:
            parse_json(response.status_code, response.text)
        with reading():
            rows = read_json(response.content)
            states = [row.get("state") for row in rows if row["name"] == self._model]
        if states != ["READY"]:
            what = f"the index gives {self._model} the states {states}, one READY expected"
            raise CheckFailure(what)
        with reading():
            return f"Triton {server['version']}, {self._model} {', '.join(versions)} is READY"

    async def metadata(self) -> Mapping[str, Any]:
        return await get_json(self._http, self._place)

    async def config(self) -> Mapping[str, Any]:
        return await get_json(self._http, f"{self._place}/config")

    async def generate(self, request: SmokeRequest) -> Completion:
        path, body = self._path(request, "generate"), await self._body(request, False)
        response = await receive(self._http.post(path, json=body))
        return _generated(parse_json(response.status_code, response.text))

    async def stream(
        self, request: SmokeRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[Completion, None]:
        """The extension marks no final event; the event with a finish reason counts as final."""
        path, body = self._path(request, "generate_stream"), await self._body(request, True)
        async with aclosing(events(self._http, path, body, request.max_tokens, timeout_s)) as lines:
            async for data in lines:
                yield _generated(parse_json(httpx.codes.OK, data))

    async def misuse(self, how: str, request: SmokeRequest) -> str:
        how, _, api = how.partition(" ")
        if how == "closed" and api in RESTRICTED_APIS:
            method, path = RESTRICTED_APIS[api]
            return await call(self._without_key, method, path.format(model=self._name))
        managed = f"/v2/repository/models/{self._name}"
        generate, good = self._path(request, "generate"), await self._body(request, False)
        text = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["a"]}
        streaming = ("POST", generate, {"json": {**good, "streaming": True}})
        infer = ("POST", self._path(request, "infer"), {"json": {"inputs": [text]}})
        wrong_shape = {**good, "sampling_param_max_tokens": [1, 2]}
        misuses: Misuses = {
            "load": ("POST", f"{managed}/load", {"json": {}}),
            "unload": ("POST", f"{managed}/unload", {"json": {}}),
            "malformed_json": ("POST", generate, {"content": b'{"text_input": "a"'}),
            "empty_body": ("POST", generate, {"content": b""}),
            "wrong_shape": ("POST", generate, {"json": wrong_shape}),
            "unknown_input": ("POST", generate, {"json": {**good, "no_such_input": 1}}),
            "unknown_url": ("GET", "/v2/no_such_thing", {}),
            "wrong_method": ("GET", generate, {}),
            **({"unary": infer, "many_responses": streaming} if self.streams else {}),
            **({} if self.streams else {"streaming": streaming}),
        }
        return await _misused(self._http, misuses, how, "HTTP")

    async def close(self) -> None:
        await self._http.aclose()
        await self._without_key.aclose()

    def _path(self, request: SmokeRequest, verb: str) -> str:
        return f"/v2/models/{quote(request.model or self._model, safe='')}/{verb}"

    async def _body(self, request: SmokeRequest, streaming: bool) -> dict[str, Any]:
        """Inputs of one element as scalars, which is how the extension writes them.

        A name that is not an input of the model becomes a parameter of the request.
        """
        if self._declared is None:
            with reading():
                self._declared = declared_inputs((await self.metadata()).get("inputs"))
        rows = inputs(request, streaming, self._declared)
        body = {name: row[0] if len(row) == 1 else list(row) for name, row in rows.items()}
        named = {"id": request.request_id} if request.request_id else {}
        return {**body, **request.parameters, **named}


async def _misused(http: httpx.AsyncClient, misuses: Misuses, how: str, title: str) -> str:
    if how not in misuses:
        raise NotSupported(f"{title} has no {how.replace('_', ' ')}")
    method, path, content = misuses[how]
    return await call(http, method, path, **content)


def _path(request: SmokeRequest) -> str:
    return COMPLETIONS if request.messages is None else CHAT


def _completion(chunk: Mapping[str, Any]) -> Completion:
    """The first choice; a finish reason makes it final."""
    usage = chunk.get("usage") or {}
    counts: dict[str, Any] = {name: usage.get(name) for name in COUNTS}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    measured = {} if cached is None else {"cached_tokens": float(cached)}
    if not chunk.get("choices") and usage:
        return replace(EMPTY, measured=measured, **counts)
    try:
        choice = chunk["choices"][0]
        reason = choice.get("finish_reason")
        message = choice.get("message") or choice.get("delta")
        text = choice["text"] if "text" in choice else _text(message)
        is_null = text is None and "delta" not in choice and not message.get("tool_calls")
        calls = [] if message is None else message.get("tool_calls") or []
        called = tuple(
            (str(one["function"].get("name")), str(one["function"].get("arguments")))
            for one in calls
        )
        steps = choice.get("avg_decoded_tokens_per_iter")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise CheckFailure(f"no completion: {str(chunk)[:120]}") from None
    if is_null:
        raise CheckFailure("content is null, a text is expected")
    scored = (choice.get("logprobs") or {}).get("token_logprobs") or ()
    if steps is not None:
        measured["tokens_per_step"] = float(steps)
    return replace(
        EMPTY,
        text=text or "",
        finish_reason=reason,
        final=reason is not None,
        logprobs=tuple(float(value) for value in scored if value is not None),
        tool_calls=called,
        measured=measured,
        **counts,
    )


def _text(message: Mapping[str, Any]) -> Any:
    return next((text for name in TEXTS if (text := message.get(name)) is not None), None)


def _generated(found: Mapping[str, Any]) -> Completion:
    values = {name: row if isinstance(row, list) else [row] for name, row in found.items()}
    if "text_output" not in values:
        raise CheckFailure(f"no text_output in {str(found)[:120]}")
    given = {name: row for name, row in values.items() if row}
    return read_outputs(given, None, found.get("id", ""))
