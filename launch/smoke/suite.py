"""The run of the suite: every check over every transport, and the graceful stop at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace

from builder.credentials import mask

from .. import triton
from ..endpoint import Endpoint
from ..process import ServerProcess
from .checks import NEGATIVE, POSITIVE, Check
from .client import (
    PROMPT,
    REASONS,
    SHORT,
    CheckFailure,
    Completion,
    Inconclusive,
    NotSupported,
    RequestRejected,
    SmokeClient,
    SmokeRequest,
    healthy,
    reading,
)
from .health import is_decoupled
from .results import CheckResult, Outcome

MOST_EVIDENCE = 4_000  # letters

# One generation of a large model takes seconds; a check has a few of them.
CHECK_TIMEOUT_S = 120.0
# What is asked before the checks, where an answer is not needed.
QUESTION_S = 10.0
# One token tells a slow server from one that does not generate. It is requested before the first
# check that generates, and after a check that timed out. Checks without a generation have as long.
TOKEN_TIMEOUT_S = 40.0
NOT_RUN = "not run: the server does not generate"

# The last check, after which the server is gone.
STOP_ID, STOP_TITLE = "P25", "Graceful stop"
STOP_REASON = "a restart cuts answers off, or leaves processes and memory behind"
LONG = SmokeRequest(PROMPT, max_tokens=128)

OnResult = Callable[[Sequence[CheckResult]], None]


def run(
    endpoint: Endpoint, on_result: OnResult, checks: Sequence[Check] = (*POSITIVE, *NEGATIVE)
) -> list[CheckResult]:
    """All results in order; `on_result` gets those of each check as soon as they are there."""
    return asyncio.run(_run(endpoint, on_result, checks))


async def clients(
    endpoint: Endpoint, stack: AsyncExitStack, timeout_s: float = CHECK_TIMEOUT_S
) -> list[SmokeClient]:
    """One client per transport, closed when the stack is; `timeout_s` is for each answer."""
    if endpoint.api == "openai":
        from .http_clients import OpenAIClient

        made: list[SmokeClient] = [OpenAIClient(endpoint, timeout_s)]
    else:
        made = await _triton_clients(endpoint, timeout_s)
    for client in made:
        stack.push_async_callback(client.close)
    return made


async def _run(
    endpoint: Endpoint, on_result: OnResult, checks: Sequence[Check]
) -> list[CheckResult]:
    results: list[CheckResult] = []
    generates: dict[str, bool] = {}
    async with AsyncExitStack() as stack:
        transports = await clients(endpoint, stack)
        for check in checks:
            rows = [await _run_check(check, client, endpoint, generates) for client in transports]
            on_result(rows)
            results += rows
    return results


async def _run_check(
    check: Check, client: SmokeClient, endpoint: Endpoint, generates: dict[str, bool]
) -> CheckResult:
    """`generates` says for each transport tried so far whether its server generates."""
    start = time.monotonic()
    name, limit_s = client.transport, CHECK_TIMEOUT_S if check.generates else TOKEN_TIMEOUT_S
    skip_reason = check.skip_reason(client, endpoint)
    if check.generates and not skip_reason and name not in generates:
        generates[name] = await _generates(client)
    if skip_reason:
        outcome, said = "skipped", skip_reason
    elif not generates.get(name, True):
        outcome, said = check.failed, NOT_RUN
    else:
        begun = time.monotonic()
        outcome, said = await _outcome(check, client, endpoint, limit_s)
        if time.monotonic() - begun >= limit_s:
            generates[name] = await _generates(client)
    evidence = mask(said)[:MOST_EVIDENCE]  # servers repeat the key that they refuse
    seconds = round(time.monotonic() - start, 3)
    return CheckResult(check.id, check.title, check.reason, name, outcome, evidence, seconds)


async def _generates(client: SmokeClient) -> bool:
    """Whether a request for one token is answered in time; an error is an answer."""
    try:
        with reading():
            async with asyncio.timeout(TOKEN_TIMEOUT_S):
                await client.generate(replace(SHORT, max_tokens=1))
    except TimeoutError:
        return False
    except (CheckFailure, RequestRejected, NotSupported):
        return True
    return True


async def _outcome(
    check: Check, client: SmokeClient, endpoint: Endpoint, limit_s: float
) -> tuple[Outcome, str]:
    try:
        with reading():
            async with asyncio.timeout(limit_s):
                evidence = await check.function(client, endpoint)
                if check.negative:
                    await healthy(client)
    except NotSupported as reason:
        return "skipped", str(reason)
    except Inconclusive as reason:
        return "warned", str(reason)
    except CheckFailure as failure:
        return check.failed, str(failure)
    except RequestRejected as rejection:
        return check.failed, f"a valid request was rejected: {rejection}"
    except TimeoutError:
        return check.failed, f"no answer after {limit_s:.0f} s"
    return "passed", evidence


async def _triton_clients(endpoint: Endpoint, timeout_s: float) -> list[SmokeClient]:
    from .http_clients import TritonHttpClient
    from .triton_grpc import TritonGrpcClient

    made: list[SmokeClient] = []
    if endpoint.grpc:
        made.append(TritonGrpcClient(endpoint, timeout_s))
    if endpoint.url:
        made.append(TritonHttpClient(endpoint, timeout_s))
    streams = await _streams(endpoint, made[0])
    for client in made:
        client.streams = streams
    return made


async def _streams(endpoint: Endpoint, client: SmokeClient) -> bool:
    """Whether the model is decoupled: by its own word, else by the bundle's, else it is."""
    try:
        with reading():
            async with asyncio.timeout(QUESTION_S):
                return is_decoupled(await client.config())
    except (CheckFailure, RequestRejected, TimeoutError):
        return bool(endpoint.options.get("triton_config", {}).get("decoupled", True))


