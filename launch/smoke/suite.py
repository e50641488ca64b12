"""The run of the suite: every check over every transport, one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from .check import Check, healthy
from .checks import NEGATIVE, POSITIVE
from .client import Client, Fault, NotOffered, Refused, Unjudged
from .endpoint import Endpoint
from .rendered import is_decoupled
from .result import Outcome, Result

# One generation of a large model takes seconds; a check has a few of them.
CHECK_TIMEOUT_S = 120.0

Report = Callable[[Sequence[Result]], None]


def run(
    endpoint: Endpoint, report: Report, checks: Sequence[Check] = (*POSITIVE, *NEGATIVE)
) -> list[Result]:
    """All results in order; `report` sees those of each check as soon as they are there."""
    return asyncio.run(_run(endpoint, report, checks))


async def clients(endpoint: Endpoint, stack: AsyncExitStack) -> list[Client]:
    """One client per transport, closed when the stack is."""
    if endpoint.kind == "trtllm_serve":
        from .openai_http import OpenAIClient

        made: list[Client] = [OpenAIClient(endpoint, CHECK_TIMEOUT_S)]
    else:
        made = await _triton_clients(endpoint)
    for client in made:
        stack.push_async_callback(client.close)
    return made


async def _run(endpoint: Endpoint, report: Report, checks: Sequence[Check]) -> list[Result]:
    results: list[Result] = []
    async with AsyncExitStack() as stack:
        transports = await clients(endpoint, stack)
        for check in checks:
            seen = [await _judge(check, client, endpoint) for client in transports]
            report(seen)
            results += seen
    return results


async def _judge(check: Check, client: Client, endpoint: Endpoint) -> Result:
    start = time.monotonic()
    outcome, evidence = await _outcome(check, client, endpoint)
    seconds = round(time.monotonic() - start, 3)
    return Result(check.id, check.title, check.reason, client.transport, outcome, evidence, seconds)


async def _outcome(check: Check, client: Client, endpoint: Endpoint) -> tuple[Outcome, str]:
    if hindrance := check.hindrance(client, endpoint):
        return "skipped", hindrance
    wrong: Outcome = "failed" if check.level == "error" else "warned"
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            evidence = await check.function(client, endpoint)
            if check.negative:
                await healthy(client)
    except NotOffered as reason:
        return "skipped", str(reason)
    except Unjudged as fault:
        return "warned", str(fault)
    except Fault as fault:
        return wrong, str(fault)
    except Refused as refusal:
        return wrong, f"a right request is refused: {refusal}"
    except TimeoutError:
        return wrong, f"no answer after {CHECK_TIMEOUT_S:.0f} s"
    return "passed", evidence


async def _triton_clients(endpoint: Endpoint) -> list[Client]:
    from .triton_grpc import TritonGrpcClient
    from .triton_http import TritonHttpClient

    made: list[Client] = []
    if endpoint.grpc:
        made.append(TritonGrpcClient(endpoint, CHECK_TIMEOUT_S))
    if endpoint.url:
        made.append(TritonHttpClient(endpoint, CHECK_TIMEOUT_S))
    streams = await _streams(endpoint, made[0])
    for client in made:
        client.streams = streams
    return made


async def _streams(endpoint: Endpoint, client: Client) -> bool:
    """Whether the model is decoupled: by its own word, else by the bundle's, else it is."""
    try:
        return is_decoupled(await client.config())
    except (Fault, Refused):
        return bool(endpoint.options.get("triton_config", {}).get("decoupled", True))
