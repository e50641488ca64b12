"""Streamed text: what is new of a cumulative text, once it is sure to stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# What a tokenizer writes for bytes that are no character, or not yet.
INCOMPLETE = "\ufffd"


class Deltas:
    """The text that is new since it was last taken, per output sequence of one request.

    Computed from the cumulative texts, so that nothing is lost where the engine advanced by
    several steps at once. What the engine may still take back is kept until a sequence has ended:
    the beginning of a character, and of one of the `stops`.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stops)
        self._longest_stop = max(map(len, self._stops), default=0)
        self._sent: dict[int, int] = {}

    def take(self, outputs: Sequence[Any]) -> list[str]:
        new = []
        for index, output in enumerate(outputs):
            text, sent = output.text, self._sent.get(index, 0)
            end = len(text) if output.finish_reason is not None else self._settled(text, sent)
            new.append(text[sent:end])
            self._sent[index] = max(sent, end)
        return new

    def _settled(self, text: str, sent: int) -> int:
        """Up to where the text stays as it is; `sent` at least."""
        end = len(text)
        while end > sent and text[end - 1] == INCOMPLETE:
            end -= 1
        for start in range(max(sent, end - self._longest_stop + 1), end):
            tail = text[start:end]
            if any(stop.startswith(tail) for stop in self._stops):
                return start
        return end
