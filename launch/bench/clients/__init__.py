"""Load clients: each sends a `LoadRequest` and gives back its `RequestRecord`.

While a request runs, a client only keeps what arrives and when. It is read after the request has
ended, in slices, so that reading one answer delays the time stamps of no other.
"""

from __future__ import annotations

from typing import Literal, Protocol, get_args

from builder.diagnostics import Diagnostic
from builder.errors import BadInput

from ...endpoint import Endpoint
from ..request import LoadRequest, RequestRecord

Api = Literal["openai_chat", "openai_completions", "generate_stream", "grpc"]
APIS: tuple[Api, ...] = get_args(Api)


class LoadClient(Protocol):
    async def prepare(self) -> None:
        """Ask the server once for what every request needs. Raises `NotReady`."""

    async def send(self, request: LoadRequest) -> RequestRecord:
        """Always ends, within the timeout of the request; a fault of the server raises nothing."""


def connect(endpoint: Endpoint, api: Api) -> LoadClient:
    """A client that is not prepared yet. Raises `BadInput` where the endpoint has no such API."""
    address = endpoint.grpc if api == "grpc" else endpoint.url
    if api not in endpoint.record.client_apis or not address:
        known = ", ".join(offered(endpoint))
        raise BadInput(
            Diagnostic(str(address or endpoint.grpc), f"offers no {api}", f"known: {known}")
        )
    if api == "grpc":
        from .kserve_grpc import GrpcClient

        return GrpcClient(endpoint)
    if api == "generate_stream":
        from .triton import GenerateStreamClient

        return GenerateStreamClient(endpoint)
    from .openai_sse import OpenAILoadClient

    return OpenAILoadClient(endpoint, chat=api == "openai_chat")


def offered(endpoint: Endpoint) -> tuple[Api, ...]:
    """The APIs of an endpoint, best for measuring first."""
    known = [api for api in APIS if api in endpoint.record.client_apis]
    known.sort(key=endpoint.record.client_apis.index)
    return tuple(api for api in known if (endpoint.grpc if api == "grpc" else endpoint.url))
