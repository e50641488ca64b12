"""The HTTP server: OpenAI-style endpoints, health and metrics over one engine."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from jinja2 import TemplateError
from pydantic import ValidationError

from builder.facts import servers
from builder.facts.chat_turns import ReasoningParser, ToolParser
from builder.facts.release import Release
from builder.facts.servers import Server
from builder.observability import metrics
from builder.rules import answer_parsers

from . import options
from .answer import AnswerReader, call_of, reasoned, schema_of
from .guide import Format, GuidedDecodingParams, format_of
from .llmapi.llm import LLM
from .logger import logger
from .meters import Meters
from .protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    OpenAIResponse,
    ResponsesRequest,
    error_body,
    event,
)
from .results import RequestError, RequestOutput, RequestPerfMetrics
from .sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Surface:
    """What differs between the servers that this one replaces.

    `server` is its record and `release` the engine's, whose metrics it has; `endpoints` are all
    that the server has. Only a server that `has_tools` takes `tools`; `tools` and `reasoning` are
    what its parsers read.
    """

    server: Server
    release: Release
    endpoints: tuple[tuple[str, str], ...] = ()
    has_tools: bool = False
    tools: ToolParser | None = None
    reasoning: ReasoningParser | None = None

    @property
    def version(self) -> str:
        return f"{Path(self.release.name).name.removesuffix('.json')}+reference"

    @property
    def calls_named(self) -> bool:
        """Whether the model calls the function that a request names.

        Without, the whole answer is taken for its arguments.
        """
        return "tool_choice.function.name" in self.release.requests_lack


def own_surface(tool_parser: str | None = None, reasoning_parser: str | None = None) -> Surface:
    """That of `trtllm-serve` of the release that the reference engine follows, with its parsers."""
    release = options.release()
    tools = answer_parsers.tool_parser(release, tool_parser)
    reasoning = answer_parsers.reasoning_parser(release, reasoning_parser)
    for name, row in ((tool_parser, tools), (reasoning_parser, reasoning)):
        if name and row is None:
            logger.warning("parser %s: what it reads is not known here, and stays text", name)
    record = servers.load("trtllm_serve")
    return Surface(record, release, release.endpoints, True, tools, reasoning)


class OpenAIServer:
    """The application over one engine. `model` is the folder or name given on the command line."""

    def __init__(
        self,
        llm: LLM,
        model: str,
        chat_template: str | None = None,
        served_model_name: str | None = None,
        surface: Surface | None = None,
    ) -> None:
        self._surface = surface or own_surface()
        self._llm = llm
        self._chat_template = chat_template
        self._metrics_path = self._surface.server.paths["metrics"]
        self._started = int(time.time())
        folder = Path(model)
        own_name = folder.resolve().name if folder.is_dir() else model
        self.model_name = served_model_name or own_name
        server, release = self._surface.server.name, self._surface.release
        self._meters = Meters(
            metrics.of_server(server, release),
            metrics.names(server, release.metric_prefix),
            {"model_name": self.model_name, "engine_type": "reference", "engine": "reference"},
        )
        self._stats: deque[dict[str, Any]] = deque(maxlen=max(1, llm.args.max_stats_len))
        self._perf_metrics: deque[dict[str, Any]] = deque(maxlen=llm.args.perf_metrics_max_requests)
        self.app = FastAPI(title="reference engine", version=self._surface.version)
        self.app.add_exception_handler(RequestValidationError, self._refuse)
        self._add_routes()

    def _add_routes(self) -> None:
        routes: dict[tuple[str, str], Any] = {
            ("GET", "/health"): self._health,
            ("GET", "/health_generate"): self._health_generate,
            ("GET", "/version"): self._version,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._iteration_stats,
            ("GET", "/perf_metrics"): self._take_perf_metrics,
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/v1/chat/completions"): self._chat_completions,
        }
        if ("POST", "/v1/responses") in self._surface.endpoints:
            routes["POST", "/v1/responses"] = self._responses
        if self._llm.args.return_perf_metrics:
            routes["GET", self._metrics_path] = self._prometheus
        for (method, path), handler in routes.items():
            self.app.add_api_route(path, handler, methods=[method], response_model=None)
        for method, path in self._surface.endpoints:
            if (method, path) not in routes and method != "ANY" and path != self._metrics_path:
                self.app.add_api_route(path, _not_here, methods=[method], response_model=None)

    async def _health(self) -> Response:
        if self._llm._check_health():
            return Response(status_code=200)
        return PlainTextResponse("the engine does not run", status_code=503)

    async def _health_generate(self) -> Response:
        params = SamplingParams(max_tokens=1, temperature=0.0)
        try:
            await self._llm.generate_async("hi", params).aresult()
        except RequestError as fault:
            return PlainTextResponse(f"generation failed: {fault}", status_code=500)
        return PlainTextResponse("generation works")

    async def _version(self) -> dict[str, str]:
        return {"version": self._surface.version}

    async def _models(self) -> dict[str, Any]:
        owner = self._surface.server.model_owner
        card = {"id": self.model_name, "object": "model", "created": self._started}
        return {"object": "list", "data": [{**card, "owned_by": owner}]}

    async def _iteration_stats(self) -> list[dict[str, Any]]:
        self._collect()
        taken = list(self._stats)
        self._stats.clear()
        return taken

    def _collect(self) -> None:
        """Keep the statistics of new iterations for both paths: reading one empties no other."""
        for statistics in self._llm.get_stats():
            self._stats.append(statistics)
            self._meters.take(statistics)

    async def _take_perf_metrics(self) -> list[dict[str, Any]]:
        taken = list(self._perf_metrics)
        self._perf_metrics.clear()
        return taken

    async def _prometheus(self) -> Response:
        self._collect()
        return PlainTextResponse(self._meters.text(), media_type="text/plain; version=0.0.4")

    async def _completions(self, body: CompletionRequest, raw: Request) -> Response:
        prompts = list(body.prompts)
        return await self._respond(body, prompts, raw, lambda: AnswerReader(None, None))

    # No request is refused for the name of its model, and answers repeat it, as in the release:
    # TensorRT-LLM tensorrt_llm/serve/openai_server.py@0005772, openai_chat and openai_completion.
    async def _chat_completions(self, body: ChatCompletionRequest, raw: Request) -> Response:
        try:
            prompt = body.prompt_token_ids or self._render(body)
        except (ValueError, TypeError, TemplateError) as fault:
            return self._bad(f"chat template: {fault}")
        surface = self._surface
        if body.tools and not surface.has_tools:
            return self._bad("tools: not supported by the reference engine")
        row = surface.reasoning
        if row and row.asked_by:
            asked = body.chat_template_kwargs or {}
            row = row if any(asked.get(name) for name in row.asked_by) else None
        # Without a call in it, no answer of an open choice differs from one without tools.
        functions = [] if body.tool_choice == "none" else body.functions
        named = None if surface.calls_named else body.named
        return await self._respond(
            body,
            [prompt],
            raw,
            lambda: AnswerReader(row, surface.tools, functions, named),
            row,
            self._forced(body),
        )

    async def _responses(self, body: ResponsesRequest, raw: Request) -> Response:
        try:
            chat = body.chat()
        except ValueError as fault:
            what = _texts(fault.errors()) if isinstance(fault, ValidationError) else str(fault)
            return self._bad(what)
        answer = await self._chat_completions(chat, raw)
        if answer.status_code != 200:
            return answer
        return JSONResponse(body.response(json.loads(bytes(answer.body))))

    def _forced(self, body: ChatCompletionRequest) -> Format | None:
        """What a miniature writes where a model would call a tool: random weights never do.

        A model that has a tool's result answers in words, unless the call is required.
        """
        is_open = body.tool_choice in (None, "auto")
        has_result = body.messages[-1].get("role") == "tool"
        tools, functions = self._surface.tools, body.named_functions or body.functions
        if not self._llm.is_miniature or not body.tools or body.tool_choice == "none":
            return None
        if body.named is not None and not self._surface.calls_named:
            [schema, *_] = [*map(schema_of, body.named_functions), schema_of({})]
            return {"type": "json_schema", "json_schema": schema}
        if tools is None or not tools.written or (is_open and has_result):
            return None
        return call_of(tools, functions)

    def _render(self, body: ChatCompletionRequest) -> str:
        return str(
            self._llm.tokenizer.apply_chat_template(
                body.conversation,
                chat_template=body.chat_template or self._chat_template,
                tools=[tool.model_dump() for tool in body.tools or ()] or None,
                add_generation_prompt=body.add_generation_prompt,
                tokenize=False,
                **(body.chat_template_kwargs or {}),
            )
        )

    async def _respond(
        self,
        body: CompletionRequest | ChatCompletionRequest,
        prompts: Sequence[str | list[int]],
        raw: Request,
        reader: Callable[[], AnswerReader],
        reasoning: ReasoningParser | None = None,
        forced: Format | None = None,
    ) -> Response:
        requests: list[RequestOutput] = []
        try:
            for prompt in prompts:
                params = body.to_sampling_params()
                if reasoning:
                    self._guide_after_reasoning(params, reasoning)
                requests.append(
                    self._llm.generate_async(
                        prompt,
                        params,
                        bool(body.stream),
                        disaggregated_params=body.disaggregated_params,
                        forced=forced and reasoned(reasoning, forced),
                    )
                )
            response = OpenAIResponse(body, requests, self._llm.tokenizer, reader)
            if body.stream:
                return StreamingResponse(
                    self._stream(response, requests), media_type="text/event-stream"
                )
            await _finish(requests, raw)
        except (ValueError, RequestError) as fault:
            _abort(requests)
            # The fault of a request is the client's, unless the engine is down.
            is_up = self._llm._check_health()
            return self._bad(str(fault)) if is_up else self._unavailable(str(fault))
        except asyncio.CancelledError:  # a server that was stopped waits no longer
            _abort(requests)
            return self._unavailable("the server was stopped before the end")
        for request in requests:
            self._record(request)
        return JSONResponse(response.whole())

    def _guide_after_reasoning(self, params: SamplingParams, reasoning: ReasoningParser) -> None:
        backend, guide = self._llm.args.guided_decoding_backend, params.guided_decoding
        if guide is not None and guide.structural_tag is None and backend:
            form = reasoned(reasoning, format_of(guide, backend))
            params.guided_decoding = GuidedDecodingParams(
                structural_tag=json.dumps({"format": form})
            )

    async def _refuse(self, _: Request, fault: Exception) -> JSONResponse:
        assert isinstance(fault, RequestValidationError)
        return self._bad(_texts(fault.errors()))

    def _bad(self, message: str) -> JSONResponse:
        """Known of the release (openai_server.py, 2026): refused bodies count as errors."""
        return self._error(message, "BadRequestError", 400)

    def _error(self, message: str, kind: str, status: int) -> JSONResponse:
        self._meters.add("errors", http_code=str(status))
        return JSONResponse(error_body(message, kind, status), status)

    def _unavailable(self, message: str) -> JSONResponse:
        """That these count as errors too is assumed."""
        return self._error(message, "ServiceUnavailableError", 503)

    async def _stream(
        self, response: OpenAIResponse, requests: Sequence[RequestOutput]
    ) -> AsyncIterator[str]:
        """Events of all requests as they come; aborts the requests if the client goes away.

        A fault is an event too, and the last one: the mark of the end is for whole answers.
        """
        events: asyncio.Queue[str | None] = asyncio.Queue()
        faults: list[RequestError] = []

        async def pump(number: int, request: RequestOutput) -> None:
            try:
                async for _ in request:
                    for chunk in response.chunks(number):
                        events.put_nowait(event(chunk))
                self._record(request)
            except RequestError as fault:
                faults.append(fault)
                events.put_nowait(event(error_body(str(fault))))
            finally:
                events.put_nowait(None)

        pumps = [asyncio.create_task(pump(*pair)) for pair in enumerate(requests)]
        try:
            for _ in pumps:
                while (data := await events.get()) is not None:
                    yield data
            if not faults:
                if (last := response.last_chunk()) is not None:
                    yield event(last)
                yield "data: [DONE]\n\n"
        finally:
            _abort(requests)
            for task in pumps:
                task.cancel()

    def _record(self, request: RequestOutput) -> None:
        measured = request.outputs[0].request_perf_metrics
        reasons = [str(output.finish_reason) for output in request.outputs]
        if measured is None or "cancelled" in reasons:
            return
        for reason in reasons:
            self._meters.add("succeeded", finished_reason=reason)
        for word, seconds in measured.latencies_s(request.outputs[0].length).items():
            self._meters.add(word, seconds)
        self._meters.add("tokens_in", len(request.prompt_token_ids))
        self._meters.add("tokens_out", request.output_length)
        self._perf_metrics.append(
            {"request_id": request.request_id, "perf_metrics": _perf_metrics_json(measured)}
        )


async def _finish(requests: Sequence[RequestOutput], raw: Request) -> None:

    async def watch() -> None:
        while (await raw.receive())["type"] != "http.disconnect":
            pass
        logger.info("a client went away; its request is aborted")
        _abort(requests)

    watcher = asyncio.create_task(watch())
    try:
        for request in requests:
            await request.aresult()
    finally:
        watcher.cancel()


def _abort(requests: Sequence[RequestOutput]) -> None:
    for request in requests:
        if not request.finished:
            request.abort()


def _perf_metrics_json(metrics: RequestPerfMetrics) -> dict[str, Any]:
    """Points in time in seconds; of drafts only where there were some."""
    document = asdict(metrics)
    timing, blocks = document["timing_metrics"], document["kv_cache_metrics"]
    del timing["kv_cache_size"], blocks["kv_cache_hit_rate"]
    document["timing_metrics"] = {name: at.total_seconds() for name, at in timing.items()}
    drafts = metrics.speculative_decoding
    if drafts.total_draft_tokens:
        document["speculative_decoding"]["acceptance_rate"] = drafts.acceptance_rate
    else:
        del document["speculative_decoding"]
    return document


def _texts(errors: Sequence[Any]) -> str:
    """Each error with its field; that of a body which is no JSON has a position instead."""
    texts = []
    for error in errors:
        where = ".".join(str(part) for part in error["loc"] if part != "body")
        place = f"at byte {where}" if error["type"] == "json_invalid" else where
        message = error["msg"].removeprefix("Value error, ")
        texts.append(f"{place}: {message}" if place else message)
    return "; ".join(texts)


async def _not_here() -> JSONResponse:
    message = "the reference engine does not have this endpoint"
    return JSONResponse(error_body(message, "NotImplementedError", 501), 501)
