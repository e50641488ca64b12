"""Text from tokens as they come: never half a character, never a part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

INCOMPLETE = "�"


class Tokenizer(Protocol):
    def decode(
        self,
        token_ids: list[int],
        skip_special_tokens: bool = ...,
        clean_up_tokenization_spaces: bool = ...,
    ) -> str: ...


class Detokenizer:
    """The text of a growing sequence of tokens.

    Tokens are decoded together with the ones before them, because some tokenizers write a token
    differently at the start of a text. At most the last character is held back, while it may be
    the beginning of a longer byte sequence.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._tokens: list[int] = []
        self._context = 0  # tokens at the front whose text was given before
        self._given = 0  # characters of the text of `_tokens` that were given

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(
            tokens,
            skip_special_tokens=self._skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )

    def push(self, token: int) -> str:
        """The text that `token` completes."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        complete = not text.endswith(INCOMPLETE)
        end = max(len(text) if complete else len(text) - 1, self._given)
        piece = text[self._given : end]
        self._given = end
        if complete and text:
            self._tokens = self._tokens[self._context :]
            self._context = len(self._tokens)
            self._given = len(self._decode(self._tokens))
        return piece

    def flush(self) -> str:
        """The text held back, where nothing follows."""
        piece = self._decode(self._tokens)[self._given :]
        self._given += len(piece)
        return piece


class StopStrings:
    """Text up to the first stop string, wherever its parts came from."""

    def __init__(self, stops: Sequence[str], include_in_output: bool) -> None:
        self._stops = stops
        self._include_in_output = include_in_output
        self._held = ""

    def push(self, piece: str) -> tuple[str, str | None]:
        """The text that may be given, and the stop string that ended it."""
        self._held += piece
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, stop = min(found, key=lambda hit: hit[0])
            text = self._held[: at + len(stop) * self._include_in_output]
            self._held = ""
            return text, stop
        keep = self._possible_start()
        text, self._held = (
            self._held[: len(self._held) - keep],
            self._held[len(self._held) - keep :],
        )
        return text, None

    def flush(self) -> str:
        text, self._held = self._held, ""
        return text

    def _possible_start(self) -> int:
        """The length of the longest end of the text that could begin a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
