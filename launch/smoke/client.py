"""What the checks ask of a server, and what every transport answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class Fault(Exception):
    """A check found the server at fault; the text says what was expected and what came."""


class Unjudged(Fault):
    """A check could not come to a judgement with this server; that fails nothing."""


class NotOffered(Exception):
    """A check does not apply: the server, its transport or this run has not what it is about."""


class Refused(Exception):
    """The server answered a request with an error, in whatever way its transport has for that."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, greedy unless told otherwise. Its values may be wrong on purpose.

    What is `None` is not sent. `prompt` is a text or token ids; `messages` is a chat in its place.
    `parameters` are the request's own besides its inputs.
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
class Part:
    """One response. `final` is the transport's own mark for the last one of a stream.

    Token counts, and what the engine measured, are there where the server tells them.
    """

    text: str
    finish_reason: str | None
    final: bool
    request_id: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    logprobs: tuple[float, ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)


class Client(Protocol):
    """One transport to one server.

    `generate` and `stream` raise `Refused` for an error of the server, `Fault` for an answer that
    no server should give, and `NotOffered` for an ask that this server has no input for. A stream
    that is closed early is cancelled.
    """

    streams: bool

    @property
    def transport(self) -> str: ...

    async def ready(self) -> str:
        """What says so. Raises `Fault` naming an endpoint that does not answer as it should."""

    async def served(self) -> str:
        """What the server says of its model and of itself, in words."""

    async def metadata(self) -> Mapping[str, Any]:
        """Triton only: the model's metadata as JSON."""

    async def config(self) -> Mapping[str, Any]:
        """Triton only: the model's configuration as JSON."""

    async def generate(self, ask: Ask) -> Part:
        """The whole answer to a request without streaming."""

    def stream(self, ask: Ask, timeout_s: float | None = None) -> AsyncGenerator[Part, None]:
        """Raises `Refused` where the server or the transport says that the time is over."""

    async def misuse(self, how: str, ask: Ask) -> str:
        """Use the protocol wrongly, in a way that a transport may know under this name.

        The text is what the server answered to what is no error for it.
        """

    async def close(self) -> None: ...


async def collect(client: Client, ask: Ask) -> list[Part]:
    """The whole stream, including whatever comes after the final response."""
    return [part async for part in client.stream(ask)]