def stop(endpoint: Endpoint, server: ServerProcess, shm_prefix: str | None) -> list[CheckResult]:
    """P25: stop the server during a stream of each transport. It is stopped afterwards."""
    return asyncio.run(_stop(endpoint, server, shm_prefix))


async def _stop(
    endpoint: Endpoint, server: ServerProcess, shm_prefix: str | None
) -> list[CheckResult]:
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
    left = _stop_failures(server, shm_prefix)
    seconds = round(time.monotonic() - start, 3)
    results = []
    for client, end in zip(transports, ends, strict=True):
        failures = [*left, *([end] if end else [])]
        outcome: Outcome = "failed" if failures else "passed"
        stream = "its stream ran to its end, " if client.streams else ""
        evidence = "; ".join(failures) or f"{stream}exit status 0, nothing left"
        results.append(
            CheckResult(
                STOP_ID, STOP_TITLE, STOP_REASON, client.transport, outcome, evidence, seconds
            )
        )
    return results


async def _stream(client: SmokeClient, begun: asyncio.Event) -> str:
    """What was wrong with a stream, or an empty text; a client that does not stream has none."""
    if not client.streams:
        begun.set()
        return ""
    last: Completion | None = None
    try:
        with reading():
            async with asyncio.timeout(CHECK_TIMEOUT_S), aclosing(client.stream(LONG)) as parts:
                async for part in parts:
                    begun.set()
                    last = part if part.finish_reason else last
    except TimeoutError:
        return f"the stream has not ended after {CHECK_TIMEOUT_S:.0f} s"
    except (CheckFailure, RequestRejected) as error:
        return f"the stream was cut off: {error}"
    finally:
        begun.set()
    return "" if last and last.finish_reason in REASONS else "the stream has no finish_reason"


def _stop_failures(server: ServerProcess, shm_prefix: str | None) -> list[str]:
    status = server.exit_status(0)
    failures = [] if status == 0 else [f"exit status {status}, 0 expected"]
    if server.killed:
        failures.append("did not end when asked and was killed")
    if server.left:
        failures.append(f"{server.left} processes were left")
    regions = triton.shared_memory(shm_prefix) if shm_prefix else []
    if regions:
        failures.append(f"shared memory was left: {', '.join(region.name for region in regions)}")
    return failures
