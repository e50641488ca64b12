"""HTTP client for untrusted servers: bounds the length and the time of each answer.

An answer is its status and its body. Headers are dropped unread: they name codecs, compressions,
redirects and cookies, and this client asks for none of these. Text is UTF-8.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import httpx

# Pages of metrics have half of it at most. Checks have some 20 answers in memory at a time.
MAX_BYTES = 2 << 20
MAX_STREAM_BYTES = 8 << 20  # 20,000 tokens, which are read as they come
MAX_EVENT_BYTES = 8 << 10  # of one token, with its likeliest others or the text before it
# What a client of them has to ask for.
UNPACKED: Mapping[str, str] = {"Accept-Encoding": "identity"}


def streamed(max_tokens: object) -> Mapping[str, int]:
    """The extensions of a request for a stream of at most so many tokens, where that is a count."""
    if not isinstance(max_tokens, int) or max_tokens < 1:
        return {"max_bytes": MAX_STREAM_BYTES}
    return {"max_bytes": min(MAX_STREAM_BYTES, (max_tokens + 8) * MAX_EVENT_BYTES)}


class TooLate(httpx.ReadTimeout):
    """The whole answer was not there in time, in whatever pieces it came."""


def client(
    url: str,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    max_bytes: int = MAX_BYTES,
) -> httpx.AsyncClient:
    """A client that goes straight to the server, whatever proxy the environment names.

    Everything about a request, from the name's look-up to the last byte of its answer, takes
    `timeout_s` at most, also of a stream.
    No connection is kept: Triton 2.51 waits for open ones when it stops, until its exit timeout.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    # No certificates are loaded where none is shown.
    encrypted = url.startswith("https:")
    return httpx.AsyncClient(
        base_url=url,
        timeout=None,  # each would be of one read; the transport has that of all
        trust_env=False,
        headers={**UNPACKED, **(headers or {})},
        transport=_Transport(timeout_s, max_bytes, encrypted, limits),
    )


class _Transport(httpx.AsyncHTTPTransport):
    def __init__(
        self, timeout_s: float, max_bytes: int, encrypted: bool, limits: httpx.Limits
    ) -> None:
        super().__init__(verify=encrypted, trust_env=False, limits=limits)
        self._timeout_s, self._max_bytes = timeout_s, max_bytes

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        end = _End(self._timeout_s)
        try:
            async with asyncio.timeout_at(end.at):
                answer = await super().handle_async_request(request)
        except TimeoutError:
            raise end.missed() from None
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        max_bytes = request.extensions.get("max_bytes", self._max_bytes)
        body = _Bounded(answer.stream, max_bytes, end)
        return httpx.Response(answer.status_code, stream=body)


class _End:
    """When a conversation has to be over, by the loop's clock."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._now = asyncio.get_running_loop().time
        self.at = self._now() + timeout_s

    @property
    def is_over(self) -> bool:
        return self._now() >= self.at

    def missed(self) -> TooLate:
        return TooLate(f"no whole answer within {self._timeout_s:g} s")


class _Bounded(httpx.AsyncByteStream):
    """A body that breaks off where it becomes too long or too late."""

    def __init__(self, body: httpx.AsyncByteStream, max_bytes: int, end: _End) -> None:
        self._body, self._end = body, end
        self._max_bytes = self._left = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = aiter(self._body)
        while True:
            try:
                async with asyncio.timeout_at(self._end.at):
                    part = await anext(parts)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise self._end.missed() from None
            if self._end.is_over:  # a part that is there already waits for nothing
                raise self._end.missed()
            self._left -= len(part)
            if self._left < 0:
                raise httpx.ReadError(f"an answer of more than {self._max_bytes >> 10:,} KiB")
            yield part

    async def aclose(self) -> None:
        await self._body.aclose()
