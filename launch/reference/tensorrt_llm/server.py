"""The HTTP server: OpenAI-style endpoints, health and metrics over one engine."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from jinja2 import TemplateError

from . import options
from .llmapi.llm import LLM
from .logger import __version__, logger
from .protocol import ChatCompletionRequest, CompletionRequest, OpenAIResponse, error_body, event
from .results import RequestError, RequestOutput, RequestPerfMetrics
from .sampling_params import SamplingParams

_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_HISTOGRAMS = (
    "e2e_request_latency",
    "time_to_first_token",
    "time_per_output_token",
    "request_queue_time",
)


class ServerMetrics:
    """The Prometheus metrics of a server, by the release's names."""

    def __init__(self, prefix: str, model_name: str) -> None:
        self._prefix = prefix
        self._labels = {"model_name": model_name, "engine_type": "reference"}
        self._finished: Counter[str] = Counter()
        self._counts = {name: [0] * len(_BUCKETS_S) for name in _HISTOGRAMS}
        self._sums_s = dict.fromkeys(_HISTOGRAMS, 0.0)
        self._totals = dict.fromkeys(_HISTOGRAMS, 0)
        self._lock = Lock()

    def finished(self, reasons: Iterable[str], metrics: RequestPerfMetrics, tokens: int) -> None:
        with self._lock:
            self._finished.update(reasons)
            for name, seconds in metrics.latencies_s(tokens).items():
                self._sums_s[name] += seconds
                self._totals[name] += 1
                for index, bound in enumerate(_BUCKETS_S):
                    self._counts[name][index] += seconds <= bound

    def text(self) -> str:
        """The text exposition format, version 0.0.4."""
        with self._lock:
            name = f"{self._prefix}request_success_total"
            lines = [f"# HELP {name} finished requests", f"# TYPE {name} counter"]
            for reason, count in sorted(self._finished.items()):
                lines.append(f"{name}{self._labelled(finished_reason=reason)} {count}")
            for histogram in _HISTOGRAMS:
                lines += self._histogram(histogram)
        return "\n".join(lines) + "\n"

    def _histogram(self, key: str) -> Iterator[str]:
        name, total = f"{self._prefix}{key}_seconds", self._totals[key]
        yield f"# HELP {name} {(self._prefix + key).replace('_', ' ')} in seconds"
        yield f"# TYPE {name} histogram"
        for bound, count in zip((*_BUCKETS_S, "+Inf"), (*self._counts[key], total), strict=True):
            yield f"{name}_bucket{self._labelled(le=str(bound))} {count}"
        yield f"{name}_sum{self._labelled()} {self._sums_s[key]}"
        yield f"{name}_count{self._labelled()} {total}"

    def _labelled(self, **more: str) -> str:
        def escaped(value: str) -> str:
            return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

        labels = {**self._labels, **more}
        return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"


