"""The choice of the next token from the logits of the main model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .results import Logprob
from .sampling_params import SamplingParams


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
