"""A client under a load: `python -m benchmarks.load_program NAME JSON`, of a `ClientLoad`.

Prints what the client saw of every request, its CPU time, its memory, and when it began to send.
Ours is the toolkit's, with all its processes; each of the others is written as its users write it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.reference_server import accuracy, process
from benchmarks.reference_server.accuracy import AccuracyTest
from benchmarks.reference_server.responses import MODEL
from benchmarks.reference_server.schedule import HEADER
from launch.bench import workers
from launch.bench.clients import Api
from launch.bench.load import LoadPlan
from launch.bench.request import RequestRecord
from launch.bench.workers import peak_mib

OURS = "toolkit"
# What each of the others needs to be installed.
OTHERS = {"httpx": "httpx", "openai": "openai", "aiohttp": "aiohttp"}
PATH = "/v1/chat/completions"
# What a client sees of a request: first byte sent, first and last token, in ns, and its tokens.
Times = list[int]
Send = Callable[[int], Awaitable[Times]]


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """`address` is HOST:PORT of a reference server, `core` where the client sends alone."""

    api: Api
    address: str
    core: int | None
    streams: int
    requests: int
    tokens: int
    itl_ms: float

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def test(self) -> AccuracyTest:
        return AccuracyTest(self.streams, self.requests, self.tokens, self.itl_ms)


def installed() -> list[str]:
    return [name for name, module in OTHERS.items() if importlib.util.find_spec(module)]


def run_toolkit(load: ClientLoad) -> None:
    """Records come from the process that sends; both processes count."""
    before_s = time.process_time()
    plan = LoadPlan("concurrency", tuple(load.test.asks()), concurrency=load.streams)
    times: dict[int, Times] = {}

    def received(record: RequestRecord) -> None:
        if record.failure is not None:
            sys.exit(f"request {record.index}: {record.failure}")
        times[record.index] = list(dataclasses.astuple(accuracy.timing(record)))

    cores = () if load.core is None else (load.core,)
    endpoint = process.endpoint(load.api, load.address)
    [usage] = workers.run(plan, endpoint, load.api, 1, received, threading.Event(), cores)
    show(times, usage.cpu_s + time.process_time() - before_s, usage.peak_mib)


def body(tokens: int) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Say something."}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


class Chunks:
    """Counts chunks with text, as scripts do."""

    def __init__(self) -> None:
        self.sent_ns = time.monotonic_ns()
        self.first_ns = self.last_ns = self.tokens = 0

    def line(self, line: str) -> None:
        data = line.removeprefix("data: ").strip()
        if data and data != "[DONE]":
            choices = json.loads(data)["choices"]
            if choices and choices[0]["delta"].get("content"):
                self.token()

    def token(self) -> None:
        self.last_ns = time.monotonic_ns()
        self.first_ns = self.first_ns or self.last_ns
        self.tokens += 1

    @property
    def times(self) -> Times:
        return [self.sent_ns, self.first_ns, self.last_ns, self.tokens]


async def _httpx(load: ClientLoad) -> None:
    import httpx

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60, trust_env=False, limits=limits) as client:

        async def send(number: int) -> Times:
            chunks = Chunks()
            async with client.stream(
                "POST", load.url + PATH, json=body(load.tokens), headers=header(number)
            ) as response:
                async for line in response.aiter_lines():
                    chunks.line(line)
            return chunks.times

        await drive(load, send)


async def _aiohttp(load: ClientLoad) -> None:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def send(number: int) -> Times:
            chunks = Chunks()
            async with session.post(
                load.url + PATH, json=body(load.tokens), headers=header(number)
            ) as response:
                async for line in response.content:
                    chunks.line(line.decode())
            return chunks.times

        await drive(load, send)


async def _openai(load: ClientLoad) -> None:
    from openai import AsyncOpenAI  # type: ignore[import-not-found,unused-ignore]

    client = AsyncOpenAI(base_url=load.url + "/v1", api_key="none", timeout=60)

    async def send(number: int) -> Times:
        chunks = Chunks()
        stream = await client.chat.completions.create(
            **body(load.tokens), extra_headers=header(number)
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                chunks.token()
        return chunks.times

    await drive(load, send)


def header(number: int) -> dict[str, str]:
    return {HEADER: f"id={number}"}


async def drive(load: ClientLoad, send: Send) -> None:
    numbers = iter(range(load.requests))
    times: dict[int, Times] = {}

    async def stream() -> None:
        for number in numbers:
            times[number] = await send(number)

    before_s = time.process_time()
    await asyncio.gather(*(stream() for _ in range(load.streams)))
    show(times, time.process_time() - before_s, 0)


def show(times: Mapping[int, Times], cpu_s: float, other_mib: float) -> None:
    """`other_mib` is the memory of processes besides this one."""
    print(json.dumps({"seen": times, "cpu_s": cpu_s, "peak_mib": peak_mib() + other_mib}))


PROGRAMS: Mapping[str, Callable[[ClientLoad], Coroutine[Any, Any, None]]] = {
    "httpx": _httpx,
    "aiohttp": _aiohttp,
    "openai": _openai,
}


def main() -> None:
    name, load = sys.argv[1], ClientLoad(**json.loads(sys.argv[2]))
    if name == OURS:
        run_toolkit(load)
        return
    if load.core is not None:
        os.sched_setaffinity(0, {load.core})
    asyncio.run(PROGRAMS[name](load))


if __name__ == "__main__":
    main()
