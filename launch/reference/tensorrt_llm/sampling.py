"""Samples tokens and their text: a request's parameters, the choice of each token, stop strings.

The parameters have the engine's own names, defaults and checks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .guide import Guide, GuidedDecodingParams

# What a tokenizer writes for bytes that are no character, or not yet.
INCOMPLETE = "\ufffd"


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """How one request is decoded.

    Greedy decoding is meant where temperature, top_p and top_k are all unset, or where one of them
    leaves a single choice. `max_tokens` of `None` means as many as fit.
    """

    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int | None = 32
    bad: str | list[str] | None = None
    bad_token_ids: list[int] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: Any = None
    logits_processor: Any = None
    apply_batched_logits_processor: bool = False

    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False

    top_k: int | None = None
    top_p: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: int | None = None
    top_p_decay: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    beam_search_diversity_rate: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    prompt_ignore_length: int | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    no_repeat_ngram_size: int | None = None
    min_p: float | None = None
    beam_width_array: list[int] | None = None

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = True
    return_encoder_output: bool = False
    return_perf_metrics: bool = False
    additional_model_outputs: list[Any] | None = None

    lookahead_config: Any = None
    guided_decoding: GuidedDecodingParams | None = None

    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    def __post_init__(self) -> None:
        if self.pad_id is None:
            self.pad_id = self.end_id
        if self.best_of is None:
            self.best_of = self.n
        for names, holds, text in _BOUNDS:
            for name in names:
                value = getattr(self, name)
                if value is not None and not holds(value):
                    raise ValueError(f"{name} must be {text}, got {value}")
        if self.best_of < self.n:
            raise ValueError(f"best_of must be >= n ({self.n}), got {self.best_of}")
        if self.best_of > 1 and self.greedy and not os.environ.get("TLLM_ALLOW_N_GREEDY_DECODING"):
            raise ValueError(
                f"greedy decoding gives one text only, got n={self.n} and best_of={self.best_of}; "
                "set a temperature, top_p or top_k"
            )

    @property
    def greedy(self) -> bool:
        return (
            (self.temperature is None and self.top_p is None and self.top_k is None)
            or self.top_k == 1
            or self.top_p == 0.0
            or self.temperature == 0.0
        )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings; empty ones, which stop nothing, are left out."""
        return _words(self.stop)

    @property
    def bad_words(self) -> tuple[str, ...]:
        """The words that must not come; empty ones are left out."""
        return _words(self.bad)

    @property
    def unsupported(self) -> list[str]:
        """Parameters that ask for what the reference engine cannot do."""
        found = [name for name in _UNSUPPORTED if _asked(getattr(self, name))]
        return [*found, "best_of"] if (self.best_of or 1) > self.n else found


_BOUNDS: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (("max_tokens", "n", "best_of", "truncate_prompt_tokens"), lambda v: v >= 1, "at least 1"),
    (("temperature", "top_k", "logprobs", "prompt_logprobs"), lambda v: v >= 0, "at least 0"),
    (("top_p", "min_p"), lambda v: 0 <= v <= 1, "from 0 to 1"),
    (("repetition_penalty",), lambda v: v > 0, "above 0"),
)
_UNSUPPORTED = (
    *("embedding_bias", "logits_processor", "apply_batched_logits_processor", "use_beam_search"),
    *("top_p_decay", "no_repeat_ngram_size", "return_context_logits", "return_generation_logits"),
    *("return_encoder_output", "additional_model_outputs", "lookahead_config"),
)


def _words(given: str | list[str] | None) -> tuple[str, ...]:
    return tuple(filter(None, [given] if isinstance(given, str) else given or ()))


def _asked(value: Any) -> bool:
    return not (value is None or value is False or (isinstance(value, list | str) and not value))


@dataclass(slots=True)
class Logprob:
    """The log probability of a token and its rank in the vocabulary, 1 for the likeliest."""

    logprob: float
    rank: int | None = None


class Sampler:
    """The choices of one sequence, with its own random numbers.

    Order: penalties, forbidden tokens, the grammar, temperature, top-k, top-p, min-p. Log
    probabilities are those of the model, before any of these.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: list[int],
        end_ids: frozenset[int],
        seed: int,
        bad_words: Sequence[list[int]] = (),
        guide: Guide | None = None,
    ) -> None:
        self._params, self._guide = params, guide
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
        if self._guide:
            allowed = self._guide.mask(allowed)
        if self._params.greedy:
            token = int(allowed.argmax())
        else:
            weights = self._probabilities(allowed)
            token = int(torch.multinomial(weights, 1, generator=self._generator))
        if self._guide:
            self._guide.accept(token)
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
            return self.flush()[: at + len(stop) * self._include_in_output], stop
        end = len(self._held) - self._possible_start()
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
