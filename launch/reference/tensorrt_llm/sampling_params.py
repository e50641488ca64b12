"""The sampling parameters of a request: the engine's own names, defaults and checks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    """Constraints on the text. Accepted as a value, refused by the reference engine."""

    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None


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
        given = (self.stop,) if isinstance(self.stop, str) else (self.stop or ())
        return tuple(text for text in given if text)

    @property
    def bad_words(self) -> tuple[str, ...]:
        """The words that must not come; empty ones are left out."""
        given = (self.bad,) if isinstance(self.bad, str) else (self.bad or ())
        return tuple(text for text in given if text)

    @property
    def unsupported(self) -> list[str]:
        """Parameters that ask for what the reference engine cannot do."""
        return [
            field.name
            for field in fields(self)
            if field.name in _UNSUPPORTED and _asked(getattr(self, field.name))
        ]


_BOUNDS: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (("max_tokens", "n", "best_of", "truncate_prompt_tokens"), lambda v: v >= 1, "at least 1"),
    (("temperature", "top_k", "logprobs", "prompt_logprobs"), lambda v: v >= 0, "at least 0"),
    (("top_p", "min_p"), lambda v: 0 <= v <= 1, "from 0 to 1"),
    (("repetition_penalty",), lambda v: v > 0, "above 0"),
)
_UNSUPPORTED = frozenset(
    {
        "embedding_bias",
        "logits_processor",
        "apply_batched_logits_processor",
        "use_beam_search",
        "top_p_decay",
        "no_repeat_ngram_size",
        "return_context_logits",
        "return_generation_logits",
        "return_encoder_output",
        "additional_model_outputs",
        "lookahead_config",
        "guided_decoding",
    }
)


def _asked(value: Any) -> bool:
    return not (value is None or value is False or (isinstance(value, list | str) and not value))
