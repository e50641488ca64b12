"""From logits to output: the choice of the next token, its text, and where stop strings end it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .results import Logprob
from .sampling_params import SamplingParams

# What a tokenizer writes for bytes that are no character, or not yet.
INCOMPLETE = "\ufffd"


class Sampler:
    """The choices of one sequence, with its own random numbers.

    Order: penalties, forbidden tokens, temperature, top-k, top-p, min-p. Log probabilities are
    those of the model, before any of these.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: list[int],
        end_ids: frozenset[int],
        seed: int,
        bad_words: Sequence[list[int]] = (),
    ) -> None:
        self._params = params
        self._prompt = prompt
        self._end_ids = sorted(end_ids)
        self._bad_words = [word for word in bad_words if word]
        self._generator = torch.Generator().manual_seed(seed)

    def choose(self, logits: torch.Tensor, output: list[int]) -> tuple[int, torch.Tensor]:
        """The next token, and the log probabilities of all tokens.

        `logits` has the shape [vocab_size]; `output` are the tokens generated so far.
        """
        logits = logits.float().cpu()
        allowed = self._forbid(self._penalize(logits.clone(), output), output)
        if self._params.greedy:
            token = int(allowed.argmax())
        else:
            weights = self._probabilities(allowed)
            token = int(torch.multinomial(weights, 1, generator=self._generator))
        return token, torch.log_softmax(logits, dim=-1)

    def _penalize(self, logits: torch.Tensor, output: list[int]) -> torch.Tensor:
        params = self._params
        if (penalty := params.repetition_penalty) not in (None, 1.0):
            seen = torch.tensor(sorted({*self._prompt, *output}), dtype=torch.long)
            values = logits[seen]
            logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
        presence, frequency = params.presence_penalty or 0.0, params.frequency_penalty or 0.0
        if presence or frequency:
            counted = self._prompt[max(0, params.prompt_ignore_length or 0) :] + output
            tokens, counts = torch.unique(
                torch.tensor(counted, dtype=torch.long), return_counts=True
            )
            logits[tokens] -= presence + frequency * counts
        return logits

    def _forbid(self, logits: torch.Tensor, output: list[int]) -> torch.Tensor:
        """Bad tokens, the last token of a bad word whose others are there, and an early end."""
        forbidden = list(self._params.bad_token_ids or ())
        forbidden += [word[-1] for word in self._bad_words if _ends_with(output, word[:-1])]
        if len(output) < (self._params.min_tokens or 0):
            forbidden += self._end_ids
        logits[forbidden] = float("-inf")
        return logits

    def _probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        params = self._params
        logits = logits / (1.0 if params.temperature is None else params.temperature)
        if params.top_k and params.top_k < len(logits):
            logits[logits < logits.topk(params.top_k).values[-1]] = float("-inf")
        probabilities = logits.softmax(dim=-1)
        if params.top_p is not None and params.top_p < 1.0:
            ordered, order = probabilities.sort(descending=True)
            before = ordered.cumsum(dim=-1) - ordered
            probabilities[order[before >= params.top_p]] = 0.0
        if params.min_p:
            probabilities[probabilities < params.min_p * probabilities.max()] = 0.0
        return probabilities


def _ends_with(tokens: list[int], last: list[int]) -> bool:
    return len(tokens) >= len(last) and tokens[len(tokens) - len(last) :] == last


def top_logprobs(values: torch.Tensor, count: int, token: int | None) -> dict[int, Logprob]:
    """The `count` likeliest tokens and `token`, from log probabilities `[vocab_size]`."""
    best = values.topk(min(count, len(values)))
    entries = {
        int(index): Logprob(float(value), rank)
        for rank, (value, index) in enumerate(zip(best.values, best.indices, strict=True), start=1)
    }
    if token is not None and token not in entries:
        rank = int((values > values[token]).sum()) + 1
        entries[token] = Logprob(float(values[token]), rank)
    return entries


class Detokenizer:
    """The text of a growing sequence of tokens.

    Tokens are decoded together with the ones before them, because some tokenizers write a token
    differently at the start of a text. At most the last character is held back, while it may be
    the beginning of a longer byte sequence.
    """

    def __init__(self, tokenizer: Any, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._tokens: list[int] = []
        self._context = 0  # tokens at the front whose text was given before
        self._given = 0  # characters of the text of `_tokens` that were given

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(
            tokens,
            skip_special_tokens=self._skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return text

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
        end = len(self._held) - keep
        text, self._held = self._held[:end], self._held[end:]
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
