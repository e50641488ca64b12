"""Checks of many requests at once: whose answer is whose, and what the server counts.

Quantized and sparse models may give other tokens in another batch, so that equal texts are not
demanded here, but no request may get the text of another one.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import replace

from . import metrics, streamed
from .check import PROMPT, SHORT, TOPICS, at_once, expect_text
from .client import Ask, Client, Fault, NotOffered
from .endpoint import Endpoint
from .generation import MEDIUM
from .metrics import MODEL, REQUESTS

AT_ONCE = 8
TRIES = 3
SOAK = 64
SOAK_AT_ONCE = 16
BEGIN_TIMEOUT_S = 30.0
# Triton's own counts, and those of the toolkit's model.
SUCCESSES, PENDING = "nv_inference_request_success", "nv_inference_pending_request_count"
RUNNING, KV_CACHE = f"{MODEL}requests_running", f"{MODEL}kv_cache_utilization"
OPENAI_SUCCESSES = "request_success_total"


async def own_answers(client: Client, _: Endpoint) -> str:
    asks, alone = await _alone(client)
    together = await at_once(client.generate(ask) for ask in asks)
    for ask, part in zip(asks, together, strict=True):
        expect_text(part)
        if part.request_id and part.request_id != ask.request_id:
            raise Fault(f"request {ask.request_id} got the answer of {part.request_id}")
    for index, part in enumerate(together):
        owners = [other for other, text in enumerate(alone) if text == part.text]
        if owners and index not in owners:
            raise Fault(f"request {index} got the text that request {owners[0]} gets when alone")
    ids = "ids and texts" if together[0].request_id else "texts"
    return f"{len(asks)} at once, {ids} of their own"


async def batch_text(client: Client, _: Endpoint) -> str:
    asks, alone = await _alone(client)
    together = await at_once(client.generate(ask) for ask in asks)
    different = [i for i, part in enumerate(together) if part.text != alone[i]]
    if different:
        first = different[0]
        where = streamed.difference(together[first].text, alone[first])
        raise Fault(f"{len(different)} of {len(asks)} texts differ from alone; the first {where}")
    return f"{len(asks)} texts are the same as alone"


async def overlap(client: Client, _: Endpoint) -> str:
    """Eight streams, with a limit and without: others begin before the first one has ended."""
    words = []
    for limit in (64, None):
        name = "without max_tokens" if limit is None else f"max_tokens {limit}"
        for _try in range(TRIES):  # on a busy machine, one may end before others could begin
            begun = await _begun_before_an_end(client, limit)
            if begun != 1:
                break
        else:
            raise Fault(f"{name}: the second of {AT_ONCE} begins when the first one has ended")
        words.append(f"{begun} of {AT_ONCE} {name}")
    return f"begun before one ends: {', '.join(words)}"


async def counters(client: Client, endpoint: Endpoint) -> str:
    if endpoint.kind == "trtllm_serve":
        return await _openai_counters(client, endpoint)
    before = await metrics.settled(endpoint)
    for _ in range(4):
        await client.generate(SHORT)
    names = {SUCCESSES: {"model": endpoint.model or ""}}
    if metrics.total(before, REQUESTS) is not None:
        names[REQUESTS] = {"outcome": "finished"}

    def grown(now: metrics.Metrics) -> dict[str, float]:
        return {
            name: (metrics.total(now, name, **labels) or 0)
            - (metrics.total(before, name, **labels) or 0)
            for name, labels in names.items()
        }

    after = await metrics.until(
        endpoint,
        lambda now: min(grown(now).values()) >= 4 and not metrics.total(now, PENDING),
    )
    if wrong := {name: value for name, value in grown(after).items() if value != 4}:
        raise Fault(f"4 requests, but the counters grew by {wrong}")
    if pending := metrics.total(after, PENDING):
        raise Fault(f"{PENDING} is {pending:.0f} with nothing to do, 0 expected")
    return f"{', '.join(names)} count 4 of 4, nothing pending"


async def soak(client: Client, endpoint: Endpoint) -> str:
    """Not judged by time. Where the KV cache is reported, it is as free afterwards as before."""
    gate = asyncio.Semaphore(SOAK_AT_ONCE)
    before = await _kv_cache(endpoint)

    async def one(number: int) -> None:
        async with gate:
            topic = TOPICS[number % len(TOPICS)]
            expect_text(await client.generate(Ask(f"Number {number}, about {topic}:", 8)))

    start = time.monotonic()
    await at_once(map(one, range(SOAK)))
    rate = SOAK / (time.monotonic() - start)
    words = f"{SOAK} requests, {SOAK_AT_ONCE} at once, {rate:.0f} per second"
    if before is None:
        return words
    idle = before + 0.01
    after = await metrics.until(endpoint, lambda now: (metrics.total(now, KV_CACHE) or 0) <= idle)
    used = metrics.total(after, KV_CACHE) or 0.0
    if used > idle:
        raise Fault(f"the KV cache is used to {used:.1%} afterwards, {before:.1%} before")
    return f"{words}; KV cache used to {used:.1%}"


async def _kv_cache(endpoint: Endpoint) -> float | None:
    try:
        return metrics.total(await metrics.read(endpoint), KV_CACHE)
    except NotOffered:
        return None


async def _openai_counters(client: Client, endpoint: Endpoint) -> str:
    before = await metrics.read(endpoint)
    families = {key.partition("{")[0] for key in before if OPENAI_SUCCESSES in key}
    if not families:
        raise NotOffered(f"no {OPENAI_SUCCESSES} among the metrics")
    family = min(families)
    counted = metrics.total(before, family) or 0
    for _ in range(4):
        await client.generate(SHORT)
    after = await metrics.until(
        endpoint, lambda now: (metrics.total(now, family) or 0) >= counted + 4
    )
    grown = (metrics.total(after, family) or 0) - counted
    if grown != 4:
        raise Fault(f"4 requests, but {family} grew by {grown:.0f}")
    return f"{family} counts 4 of 4"


async def _begun_before_an_end(client: Client, limit: int | None) -> int:
    """How many of eight streams have begun when the first one ends, or when all have begun."""
    begun: set[int] = set()
    settled = asyncio.Event()
    asks = [replace(MEDIUM, prompt=f"{PROMPT} {topic}", max_tokens=limit) for topic in TOPICS]

    async def one(number: int) -> None:
        async with aclosing(client.stream(asks[number])) as parts:
            async for part in parts:
                if settled.is_set():
                    return
                begun.update({number} if part.text else ())
                if len(begun) == AT_ONCE:
                    break
        settled.set()

    async with asyncio.timeout(BEGIN_TIMEOUT_S):
        await at_once(map(one, range(AT_ONCE)))
    return len(begun)


async def _alone(client: Client) -> tuple[list[Ask], list[str]]:
    """Different requests, and what each gets with the server to itself."""
    asks = [Ask(f"A short text about {topic}:", 8, request_id=topic) for topic in TOPICS]
    return asks, [(await client.generate(ask)).text for ask in asks]
