"""A check as a row: what it asks, why, where it applies; and what several checks share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from .client import Ask, Client, Fault, Part
from .endpoint import Endpoint

PROMPT = "Once upon a time there was a small village at the edge of a large forest, and"
SHORT = Ask(PROMPT, max_tokens=8)
REASONS = ("stop", "length")
TOPICS = ("rivers", "bread", "winter", "music", "horses", "ships", "stars", "letters")

T = TypeVar("T")
Function = Callable[[Client, Endpoint], Awaitable[str]]
Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Check:
    """`reason` says what goes wrong without it.

    `streams` says whether it needs a model that streams, or one that does not; `rendered` that it
    needs a bundle.

    A `negative` one misuses the server, which must be healthy afterwards.
    """

    id: str
    title: str
    reason: str
    function: Function
    kinds: tuple[str, ...] = ("triton", "trtllm_serve")
    streams: bool | None = None
    rendered: bool = False
    level: Level = "error"

    @property
    def negative(self) -> bool:
        return self.id.startswith("N")

    def hindrance(self, client: Client, endpoint: Endpoint) -> str | None:
        """Why it does not apply to this server over this transport, if so."""
        if endpoint.kind not in self.kinds:
            return f"not for {endpoint.kind}"
        if self.streams not in (None, client.streams):
            how = "decoupled and streams" if client.streams else "not decoupled and does not stream"
            return f"the model is {how}"
        if self.rendered and not endpoint.is_rendered:
            return "no bundle says what this server should be"
        return None


async def at_once(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; when one fails, the others are ended before that is told."""
    tasks = [asyncio.create_task(request) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def healthy(client: Client) -> None:
    """After whatever happened: the server is ready and generates."""
    await client.ready()
    expect_text(await client.generate(SHORT))


def expect_text(part: Part) -> None:
    if not part.text:
        raise Fault(f"no text, finish_reason {part.finish_reason}")
    if part.finish_reason not in REASONS:
        raise Fault(f"finish_reason is {part.finish_reason}, one of {', '.join(REASONS)} expected")


def expect_tokens(part: Part, count: int) -> str:
    """That exactly so many tokens came, where the server counts them; in words."""
    if part.completion_tokens is None:
        return "the server counts no tokens"
    if part.completion_tokens != count:
        raise Fault(f"{part.completion_tokens} tokens, {count} expected")
    return f"{count} tokens"
