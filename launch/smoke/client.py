"""The client protocol of the checks: requests, responses, exceptions and common expectations."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ..answers import OTHER_FORMS
from ..endpoint import Endpoint

PROMPT = "Once upon a time there was a small village at the edge of a large forest, and"
REASONS = ("stop", "length")

T = TypeVar("T")


class CheckFailure(Exception):
    """The server failed a check; the text has the expected and the actual answer."""


_MOST_LETTERS = 300


@contextmanager
def reading() -> Iterator[None]:
    """Turns errors of reading an answer of an unexpected form into a failed check."""
    try:
        yield
    except OTHER_FORMS as error:
        what = f"an answer of another form: {type(error).__name__}: {error}"
        raise CheckFailure(what[:_MOST_LETTERS]) from error


class Inconclusive(CheckFailure):
    """A check could not decide with this server; a warning, not a failure."""


class NotSupported(Exception):
    """A check does not apply: the server, its transport or this run lacks what it needs."""


class RequestRejected(Exception):
    """The server answered a request with an error of its transport."""


@dataclass(frozen=True, slots=True)
class SmokeRequest:
    """A request, greedy by default. Its values may be invalid on purpose.

    What is `None` is not sent. `prompt` is a text or token ids; `messages` is a chat in its place.
    `parameters` are those of the request, apart from its inputs.
    """

    prompt: object
    max_tokens: object = 16
    stop: tuple[str, ...] = ()
    temperature: object = 0.0
    top_k: object = 1
    top_p: object = None
    seed: int | None = None
    ignore_eos: bool = False
    logprobs: bool = False
    metrics: bool = False
    json_schema: Mapping[str, Any] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    model: str | None = None
    request_id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Completion:
    """One response. `final` is the transport's own mark for the last one of a stream.

    Token counts and the engine's measurements are there where the server reports them. A tool call
    is the name of the function and its arguments as text.
    """

    text: str
    finish_reason: str | None
    final: bool
    request_id: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    logprobs: tuple[float, ...] = ()
    tool_calls: tuple[tuple[str, str], ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)


SHORT = SmokeRequest(PROMPT, max_tokens=8)


class SmokeClient(Protocol):
    """One transport to one server.

    `generate` and `stream` raise `RequestRejected` for an error of the server, `CheckFailure` for
    a malformed response, and `NotSupported` for a request that this server has no input for. A
    stream that is closed early is cancelled.
    """

    streams: bool

    @property
    def transport(self) -> str: ...

    async def ready(self) -> str:
        """Evidence. Raises `CheckFailure` naming the endpoint that is not ready."""

    async def served(self) -> str:
        """The versions of server and model, as text."""

    async def metadata(self) -> Mapping[str, Any]:
        """Triton only: the model's metadata as JSON."""

    async def config(self) -> Mapping[str, Any]:
        """Triton only: the model's configuration as JSON."""

    async def generate(self, request: SmokeRequest) -> Completion:
        """The whole answer to a request without streaming."""

    def stream(
        self, request: SmokeRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[Completion, None]:
        """Raises `RequestRejected` if the server or the transport reports a timeout."""

    async def misuse(self, how: str, request: SmokeRequest) -> str:
        """Misuse the protocol in a way that has this name; transports may not know it.

        Returns the answer of a server that reported no error.
        """

    async def close(self) -> None: ...


# Returns the evidence as text. Raises `CheckFailure`, `RequestRejected` or `NotSupported`.
CheckFunction = Callable[[SmokeClient, Endpoint], Awaitable[str]]


async def collect(client: SmokeClient, request: SmokeRequest) -> list[Completion]:
    """The whole stream, including whatever comes after the final response."""
    return [part async for part in client.stream(request)]


async def concurrently(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; when one fails, the others are cancelled before it is raised."""
    tasks = [asyncio.create_task(request) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def healthy(client: SmokeClient) -> None:
    """Raises `CheckFailure` or `RequestRejected` unless the server is ready and generates."""
    await client.ready()
    expect_text(await client.generate(SHORT))


def expect_text(response: Completion) -> None:
    if not response.text:
        raise CheckFailure(f"no text, finish_reason {response.finish_reason}")
    if response.finish_reason not in REASONS:
        expected = ", ".join(REASONS)
        raise CheckFailure(f"finish_reason is {response.finish_reason}, one of {expected} expected")


def expect_tokens(response: Completion, count: int) -> str:
    """Evidence of exactly `count` tokens, if the server counts them."""
    if response.completion_tokens is None:
        return "the server counts no tokens"
    if response.completion_tokens != count:
        raise CheckFailure(f"{response.completion_tokens} tokens, {count} expected")
    return f"{count} tokens"
