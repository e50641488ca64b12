"""Checks of concurrent requests: no answer goes to another client, and the server's counters.

Quantized and sparse models may give other tokens in another batch, so that equal texts are not
expected here, but no request may get the text of another one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Set
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import httpx

from ..bounded_answer import client as session
from ..endpoint import Endpoint
from . import metrics
from .client import (
    PROMPT,
    SHORT,
    CheckFailure,
    Inconclusive,
    NotSupported,
    SmokeClient,
    SmokeRequest,
    concurrently,
    expect_text,
)
from .generation import MEDIUM, difference
from .http import parse_json, receive
from .metrics import MODEL, REQUESTS

TOPICS = ("rivers", "bread", "winter", "music", "horses", "ships", "stars", "letters")
AT_ONCE = 8
TRIES = 12
COUNTED = 4
SOAK = 64
SOAK_AT_ONCE = 16
BEGIN_TIMEOUT_S = 30.0
# Triton's own counts, and those of the toolkit's model.
SUCCESSES, PENDING = "nv_inference_request_success", "nv_inference_pending_request_count"
RUNNING, KV_CACHE = f"{MODEL}requests_running", f"{MODEL}kv_cache_utilization"
# How trtllm-serve labels its metrics where it does not know the model's name.
UNDEFINED = {"undefined"}


async def own_answers(client: SmokeClient, _: Endpoint) -> str:
    requests, alone = await _alone(client)
    together = await concurrently(client.generate(request) for request in requests)
    for request, response in zip(requests, together, strict=True):
        expect_text(response)
        if response.request_id and response.request_id != request.request_id:
            raise CheckFailure(
                f"request {request.request_id} got the answer of {response.request_id}"
            )
    for index, response in enumerate(together):
        owners = [other for other, text in enumerate(alone) if text == response.text]
        if owners and index not in owners:
            raise CheckFailure(
                f"request {index} got the text that request {owners[0]} gets when alone"
            )
    ids = "ids and texts" if together[0].request_id else "texts"
    return f"{len(requests)} concurrent requests, {ids} of their own"


async def batch_text(client: SmokeClient, _: Endpoint) -> str:
    requests, alone = await _alone(client)
    together = await concurrently(client.generate(request) for request in requests)
    different = [i for i, response in enumerate(together) if response.text != alone[i]]
    if different:
        first = different[0]
        where = difference(together[first].text, alone[first])
        raise CheckFailure(
            f"{len(different)} of {len(requests)} texts differ from alone; the first {where}"
        )
    return f"{len(requests)} texts are the same as alone"


async def overlap(client: SmokeClient, endpoint: Endpoint) -> str:
    """As many streams as the plan runs concurrently, at most eight, with `max_tokens` and without:
    others begin before the first one has ended."""
    at_once = min(AT_ONCE, planned_requests(endpoint.options) or AT_ONCE)
    if at_once == 1:
        raise NotSupported("the deployment runs one request at a time")
    begins = []
    for limit in (64, None):
        name = "without max_tokens" if limit is None else f"max_tokens {limit}"
        for _try in range(TRIES):  # on a busy machine, one may end before others could begin
            begun = await _begun_before_an_end(client, limit, at_once)
            if begun != 1:
                break
        else:
            raise CheckFailure(
                f"{name}: the second of {at_once} begins when the first one has ended"
            )
        begins.append(f"{begun} of {at_once} {name}")
    return f"begun before one ends: {', '.join(begins)}"


def planned_requests(options: Mapping[str, Any]) -> int | None:
    """The rendered number of concurrent requests; attention DP has a batch per rank."""
    if (batch := options.get("max_batch_size")) is None:
        return None
    ranks = options.get("tensor_parallel_size") if options.get("enable_attention_dp") else None
    return int(batch) * int(ranks or 1)


async def counters(client: SmokeClient, endpoint: Endpoint) -> str:
    """Each counter of successful requests grows by their number, and nothing stays pending."""
    before = await metrics.read_settled(endpoint)
    names = _success_counters(before, endpoint)

    def increases(now: metrics.Metrics) -> dict[str, float]:
        return {
            name: (metrics.total(now, name, **labels) or 0)
            - (metrics.total(before, name, **labels) or 0)
            for name, labels in names.items()
        }

    for _ in range(COUNTED):
        await client.generate(SHORT)
    after = await metrics.wait_until(
        endpoint,
        lambda now: min(increases(now).values()) >= COUNTED and not metrics.total(now, PENDING),
    )
    if wrong := {name: value for name, value in increases(after).items() if value != COUNTED}:
        raise CheckFailure(f"{COUNTED} requests, but the counters grew by {wrong}")
    if pending := metrics.total(after, PENDING):
        raise CheckFailure(f"{PENDING} is {pending:.0f} without a request, 0 expected")
    return f"{', '.join(names)} counted {COUNTED} of {COUNTED} requests, none is pending"


def _success_counters(found: metrics.Metrics, endpoint: Endpoint) -> dict[str, dict[str, str]]:
    """Names and labels of the counters. Raises `NotSupported` where an engine's server has none."""
    if endpoint.api == "kserve":
        names = {SUCCESSES: {"model": endpoint.model or ""}}
        if metrics.total(found, REQUESTS) is not None:
            names[REQUESTS] = {"outcome": "finished"}
        return names
    counter = metrics.by_word(found, endpoint, "succeeded")
    if counter is None:
        raise NotSupported("no counter of successful requests is among the metrics")
    return {counter: {}}


