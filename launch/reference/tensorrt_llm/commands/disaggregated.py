"""`trtllm-serve disaggregated`: a router that asks a prefill server first, then a decode server.

As in release 1.2.1 it has no `/v1/models` (NVIDIA/TensorRT-LLM#12213).
Source: TensorRT-LLM tensorrt_llm/serve/openai_disagg_server.py and openai_disagg_service.py.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse

from builder.diagnostics import Diagnostic
from builder.documents import scan_yaml
from builder.errors import BadInput, NotReady
from builder.files import read_text
from builder.lint.read import option_file

from .. import options
from ..logger import LEVELS, __version__, logger
from ..protocol import ChatCompletionRequest, CompletionRequest

NAME = "trtllm-serve disaggregated"
TIMEOUT_S = 180
SIDES = ("context_servers", "generation_servers")
# What the stand-in has in one form only. Keys that change nothing here are not listed.
ONLY: Mapping[str, Any] = {
    "schedule_style": "context_first",
    "conditional_disagg_config": None,
    "disagg_cluster": None,
    "disagg_coordinator_url": None,
    "num_workers": 1,
}
ONLY_ROUTER = "round_robin"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
# With any other the prefill server has said all that there is to say.
UNFINISHED = ("length", "not_finished")
# A connection that is kept may be closed by the server just when it is used again.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=0)
# Servers are asked without a proxy and without TLS, whose certificates take 30 ms to read.
PLAIN: dict[str, Any] = {"trust_env": False, "verify": False}
LOOK_S = 0.5
LOOK_TIMEOUT_S = 5.0

Json = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    """The command's own flags.

    Source: TensorRT-LLM tensorrt_llm/commands/serve.py, `disaggregated`.
    """
    own = argparse.ArgumentParser(
        prog=NAME,
        description="The router of the deployment toolkit's reference engine, not TensorRT-LLM.",
        allow_abbrev=False,
    )
    own.add_argument("-c", "--config_file", type=Path, required=True)
    own.add_argument("-t", "--server_start_timeout", type=int, default=TIMEOUT_S)
    own.add_argument("-r", "--request_timeout", type=int, default=TIMEOUT_S)
    own.add_argument("-l", "--log_level", choices=sorted(LEVELS), default="info")
    return own


def read(path: Path) -> Mapping[str, Any]:
    """The file, as the format of the release has it. Raises `BadInput` with all its faults."""
    documents = scan_yaml(read_text(path))
    content = option_file.read_options(documents, options.release())
    faults = list(itertools.chain(*(document.diagnostics for document in documents)))
    if content is None or content.kind != option_file.DISAGGREGATED:
        problems = [Diagnostic(str(path), f.message, f.fix) for f in faults]
        raise BadInput(problems or Diagnostic(str(path), "names no context and generation servers"))
    faults += [row for row in content.diagnostics if row.severity == "error"]
    problems = [Diagnostic(f"{path}:{f.location.line}: {f.path}", f.message, f.fix) for f in faults]
    problems += [] if faults else _not_here(documents[0].data)
    if problems:
        raise BadInput(problems)
    document: Mapping[str, Any] = documents[0].data
    return document


def _not_here(document: Mapping[str, Any]) -> list[Diagnostic]:
    """What the release takes and the stand-in does not have."""
    found = []
    for name, only in ONLY.items():
        if document.get(name, only) != only:
            found.append(Diagnostic(name, f"the reference engine has only {only}", "leave it out"))
    for side in SIDES:
        servers = document.get(side) or {}
        found += _address_problems(f"{side}.urls", servers)
        if (servers.get("router") or {}).get("type", ONLY_ROUTER) != ONLY_ROUTER:
            what = f"the reference engine has only {ONLY_ROUTER}"
            found.append(Diagnostic(f"{side}.router.type", what, "leave it out"))
    return found


def _address_problems(where: str, servers: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """The release takes each apart at its colon."""
    urls = servers.get("urls") or []
    if not urls:
        yield Diagnostic(where, "are missing", "name at least one server")
    for url in urls:
        if url.count(":") != 1 or not url.partition(":")[2].isdecimal():
            yield Diagnostic(where, f"{url} is not host:port", "write host:port")


class Router:
    """The application before servers that are given as `host:port`, asked in turn."""

    def __init__(self, prefill: Sequence[str], decode: Sequence[str], timeout_s: float) -> None:
        self._servers = [*prefill, *decode]
        self._prefill, self._decode = itertools.cycle(prefill), itertools.cycle(decode)
        self._http = httpx.AsyncClient(timeout=timeout_s, limits=LIMITS, **PLAIN)
        self.app = FastAPI(title="router of the reference engine", version=__version__)
        self.app.add_exception_handler(RequestValidationError, _refuse)
        routes: dict[tuple[str, str], Any] = {
            ("GET", "/health"): self._health,
            ("GET", "/version"): self._version,
            ("POST", COMPLETIONS): self._completions,
            ("POST", CHAT): self._chat_completions,
        }
        for (method, path), handler in routes.items():
            self.app.add_api_route(path, handler, methods=[method], response_model=None)

    def wait(self, timeout_s: float) -> None:
        """Until all servers are ready. Raises `NotReady`."""
        deadline = time.monotonic() + timeout_s
        while missing := [server for server in self._servers if not _is_ready(server)]:
            if time.monotonic() > deadline:
                what = f"not ready after {timeout_s:g} s"
                raise NotReady([Diagnostic(server, what) for server in missing])
            logger.info("waiting for %s", ", ".join(missing))
            time.sleep(LOOK_S)

    async def _health(self) -> Response:
        return Response(status_code=200)

    async def _version(self) -> Json:
        return {"version": __version__}

    async def _completions(self, body: CompletionRequest, raw: Request) -> Response:
        given = await raw.json()
        if len(body.prompts) != 1:
            raise _internal("several prompts in one request are not supported")
        return await self._respond(COMPLETIONS, {**given, "prompt": body.prompts[0]}, "prompt")

    async def _chat_completions(self, body: ChatCompletionRequest, raw: Request) -> Response:
        return await self._respond(CHAT, await raw.json(), "prompt_token_ids")

    async def _respond(self, path: str, given: Json, tokens: str) -> Response:
        """`tokens` is the field in which the decode server gets the prompt's token ids."""
        prefill_body = {
            **given,
            "stream": False,
            "disaggregated_params": {"request_type": "context_only"},
        }
        prefill_body.pop("stream_options", None)
        first = await self._ask(next(self._prefill), path, prefill_body)
        params, ids = first["choices"][0].pop("disaggregated_params"), first.pop("prompt_token_ids")
        if first["choices"][0]["finish_reason"] not in UNFINISHED:
            return _events(_done()) if given.get("stream") else JSONResponse(first)
        params["request_type"] = "generation_only"
        rest = {**given, "disaggregated_params": params, tokens: ids}
        server = next(self._decode)
        if given.get("stream"):
            return _events(self._stream(server, path, rest))
        return JSONResponse(await self._ask(server, path, rest))

    async def _ask(self, server: str, path: str, body: Json) -> Json:
        """A server's good answer. All else is an error of the router's, as in the engine."""
        try:
            answer = await self._http.post(f"http://{server}{path}", json=body)
        except httpx.TransportError as fault:
            raise _internal(f"{server}: {type(fault).__name__}: {fault}") from None
        if answer.status_code != httpx.codes.OK:
            raise _internal(f"{server}: {answer.status_code} {answer.text[:300]}")
        document: Json = answer.json()
        return document

    async def _stream(self, server: str, path: str, body: Json) -> AsyncIterator[bytes]:
        """As the server sends it; a client that goes away ends the request there."""
        async with self._http.stream("POST", f"http://{server}{path}", json=body) as answer:
            answer.raise_for_status()
            async for data in answer.aiter_raw():
                yield data


def _is_ready(server: str) -> bool:
    try:
        answer = httpx.get(f"http://{server}/health", timeout=LOOK_TIMEOUT_S, **PLAIN)
    except httpx.TransportError:
        return False
    return answer.status_code == httpx.codes.OK


async def _done() -> AsyncIterator[bytes]:
    yield b"data: [DONE]\n\n"


def _events(stream: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(stream, media_type="text/event-stream")


def _internal(why: str) -> HTTPException:
    return HTTPException(500, f"Internal server error {why}")


async def _refuse(request: Request, fault: Exception) -> JSONResponse:
    return JSONResponse({"error": str(fault)}, 400)
