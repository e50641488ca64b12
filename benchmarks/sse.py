"""The other baseline: a plain FastAPI server that streams one server-sent event per token.

`python -m benchmarks.sse PORT` serves the engine that its Python finds, on loopback.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

PATH = "/generate_stream"
READY_PATH = "/health"


class Request(BaseModel):
    text_input: str
    max_tokens: int


class Chunk(BaseModel):
    text_output: str
    finish_reason: str | None


def application() -> FastAPI:
    from tensorrt_llm import LLM, SamplingParams

    app, llm = FastAPI(), LLM("stand-in")

    async def chunks(request: Request) -> AsyncIterator[str]:
        parameters = SamplingParams(max_tokens=request.max_tokens)
        async for output in llm.generate_async(request.text_input, parameters, streaming=True):
            [sequence] = output.outputs
            chunk = Chunk(text_output=sequence.text_diff, finish_reason=sequence.finish_reason)
            yield f"data: {chunk.model_dump_json()}\n\n"

    @app.post(PATH)
    async def generate_stream(request: Request) -> StreamingResponse:
        return StreamingResponse(chunks(request), media_type="text/event-stream")

    @app.get(READY_PATH)
    async def health() -> None:
        return

    return app


if __name__ == "__main__":
    uvicorn.run(application(), host="127.0.0.1", port=int(sys.argv[1]), access_log=False)
