"""Records of requests that went exactly as written here."""

from __future__ import annotations

from typing import Any

from launch.bench.request import Failure, RequestRecord

MS = 1_000_000


def seen(
    index: int = 0,
    sent_ms: float = 0,
    ttft_ms: float = 50,
    itl_ms: float = 5,
    tokens: int = 5,
    per_message: int = 1,
    counted: bool = True,
    **fields: Any,
) -> RequestRecord:
    """A request with a token each `itl_ms`, a message for so many of them, ended with the last."""
    ends = [min(n + per_message, tokens) for n in range(0, tokens, per_message)]
    at = tuple(int((sent_ms + ttft_ms + itl_ms * (end - 1)) * MS) for end in ends)
    sizes = tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
    values: dict[str, Any] = {
        "sent_ns": int(sent_ms * MS),
        "ended_ns": at[-1],
        "first_token_ns": at[0],
        "last_token_ns": at[-1],
        "message_ns": at,
        "message_tokens": sizes if counted else (),
        "prompt_tokens": 10,
        "output_tokens": tokens,
    }
    return RequestRecord(index, **values | fields).packed()


def failed(index: int = 0, sent_ms: float = 0, kind: Any = "timeout") -> RequestRecord:
    ns = int(sent_ms * MS)
    return RequestRecord(index, ns, ns + MS, failure=Failure(kind, "it took too long"))


def stream(concurrency: int, waves: int, e2e_ms: float = 100, **fields: Any) -> list[RequestRecord]:
    """A closed loop whose requests all take the same time."""
    return [
        seen(
            wave * concurrency + n,
            sent_ms=wave * e2e_ms + n / 1000,
            ttft_ms=e2e_ms / 2,
            itl_ms=e2e_ms / 2 / 4,
            **fields,
        )
        for wave in range(waves)
        for n in range(concurrency)
    ]
