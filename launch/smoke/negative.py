"""Checks of requests that a server must reject, and of clients that leave early."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from ..endpoint import Endpoint
from . import metrics
from .client import (
    PROMPT,
    SHORT,
    CheckFailure,
    CheckFunction,
    Inconclusive,
    NotSupported,
    RequestRejected,
    SmokeClient,
    SmokeRequest,
    concurrently,
)
from .concurrency import RUNNING
from .generation import limit_tokens
from .metrics import REQUESTS

LONG = SmokeRequest(PROMPT, max_tokens=256)
# Tokens of a request that must last, and of longer ones that are sent if it was too short.
LONGER_TOKENS = (256, 2048, 16384)
PROMPT_TOKENS = 128  # at most: more than the prompt has letters
DEADLINE_S = 0.1
# Internals of the server, which an error must not show: they have been used in attacks.
INTERNALS = ("Traceback", "shm_region", "/dev/shm")
MOST_AT_ONCE = 256
# More requests than the server takes.
ABOVE_LIMIT = 8
FREE_TIMEOUT_S = 10.0
LEAVES_S, LEFT_TOKENS = 0.2, 64
RETRY_S = 0.05


def rejects(
    may_serve: tuple[str, ...] = (), unknown_field: bool = False, **wrong: Any
) -> CheckFunction:
    """A check that all kinds of server but `may_serve` reject an invalid request.

    `unknown_field` marks a request with a field that the server does not know.
    """
    request = replace(SHORT, **wrong)

    async def check(client: SmokeClient, endpoint: Endpoint) -> str:
        try:
            response = await client.generate(request)
        except RequestRejected as rejection:
            return _rejection(rejection)
        if endpoint.api in may_serve:
            return "served, which this kind of server may do"
        if unknown_field:
            _check_ignored(endpoint)
        raise CheckFailure(f"served with text {response.text[:40]!r}, an error is expected")

    return check


def rejects_misuse(*ways: str, unknown_field: bool = False) -> CheckFunction:

    async def check(client: SmokeClient, endpoint: Endpoint) -> str:
        evidence = []
        for how in ways:
            try:
                answer = await client.misuse(how, SHORT)
            except RequestRejected as rejection:
                evidence.append(_rejection(rejection))
            else:
                if unknown_field:
                    _check_ignored(endpoint)
                raise CheckFailure(f"{how.replace('_', ' ')} is answered with {answer[:80]!r}")
        return "; ".join(evidence)

    return check


def _check_ignored(endpoint: Endpoint) -> None:
    """Raises `Inconclusive` for a server that is known to ignore unknown fields."""
    if endpoint.record.ignores_unknown_fields:
        what = f"{endpoint.record.title} passes over fields that it does not know"
        raise Inconclusive(f"{what}: a misspelt one goes unnoticed")


async def many_responses(client: SmokeClient, _: Endpoint) -> str:
    """Triton answers with status 200 and an error in the body; half a text must not pass."""
    request = replace(SHORT, max_tokens=32)
    whole = (await client.generate(request)).text
    try:
        answer = await client.misuse("many_responses", request)
    except RequestRejected as rejection:
        return _rejection(rejection)
    if whole not in answer:
        raise CheckFailure(f"a part of the text passes for all of it: {answer[:80]!r}")
    return "the text came in one response"


async def too_long(client: SmokeClient, endpoint: Endpoint) -> str:
    """Every word is at least one token."""
    limit = limit_tokens(endpoint)
    try:
        response = await client.generate(SmokeRequest("word " * (limit + 8), max_tokens=4))
    except RequestRejected as rejection:
        return f"{limit + 8} words {_rejection(rejection)}"
    raise CheckFailure(
        f"{limit + 8} words are served with {response.text[:40]!r}, max_seq_len is {limit}"
    )


async def cancel(client: SmokeClient, endpoint: Endpoint) -> str:
    """A request that its client leaves ends before its last token.

    It may be finished before the server notices; a longer one is tried then. A server that
    finishes even the longest fails.
    """
    finished: _Finished | None = None
    for tokens in _longer_tokens(endpoint):
        try:
            return await _leave(client, endpoint, tokens)
        except _Finished as failure:
            finished = failure
        except RequestRejected:
            if finished is None:
                raise
            break  # longer than this server takes
    assert finished is not None
    raise finished


def _longer_tokens(endpoint: Endpoint) -> list[int]:
    longest_tokens = math.inf
    with suppress(NotSupported):
        limit = limit_tokens(endpoint)
        longest_tokens = max(limit - PROMPT_TOKENS, limit // 2)
    return [int(min(tokens, longest_tokens)) for tokens in LONGER_TOKENS]


class _Finished(CheckFailure):
    """The server generated all of a request that its client had left."""


async def _leave(client: SmokeClient, endpoint: Endpoint, tokens: int) -> str:
    """Leaves a request after its first text. Raises `_Finished`.

    A model that counts requests must count it as cancelled; an engine that counts running requests
    and tokens must end it early.
    """
    before: metrics.Metrics = {}
    with suppress(NotSupported):
        before = await metrics.read_settled(endpoint)
    async with aclosing(client.stream(replace(LONG, max_tokens=tokens))) as responses:
        async for response in responses:
            if response.text:
                break
    if metrics.total(before, REQUESTS) is None:
        return await _ended_early(endpoint, before, tokens)

    def counted(now: metrics.Metrics, outcome: str) -> bool:
        return _of(now, outcome) > _of(before, outcome)

    after = await metrics.wait_until(
        endpoint,
        lambda now: (
            any(counted(now, outcome) for outcome in ("cancelled", "finished"))
            and not metrics.total(now, RUNNING)
        ),
    )
    if running := metrics.total(after, RUNNING):
        raise CheckFailure(f"{running:.0f} requests still run, none expected")
    if counted(after, "cancelled"):
        return "left after the first text; the model counts it as cancelled"
    kind = _Finished if counted(after, "finished") else CheckFailure
    raise kind("the model does not count the request that was left as cancelled")


def _of(now: metrics.Metrics, outcome: str) -> float:
    return metrics.total(now, REQUESTS, outcome=outcome) or 0


async def _ended_early(endpoint: Endpoint, before: metrics.Metrics, tokens: int) -> str:
    """Nothing runs any more, and not all tokens were generated."""
    names = [metrics.by_word(before, endpoint, word) for word in ("running", "tokens_out")]
    running, generated_tokens = names
    if running is None or generated_tokens is None:
        return "left after the first text"
    after = await metrics.wait_until(endpoint, lambda now: not metrics.total(now, running))
    if count := metrics.total(after, running):
        raise CheckFailure(f"{count:.0f} requests still run, none expected")
    totals = (metrics.total(now, generated_tokens) or 0 for now in (after, before))
    if (generated := next(totals) - next(totals)) >= tokens:
        raise _Finished(f"all {generated:.0f} tokens were generated for a client that had left")
    return f"left after the first text; the engine ended after {generated:.0f} tokens"


async def deadline(client: SmokeClient, _: Endpoint) -> str:
    count = 0
    try:
        async with aclosing(client.stream(replace(LONG, max_tokens=1024), DEADLINE_S)) as responses:
            async for _response in responses:
                count += 1
    except RequestRejected as rejection:
        return f"{count} responses, then {rejection}"
    return f"all {count} responses came in time"


async def overload(client: SmokeClient, endpoint: Endpoint) -> str:
    """Of more concurrent streams than the model takes, the rest is refused immediately.

    The first may end before a busy client has begun the last; longer ones are sent then.
    """
    limit = endpoint.options.get("triton_config", {}).get("max_requests")
    if limit is None or limit > MOST_AT_ONCE:
        raise NotSupported("no limit of requests is known that a smoke test could reach")
    sent, were_taken = f"{limit + ABOVE_LIMIT} concurrent requests", False
    for tokens in _longer_tokens(endpoint):
        refusals, has_begun = await _refusals(client, limit, tokens)
        if refusals and has_begun:
            return f"{len(refusals)} of {limit + ABOVE_LIMIT} refused: {refusals[0]}"
        if refusals and not were_taken:
            raise CheckFailure(f"of {sent} none was taken, the limit is {limit}: {refusals[0]}")
        if refusals:
            break  # longer than this server takes
        were_taken = True
    raise CheckFailure(f"{sent} are all taken, the limit is {limit}")


async def _refusals(client: SmokeClient, limit: int, tokens: int) -> tuple[list[str], bool]:
    """Refusals of more streams than the limit, and whether any stream has begun."""
    refusals: list[str] = []
    begun: set[int] = set()

    async def one(number: int) -> None:
        """A stream that is left as soon as the result is clear."""
        request = replace(LONG, prompt=f"{PROMPT} {number}", max_tokens=tokens)
        try:
            async with aclosing(client.stream(request)) as responses:
                async for _response in responses:
                    begun.add(number)
                    if len(begun) > limit or len(refusals) >= ABOVE_LIMIT:
                        return
        except RequestRejected as rejection:
            refusals.append(str(rejection))

    await concurrently(map(one, range(limit + ABOVE_LIMIT)))
    await _until_taken(client)
    return refusals, bool(begun)


async def _until_taken(client: SmokeClient) -> None:
    deadline_s = time.monotonic() + FREE_TIMEOUT_S
    while True:
        try:
            await client.generate(SHORT)
            return
        except RequestRejected as rejection:
            if time.monotonic() > deadline_s:
                what = f"still refused {FREE_TIMEOUT_S:g} s after all others left: {rejection}"
                raise CheckFailure(what) from None
        await asyncio.sleep(RETRY_S)


async def vanish(client: SmokeClient, endpoint: Endpoint) -> str:
    """After clients of all HTTP requests leave unnoticed, the next one is still served."""
    limit = endpoint.options.get("triton_config", {}).get("max_unary_http_running")
    if client.transport != "http":
        raise NotSupported("Triton tells of clients of gRPC that leave; see N10")
    if limit is None or limit > MOST_AT_ONCE:
        raise NotSupported("no limit of such requests is known that a smoke test could reach")

    async def one(number: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVES_S):
                await client.generate(SmokeRequest(f"{PROMPT} {number}", max_tokens=LEFT_TOKENS))

    await concurrently(map(one, range(limit)))
    begun_s = time.monotonic()
    async with aclosing(client.stream(SHORT)) as responses:
        async for response in responses:
            if response.text:
                break
    waited_s = time.monotonic() - begun_s
    return f"{limit} requests were left, and the next client had text after {waited_s:.1f} s"


def _rejection(rejection: RequestRejected) -> str:
    text = str(rejection)
    if shown := next((word for word in INTERNALS if word in text), None):
        raise CheckFailure(f"the error shows the inside of the server ({shown}): {text[:80]!r}")
    return f"refused: {text}"
