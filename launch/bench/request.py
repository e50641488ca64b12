"""An ask: one request that a load sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Ask:
    """`prompt` is a text or token ids; `messages` is a chat in its place.

    With `ignore_eos` exactly `max_tokens` tokens must come. A chat API is given a text as one
    message of the user. What is `None` is not sent. `timeout_s` bounds the whole request.
    """

    prompt: str | tuple[int, ...] | None = None
    max_tokens: int = 16
    messages: tuple[Mapping[str, Any], ...] | None = None
    ignore_eos: bool = False
    temperature: float | None = None
    seed: int | None = None
    timeout_s: float = 600.0
    headers: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None  # in place of the one that the endpoint serves
    keep_text: bool = False
    # Have trtllm-serve count the tokens of each message; it costs the server some work.
    count_messages: bool = False
    task: int | None = None
    call: int | None = None
    attempt: int = 0
