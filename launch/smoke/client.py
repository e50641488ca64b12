"""What the checks ask of a server, and what every transport answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class Fault(Exception):
    """A check found the server at fault; the text says what was expected and what came."""


class Unjudged(Fault):
    """A check could not come to a judgement with this server; that fails nothing."""


class Refused(Exception):
    """The server answered a request with an error, in whatever way its transport has for that."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, greedy unless told otherwise. Its values may be wrong on purpose."""

    prompt: str | None
    max_tokens: object = 16
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    model: str | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """One response of a stream. `final` is the transport's own mark for the last one."""

    text: str
    finish_reason: str | None
    final: bool
    request_id: str = ""


class Client(Protocol):
    """One transport to one server.

    `generate` and `stream` raise `Refused` for an error of the server and `Fault` for an answer
    that no server should give. A stream that is closed early is cancelled.
    """

    @property
    def transport(self) -> str: ...

    @property
    def streams(self) -> bool: ...

    async def ready(self) -> None:
        """Raises `Fault` naming the health endpoint that does not answer as it should."""

    async def metadata(self) -> Mapping[str, Any]:
        """Triton only: the model's metadata as JSON."""

    async def config(self) -> Mapping[str, Any]:
        """Triton only: the model's configuration as JSON."""

    async def generate(self, ask: Ask) -> Part: ...

    def stream(self, ask: Ask) -> AsyncGenerator[Part, None]: ...

    async def close(self) -> None: ...


async def collect(client: Client, ask: Ask) -> list[Part]:
    """The whole stream, including whatever comes after the final response."""
    return [part async for part in client.stream(ask)]
