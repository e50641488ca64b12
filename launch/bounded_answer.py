"""Answers of servers that may be anybody's: of bounded length, and never unpacked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping

import httpx

# Pages of metrics and the streams of checks have a tenth of it at most.
MAX_BYTES = 8 << 20
# What a client of them has to ask for.
UNPACKED: Mapping[str, str] = {"Accept-Encoding": "identity"}


class _Bounded(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that breaks off where it becomes too long."""

    def __init__(self, body: httpx.SyncByteStream | httpx.AsyncByteStream, max_bytes: int) -> None:
        self._body = body
        self._max_bytes = self._left = max_bytes

    def __iter__(self) -> Iterator[bytes]:
        assert isinstance(self._body, httpx.SyncByteStream)
        yield from map(self._counted, self._body)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._body, httpx.AsyncByteStream)
        async for part in self._body:
            yield self._counted(part)

    def _counted(self, part: bytes) -> bytes:
        self._left -= len(part)
        if self._left < 0:
            raise httpx.ReadError(f"an answer of more than {self._max_bytes >> 20} MiB")
        return part

    def close(self) -> None:
        assert isinstance(self._body, httpx.SyncByteStream)
        self._body.close()

    async def aclose(self) -> None:
        assert isinstance(self._body, httpx.AsyncByteStream)
        await self._body.aclose()


def bound(response: httpx.Response, max_bytes: int = MAX_BYTES) -> None:
    """To be called before anything of the body is read: an event hook of a client."""
    response.headers.pop("content-encoding", None)  # nobody asked for a packed one
    response.stream = _Bounded(response.stream, max_bytes)


async def bound_async(response: httpx.Response, max_bytes: int = MAX_BYTES) -> None:
    bound(response, max_bytes)
