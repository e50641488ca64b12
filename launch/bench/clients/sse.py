"""A request whose answer is a stream of server-sent events, read after its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from ..request import RequestRecord
from .connection import Connector, Malformed
from .http1 import BUSY, OK, HttpExchange, request_bytes
from .transcript import Transcript

SLICE = 128  # events that are read between two looks at what arrives
_read_json = json.JSONDecoder().raw_decode


class EventPattern:
    """An event that was read, but for its text: another one that differs in nothing else needs no
    JSON to be read, which is most of what reading a token costs."""

    def __init__(self) -> None:
        self._before = self._behind = b""

    def learn(self, data: bytes, text: str) -> None:
        """`text` is the value of one string of an event; where it stands must be certain."""
        before, found, behind = data.partition(f'"{text}"'.encode())
        if found and found not in behind and b"\\" not in data:
            self._before, self._behind = before + b'"', b'"' + behind

    def text(self, data: bytes) -> str | None:
        """`None` where this is not certainly such an event."""
        before, behind = self._before, self._behind
        if not (before and data.startswith(before) and data.endswith(behind)):
            return None
        text = data[len(before) : -len(behind)]
        if b'"' in text or b"\\" in text or len(data) < len(before) + len(behind):
            return None
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError:
            return None


async def send(
    server: Connector,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    transcript: Transcript,
) -> RequestRecord:
    request = transcript.request
    all_headers = {**headers, **request.headers}
    exchange = HttpExchange(request_bytes(server.url, "POST", path, all_headers, body))
    async with server.exchange(exchange, request.timeout_s) as failure:
        status, events = None, 0
        try:
            if exchange.head is not None:
                status = exchange.head.status
            if status in (None, OK):
                events = await _read(exchange, transcript)
            failure = failure or exchange.failure()
            if failure is None and not events:
                transcript.event(exchange.ended_ns, exchange.body())
        except Malformed as error:
            transcript.fail("malformed", str(error))
        transcript.end()
        transcript.failure = transcript.failure or failure
        return transcript.record(exchange.sent_ns, exchange.ended_ns, status)


async def _read(exchange: HttpExchange, transcript: Transcript) -> int:
    """How many events there were."""
    events = 0
    for arrived_ns, data in exchange.events():
        transcript.event(arrived_ns, data)
        events += 1
        if not events % SLICE:
            await asyncio.sleep(0)
    return events


def document(data: bytes, transcript: Transcript) -> dict[str, Any] | None:
    """The JSON object of an event. What is none, or is an error, fails the transcript."""
    try:
        found = _read_json(data.decode("utf-8"))[0]
    except ValueError:
        found = None
    if not isinstance(found, dict):
        transcript.fail("malformed", f"no JSON object: {data[:80]!r}")
        return None
    if "error" in found or found.get("object") == "error":
        error = found.get("error") or found
        details: Mapping[str, Any] = error if isinstance(error, dict) else {"message": error}
        transcript.fail(
            "in_stream", str(details.get("message", details)), details.get("code") in BUSY
        )
        return None
    return found
