"""The run of the suite: every check that applies, over every transport, one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any

from .checks import NEGATIVE, POSITIVE, Check, Level, healthy
from .client import Client, Fault, Refused, Unjudged
from .endpoint import Endpoint
from .http import json_of, session
from .rendered import is_decoupled

# One generation of a large model takes seconds; a check has a few of them.
CHECK_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Result:
    """`detail` says what was seen. A check of level `warning` does not fail the suite."""

    id: str
    title: str
    transport: str
    level: Level
    passed: bool
    detail: str
    seconds: float

    @property
    def failed(self) -> bool:
        return not self.passed and self.level == "error"


def run(endpoint: Endpoint, report: Callable[[Result], None]) -> list[Result]:
    """All results in order; `report` sees each as soon as it is there."""
    return asyncio.run(_run(endpoint, report))


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """How a suite went, in numbers, and the results."""
    return {
        "checks": len(results),
        "failed": sum(result.failed for result in results),
        "warnings": sum(not result.passed and not result.failed for result in results),
        "seconds": round(sum(result.seconds for result in results), 2),
        "results": [asdict(result) for result in results],
    }


async def _run(endpoint: Endpoint, report: Callable[[Result], None]) -> list[Result]:
    results = []
    async with AsyncExitStack() as stack:
        clients = await _clients(endpoint)
        for client in clients:
            stack.push_async_callback(client.close)
        for check in (*POSITIVE, *NEGATIVE):
            for client in clients:
                if _applies(check, client, endpoint):
                    result = await _judge(check, client, endpoint)
                    report(result)
                    results.append(result)
    return results


def _applies(check: Check, client: Client, endpoint: Endpoint) -> bool:
    return (
        endpoint.kind in check.kinds
        and (client.streams or not check.streams)
        and (endpoint.model_folder is not None or not check.rendered)
    )


async def _judge(check: Check, client: Client, endpoint: Endpoint) -> Result:
    start = time.monotonic()
    passed, level = False, check.level
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            detail = await check.function(client, endpoint)
            if check in NEGATIVE:
                await healthy(client)
        passed = True
    except Unjudged as fault:
        detail, level = str(fault), "warning"
    except Fault as fault:
        detail = str(fault)
    except Refused as refusal:
        detail = f"a right request is refused: {refusal}"
    except TimeoutError:
        detail = f"no answer after {CHECK_TIMEOUT_S:.0f} s"
    seconds = round(time.monotonic() - start, 3)
    return Result(check.id, check.title, client.transport, level, passed, detail, seconds)


async def _clients(endpoint: Endpoint) -> list[Client]:
    if endpoint.kind == "trtllm_serve":
        from .openai_http import OpenAIClient

        return [OpenAIClient(endpoint, CHECK_TIMEOUT_S)]
    from .triton_grpc import TritonGrpcClient
    from .triton_http import TritonHttpClient

    streams = await _streams(endpoint)
    kinds = (TritonGrpcClient, TritonHttpClient)
    return [kind(endpoint, CHECK_TIMEOUT_S, streams) for kind in kinds]


async def _streams(endpoint: Endpoint) -> bool:
    """Whether the served model is decoupled; a server that does not say is taken to stream."""
    async with session(endpoint.url, CHECK_TIMEOUT_S) as http:
        try:
            return is_decoupled(await json_of(http, f"/v2/models/{endpoint.model}/config"))
        except (Fault, Refused):
            return True
