"""Checks of what a server must refuse, and of clients that leave; it is healthy afterwards."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from . import metrics
from .check import PROMPT, SHORT, Function, at_once
from .client import Ask, Client, Fault, NotOffered, Refused
from .endpoint import Endpoint
from .features import limit_tokens
from .metrics import REQUESTS
from .together import RUNNING

LONG = Ask(PROMPT, max_tokens=256)
DEADLINE_S = 0.1
# What an error must not show: the inside of the server, which has been used to break into it.
INTERNALS = ("Traceback", "shm_region", "/dev/shm")
MOST_AT_ONCE = 256
# More requests than the server takes.
ABOVE_LIMIT = 8
CROWD_TIMEOUT_S = 10.0
RETRY_S = 0.05


def refused(may_serve: tuple[str, ...] = (), **wrong: Any) -> Function:
    """A check that a wrong request is refused, by all kinds of server but `may_serve`."""
    ask = replace(SHORT, **wrong)

    async def check(client: Client, endpoint: Endpoint) -> str:
        try:
            part = await client.generate(ask)
        except Refused as refusal:
            return _judged(refusal)
        if endpoint.kind in may_serve:
            return "served, which this kind of server may do"
        raise Fault(f"served with text {part.text[:40]!r}, an error is expected")

    return check


def misused(*ways: str, harmless: bool = False) -> Function:
    """A check that using the protocol wrongly is refused, or at least without consequences."""

    async def check(client: Client, _: Endpoint) -> str:
        seen = []
        for how in ways:
            try:
                answer = await client.misuse(how, SHORT)
            except Refused as refusal:
                seen.append(_judged(refusal))
                continue
            if not harmless:
                raise Fault(f"{how.replace('_', ' ')} is answered with {answer[:80]!r}")
            seen.append("passed over")
        return "; ".join(seen)

    return check


async def many_responses(client: Client, _: Endpoint) -> str:
    """Status 200 and an error in the body is what Triton gives; half of a text must not pass."""
    ask = replace(SHORT, max_tokens=32)
    whole = (await client.generate(ask)).text
    try:
        answer = await client.misuse("many_responses", ask)
    except Refused as refusal:
        return _judged(refusal)
    if whole not in answer:
        raise Fault(f"a part of the text passes for all of it: {answer[:80]!r}")
    return "the text came in one response"


async def too_long(client: Client, endpoint: Endpoint) -> str:
    """Every word is at least one token."""
    limit = limit_tokens(endpoint)
    try:
        part = await client.generate(Ask("word " * (limit + 8), max_tokens=4))
    except Refused as refusal:
        return f"{limit + 8} words {_judged(refusal)}"
    raise Fault(f"{limit + 8} words are served with {part.text[:40]!r}, max_seq_len is {limit}")


async def cancel(client: Client, endpoint: Endpoint) -> str:
    """Where the model counts its requests, the cancelled one is seen to end as that."""
    before = await _metrics(endpoint)
    async with aclosing(client.stream(LONG)) as parts:
        async for part in parts:
            if part.text:
                break
    if metrics.total(before, REQUESTS) is None:
        return "left after the first text"

    def cancelled(now: metrics.Metrics) -> float:
        return metrics.total(now, REQUESTS, outcome="cancelled") or 0

    after = await metrics.until(
        endpoint, lambda now: cancelled(now) > cancelled(before) and not metrics.total(now, RUNNING)
    )
    if cancelled(after) <= cancelled(before):
        raise Fault("the model does not count the request that was left as cancelled")
    if running := metrics.total(after, RUNNING):
        raise Fault(f"{running:.0f} requests still run, none expected")
    return "left after the first text; the model counts it as cancelled"


async def deadline(client: Client, _: Endpoint) -> str:
    count = 0
    try:
        async with aclosing(client.stream(replace(LONG, max_tokens=1024), DEADLINE_S)) as parts:
            async for _part in parts:
                count += 1
    except Refused as refusal:
        return f"{count} responses, then {refusal}"
    return f"all {count} responses came in time"


class _Settled(Exception):
    """Enough was seen; the requests that still run are ended."""


async def overload(client: Client, endpoint: Endpoint) -> str:
    """More streams at once than the model takes: the rest is refused at once."""
    limit = endpoint.options.get("triton_config", {}).get("max_requests")
    if limit is None or limit > MOST_AT_ONCE:
        raise NotOffered("no limit of requests is known that a smoke test could reach")
    refusals: list[str] = []
    begun: set[int] = set()
    wanted = limit + ABOVE_LIMIT

    async def one(number: int) -> None:
        try:
            async with aclosing(client.stream(replace(LONG, prompt=f"{PROMPT} {number}"))) as parts:
                async for _part in parts:
                    begun.add(number)
                    if len(begun) > limit:
                        raise _Settled
        except Refused as refusal:
            refusals.append(str(refusal))
        if len(refusals) >= ABOVE_LIMIT:
            raise _Settled

    with suppress(_Settled):
        await at_once(map(one, range(wanted)))
    await _until_taken(client)
    if not refusals:
        raise Fault(f"{wanted} requests at once are all taken, the limit is {limit}")
    return f"{len(refusals)} of {wanted} refused: {refusals[0]}"


async def _until_taken(client: Client) -> None:
    """The server has noticed that the crowd left, and takes a request again."""
    deadline_s = time.monotonic() + CROWD_TIMEOUT_S
    while True:
        try:
            await client.generate(SHORT)
            return
        except Refused as refusal:
            if time.monotonic() > deadline_s:
                what = f"still refused {CROWD_TIMEOUT_S:g} s after the crowd left: {refusal}"
                raise Fault(what) from None
        await asyncio.sleep(RETRY_S)


def _judged(refusal: Refused) -> str:
    text = str(refusal)
    if shown := next((word for word in INTERNALS if word in text), None):
        raise Fault(f"the error shows the inside of the server ({shown}): {text[:80]!r}")
    return f"refused: {text}"


async def _metrics(endpoint: Endpoint) -> metrics.Metrics:
    if endpoint.kind != "triton":
        return {}
    try:
        return await metrics.read(endpoint)
    except NotOffered:
        return {}