async def served_name(_: SmokeClient, endpoint: Endpoint) -> str:
    """`/v1/models` and the metrics name the same model; some releases name none in metrics."""
    headers = endpoint.access.http_headers
    async with session(endpoint.url or "", metrics.TIMEOUT_S, headers) as http:
        response = await receive(http.get("/v1/models"))
    if response.status_code == httpx.codes.NOT_FOUND:
        raise NotSupported("the server lists no models, as a router of several does not")
    models = parse_json(response.status_code, response.text).get("data") or ()
    names = {str(model.get("id")) for model in models}
    counted = metrics.label_values(await metrics.read(endpoint), "model_name")
    if endpoint.model and endpoint.model not in names:
        raise CheckFailure(f"/v1/models names {_named(names)}, {endpoint.model} expected")
    if counted == UNDEFINED:
        raise Inconclusive(f"/v1/models names {_named(names)}, the metrics no model")
    if not counted:
        raise NotSupported("no sample of the metrics names a model")
    if not counted <= names:
        raise CheckFailure(f"/v1/models names {_named(names)}, the metrics {_named(counted)}")
    return f"/v1/models and the metrics name {_named(counted)}"


def _named(names: Set[str]) -> str:
    return ", ".join(sorted(names)) or "no model"


async def soak(client: SmokeClient, endpoint: Endpoint) -> str:
    """Many requests, however slow. A reported KV cache is as free afterwards as before."""
    gate = asyncio.Semaphore(SOAK_AT_ONCE)
    before = metrics.total(await metrics.read_if_any(endpoint), KV_CACHE)

    async def one(number: int) -> None:
        async with gate:
            topic = TOPICS[number % len(TOPICS)]
            expect_text(await client.generate(SmokeRequest(f"Number {number}, about {topic}:", 8)))

    start = time.monotonic()
    await concurrently(map(one, range(SOAK)))
    rate = SOAK / (time.monotonic() - start)
    evidence = f"{SOAK} requests, {SOAK_AT_ONCE} concurrent, {rate:.0f} per second"
    if before is None:
        return evidence
    idle = before + 0.01
    after = await metrics.wait_until(
        endpoint, lambda now: (metrics.total(now, KV_CACHE) or 0) <= idle
    )
    used = metrics.total(after, KV_CACHE) or 0.0
    if used > idle:
        raise CheckFailure(f"the KV cache is used to {used:.1%} afterwards, {before:.1%} before")
    return f"{evidence}; KV cache used to {used:.1%}"


async def _begun_before_an_end(client: SmokeClient, limit: int | None, at_once: int) -> int:
    """How many streams have begun when the first one ends, or when all have begun."""
    begun: set[int] = set()
    settled = asyncio.Event()
    requests = [replace(MEDIUM, prompt=f"{PROMPT} {topic}", max_tokens=limit) for topic in TOPICS]

    async def one(number: int) -> None:
        async with aclosing(client.stream(requests[number])) as responses:
            async for response in responses:
                if settled.is_set():
                    return
                begun.update({number} if response.text else ())
                if len(begun) == at_once:
                    break
        settled.set()

    try:
        async with asyncio.timeout(BEGIN_TIMEOUT_S):
            await concurrently(map(one, range(at_once)))
    except TimeoutError:
        what = f"{len(begun)} of {at_once} streams have begun after {BEGIN_TIMEOUT_S:g} s"
        raise CheckFailure(what) from None
    return len(begun)


async def _alone(client: SmokeClient) -> tuple[list[SmokeRequest], list[str]]:
    requests = [
        SmokeRequest(f"A short text about {topic}:", 8, request_id=topic) for topic in TOPICS
    ]
    return requests, [(await client.generate(request)).text for request in requests]