class OpenAIServer:
    """The application over one engine. `model` is the folder or name given on the command line."""

    def __init__(self, llm: LLM, model: str, chat_template: str | None = None) -> None:
        self._llm = llm
        self._chat_template = chat_template
        self._started = int(time.time())
        self.model_name = Path(model).resolve().name if Path(model).is_dir() else model
        prefix = options.release().metric_prefix
        self._metrics = ServerMetrics(prefix, self.model_name)
        self._perf_metrics: deque[dict[str, Any]] = deque(maxlen=llm.args.perf_metrics_max_requests)
        self.app = FastAPI(title="reference engine", version=__version__)
        self.app.add_exception_handler(RequestValidationError, _refuse)
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
        prometheus = ("GET", "/prometheus/metrics")
        if self._llm.args.return_perf_metrics:
            routes[prometheus] = self._prometheus
        for (method, path), handler in routes.items():
            self.app.add_api_route(path, handler, methods=[method], response_model=None)
        for method, path in options.release().endpoints:
            if (method, path) not in routes and (method, path) != prometheus and method != "ANY":
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
        return {"version": __version__}

    async def _models(self) -> dict[str, Any]:
        card = {"id": self.model_name, "object": "model", "created": self._started}
        return {"object": "list", "data": [{**card, "owned_by": "reference"}]}

    async def _iteration_stats(self) -> list[dict[str, Any]]:
        return self._llm.get_stats()

    async def _take_perf_metrics(self) -> list[dict[str, Any]]:
        taken = list(self._perf_metrics)
        self._perf_metrics.clear()
        return taken

    async def _prometheus(self) -> Response:
        return PlainTextResponse(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _completions(self, body: CompletionRequest, raw: Request) -> Response:
        return await self._respond(body, list(body.prompts), raw)

    async def _chat_completions(self, body: ChatCompletionRequest, raw: Request) -> Response:
        try:
            prompt = body.prompt_token_ids or self._render(body)
        except (ValueError, TypeError, TemplateError) as fault:
            return JSONResponse(error_body(f"chat template: {fault}"), 400)
        return await self._respond(body, [prompt], raw)

    def _render(self, body: ChatCompletionRequest) -> str:
        return str(
            self._llm.tokenizer.apply_chat_template(
                body.conversation,
                chat_template=body.chat_template or self._chat_template,
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
    ) -> Response:
        requests: list[RequestOutput] = []
        try:
            for prompt in prompts:
                params = body.to_sampling_params()
                side = body.disaggregated_params
                requests.append(
                    self._llm.generate_async(
                        prompt, params, bool(body.stream), disaggregated_params=side
                    )
                )
            response = OpenAIResponse(body, requests, self._llm.tokenizer)
            if body.stream:
                return StreamingResponse(
                    self._stream(response, requests), media_type="text/event-stream"
                )
            await _finish(requests, raw)
        except (ValueError, RequestError) as fault:
            _abort(requests)
            return self._failure(fault)
        for request in requests:
            self._record(request)
        return JSONResponse(response.whole())

    def _failure(self, fault: Exception) -> JSONResponse:
        """The fault of a request is the client's, unless the engine is down."""
        if self._llm._check_health():
            return JSONResponse(error_body(str(fault)), 400)
        return JSONResponse(error_body(str(fault), "ServiceUnavailableError", 503), 503)

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
        metrics = request.outputs[0].request_perf_metrics
        reasons = [str(output.finish_reason) for output in request.outputs]
        if metrics is None or "cancelled" in reasons:
            return
        self._metrics.finished(reasons, metrics, request.outputs[0].length)
        self._perf_metrics.append(
            {"request_id": request.request_id, "perf_metrics": _perf_metrics_json(metrics)}
        )


async def _finish(requests: Sequence[RequestOutput], raw: Request) -> None:
    """Wait for all results; if the client goes away, abort them and wait for their end."""

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
    timing, blocks = metrics.timing_metrics, metrics.kv_cache_metrics
    drafts = metrics.speculative_decoding
    points = ("arrival_time", "first_scheduled_time", "first_token_time", "last_token_time")
    counts = ("num_total_allocated_blocks", "num_new_allocated_blocks", "num_reused_blocks")
    document: dict[str, Any] = {
        "first_iter": metrics.first_iter,
        "last_iter": metrics.last_iter,
        "timing_metrics": {name: getattr(timing, name).total_seconds() for name in points},
        "kv_cache_metrics": {
            name: getattr(blocks, name) for name in (*counts, "num_missed_blocks")
        },
    }
    if drafts.total_draft_tokens:
        document["speculative_decoding"] = {
            "acceptance_rate": drafts.acceptance_rate,
            "total_accepted_draft_tokens": drafts.total_accepted_draft_tokens,
            "total_draft_tokens": drafts.total_draft_tokens,
        }
    return document


async def _refuse(request: Request, fault: Exception) -> JSONResponse:
    """A body that is no JSON, or whose fields are wrong."""
    assert isinstance(fault, RequestValidationError)
    texts = [
        ".".join(str(part) for part in error["loc"] if part != "body") + f": {error['msg']}"
        for error in fault.errors()
    ]
    return JSONResponse(error_body("; ".join(texts)), 400)


async def _not_here() -> JSONResponse:
    message = "the reference engine does not have this endpoint"
    return JSONResponse(error_body(message, "NotImplementedError", 501), 501)
