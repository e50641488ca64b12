"""Triton's `generate_stream`: a POST whose answer is server-sent events.

The extension marks no final event; the one with a finish reason is taken for it.
"""

from __future__ import annotations

import json

from builder.diagnostics import Diagnostic
from builder.errors import BadInput

from ...smoke.client import NotSupported
from ...smoke.endpoint import Endpoint
from ...smoke.triton_tensors import PUBLISHED
from ..record import Record
from ..request import Ask
from . import sse
from .http1 import HttpServer
from .transcript import Transcript
from .triton_answer import TritonReader, tensors


class GenerateStreamClient:
    def __init__(self, endpoint: Endpoint) -> None:
        self._server = HttpServer.of(endpoint)
        self._headers = endpoint.access.http_headers
        self._model = endpoint.model or endpoint.record.default_model or ""
        self._declared: dict[str, str] | None = None

    async def prepare(self) -> None:
        """Raises `NotReady` where the model is not served."""
        await self._server.prepare()
        found = await self._server.document(f"/v2/models/{self._model}", self._headers)
        rows = found.get("inputs") or ()
        self._declared = {row["name"]: row["datatype"] for row in rows} or dict(PUBLISHED)

    async def ask(self, ask: Ask, index: int, scheduled_ns: int | None = None) -> Record:
        if self._declared is None:
            await self.prepare()
        path = f"/v2/models/{ask.model or self._model}/generate_stream"
        reader = _Reader(Transcript(ask))
        return await sse.ask(
            self._server, path, self._headers, self._body(ask), reader, index, scheduled_ns
        )

    async def close(self) -> None:
        """Every connection ended with its request."""

    def _body(self, ask: Ask) -> bytes:
        """Inputs of one element as scalars, which is how the extension writes them."""
        try:
            rows = tensors(ask, self._declared or {})
        except NotSupported as fault:
            raise BadInput(Diagnostic(self._model, str(fault))) from None
        body = {name: row[0] if len(row) == 1 else list(row) for name, row in rows.items()}
        return json.dumps(body).encode()


class _Reader(TritonReader):
    def event(self, arrived_ns: int, data: bytes) -> None:
        if (values := sse.document(data, self.transcript)) is not None:
            self.response(arrived_ns, values, None)

    def end(self) -> None:
        """The counts came with the event that was final."""
