"""One HTTP/1.1 request and its answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from builder.diagnostics import Diagnostic
from builder.errors import NotReady

from ...smoke.endpoint import Endpoint
from ..record import Failure, Kind
from . import http_answer
from .connection import PREPARE_TIMEOUT_S, Exchange, Server
from .http_answer import LAST_CHUNK, Answer, Head, Malformed

OK = 200
BUSY = (429, 503)
GATEWAY = (502, 504)


class HttpExchange(Exchange):
    def __init__(self, request: bytes) -> None:
        super().__init__(request)
        self._head: Head | None = None
        self._is_chunked = False

    def look(self, data: bytes) -> None:
        if self._is_chunked:
            if data.endswith(LAST_CHUNK) or len(data) < len(LAST_CHUNK):
                self._look_for_last_chunk()
        else:
            self._look_for_head()

    def answer(self) -> Answer:
        """Raises `Malformed`."""
        return Answer(self.parts, self.arrivals, self.lost)

    def _look_for_head(self) -> None:
        """Whether this is the end of an answer whose head was not there before."""
        raw = b"".join(self.parts)
        try:
            self._head = http_answer.head(raw)
        except Malformed:
            self.end(self.arrivals[-1])
            return
        if self._head is None:
            return
        self._is_chunked = self._head.is_chunked
        if self._is_chunked:
            self._look_for_last_chunk()
        elif self._head.length is not None and len(raw) >= self._head.end + self._head.length:
            self.end(self.arrivals[-1])

    def _look_for_last_chunk(self) -> None:
        if b"".join(self.parts[-len(LAST_CHUNK) :]).endswith(LAST_CHUNK):
            self.end(self.arrivals[-1])


class HttpServer(Server):
    @classmethod
    def of(cls, endpoint: Endpoint) -> HttpServer:
        return cls(endpoint.url or "", endpoint.access)

    def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        parts = urlsplit(self.url)
        lines = {
            "Host": parts.netloc,
            "Connection": "close",
            **({"Content-Type": "application/json"} if body else {}),
            "Content-Length": str(len(body)),
            **headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"{method} {parts.path}{path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body

    async def document(self, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
        """A JSON object that the server tells of itself. Raises `NotReady`."""
        exchange = HttpExchange(self.request("GET", path, headers, b""))
        what = "no JSON object"
        async with self.exchange(exchange, PREPARE_TIMEOUT_S) as failure:
            try:
                answer = exchange.answer()
                found = json.loads(answer.body())
                failure = failure or fault_of(exchange, answer)
                if failure is None and isinstance(found, dict):
                    return found
            except ValueError:
                what = "no JSON"
        raise NotReady(Diagnostic(f"{self.url}{path}", failure.message if failure else what))


def fault_of(exchange: HttpExchange, answer: Answer) -> Failure | None:
    """What is wrong as HTTP with an answer that was read to its end."""
    found = answer.head
    if found is not None and found.status != OK:
        kind: Kind = "unavailable" if found.status in BUSY else "http"
        said = answer.body().decode("utf-8", errors="replace")[:200].strip()
        return Failure(kind, f"{found.status}: {said}", found.status in (*BUSY, *GATEWAY))
    if not answer.is_whole:
        why = exchange.fault or "the connection ended"
        return Failure("cut", f"{why} after {len(exchange.parts)} parts", retryable=True)
    return None
