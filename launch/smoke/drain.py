"""The last check, P25: a server that is asked to stop lets its streams end, and leaves nothing."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, aclosing

from .. import triton
from ..process import ServerProcess
from .check import PROMPT, REASONS
from .client import Ask, Client, Fault, Part, Refused
from .endpoint import Endpoint
from .result import Outcome, Result
from .suite import clients

ID, TITLE = "P25", "Graceful stop"
REASON = "a restart cuts answers off, or leaves processes and memory behind"
LONG = Ask(PROMPT, max_tokens=128)


def stop(endpoint: Endpoint, server: ServerProcess, shm_prefix: str | None) -> list[Result]:
    """Stop the server under a stream of each transport, and judge it. It is stopped afterwards."""
    return asyncio.run(_stop(endpoint, server, shm_prefix))


async def _stop(endpoint: Endpoint, server: ServerProcess, shm_prefix: str | None) -> list[Result]:
    start = time.monotonic()
    async with AsyncExitStack() as stack:
        transports = await clients(endpoint, stack)
        begun = [asyncio.Event() for _ in transports]
        streams = [
            asyncio.create_task(_stream(client, event))
            for client, event in zip(transports, begun, strict=True)
        ]
        await asyncio.wait([*(asyncio.create_task(event.wait()) for event in begun)])
        await asyncio.to_thread(server.stop)
        ends = await asyncio.gather(*streams)
    faults = _faults(server, shm_prefix)
    seconds = round(time.monotonic() - start, 3)
    results = []
    for client, end in zip(transports, ends, strict=True):
        wrong = [*faults, *([end] if end else [])]
        outcome: Outcome = "failed" if wrong else "passed"
        end_seen = "its stream ran to its end, " if client.streams else ""
        seen = f"{end_seen}exit status 0, nothing left"
        evidence = "; ".join(wrong) if wrong else seen
        results.append(Result(ID, TITLE, REASON, client.transport, outcome, evidence, seconds))
    return results


async def _stream(client: Client, begun: asyncio.Event) -> str:
    """What was wrong with a stream. Without streaming nobody sees when a request has begun."""
    if not client.streams:
        begun.set()
        return ""
    last: Part | None = None
    try:
        async with aclosing(client.stream(LONG)) as parts:
            async for part in parts:
                begun.set()
                last = part if part.finish_reason else last
    except (Fault, Refused) as fault:
        return f"the stream was cut off: {fault}"
    finally:
        begun.set()
    return "" if last and last.finish_reason in REASONS else "the stream has no finish_reason"


def _faults(server: ServerProcess, shm_prefix: str | None) -> list[str]:
    status = server.exit_status(0)
    faults = [] if status == 0 else [f"exit status {status}, 0 expected"]
    if server.killed:
        faults.append("did not end when asked and was killed")
    if server.left:
        faults.append(f"{server.left} processes were left")
    regions = triton.shared_memory(shm_prefix) if shm_prefix else []
    if regions:
        faults.append(f"shared memory was left: {', '.join(region.name for region in regions)}")
    return faults
