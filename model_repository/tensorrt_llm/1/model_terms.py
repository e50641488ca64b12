"""A request in the engine's own terms: only what its release knows, and only what it can serve.

What an engine can do is asked of the engine itself: names of parameters are those of its classes
and methods, so that a release may have more or fewer.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from model_chat import Chat
from model_inputs import Invalid
from model_request import Request
from model_sampling import PREFIX

# Sampling parameters that hold token ids.
TOKEN_LISTS = ("stop_token_ids", "bad_token_ids", "top_p_reset_ids")


class Terms:
    """What the engine `llm` understands. Made once, after its start."""

    def __init__(self, llm: Any) -> None:
        from tensorrt_llm import SamplingParams
        from tensorrt_llm.llmapi import GuidedDecodingParams

        self._tokenizer = getattr(llm, "tokenizer", None)
        self._sampling_params = SamplingParams
        self._guided_decoding_params = GuidedDecodingParams
        self._sampling_names = _names(SamplingParams)
        self._num_token_ids = _num_token_ids(self._tokenizer)
        options = getattr(llm, "args", None)
        self._guide_backend = getattr(options, "guided_decoding_backend", None)

    def prompt(self, request: Request) -> str | list[int]:
        """What the engine reads. Raises `Invalid` for a conversation or tokens that it cannot."""
        if isinstance(request.prompt, Chat):
            return request.prompt.render(self._tokenizer)
        if not isinstance(request.prompt, str):
            self._check_tokens("input_ids", request.prompt)
        return request.prompt

    def sampling(self, request: Request) -> Any:
        """The engine's SamplingParams. Raises `Invalid` for what it does not know or allow."""
        given = request.sampling
        for name, value in given.items():
            if not _has(self._sampling_names, name):
                raise Invalid(f"{PREFIX}{name}: this engine's release has no such parameter")
            if name in TOKEN_LISTS:
                self._check_tokens(PREFIX + name, value if isinstance(value, list) else [value])
        guide = given.get("guided_decoding")
        try:
            if guide is None:
                return self._sampling_params(**given)
            guided = self._guided(guide)
            return self._sampling_params(**{**given, "guided_decoding": guided})
        except ValueError as fault:
            raise Invalid(str(fault)) from fault

    def _guided(self, guide: Mapping[str, Any]) -> Any:
        [name] = guide
        where = f"{PREFIX}guided_decoding_{name}"
        if self._guide_backend is None:
            what = "this engine was started without guided decoding"
            raise Invalid(f"{where}: {what}; set guided_decoding_backend in model.yaml")
        if not _has(_names(self._guided_decoding_params), name):
            raise Invalid(f"{where}: this engine's release has no such guide")
        return self._guided_decoding_params(**guide)

    def _check_tokens(self, name: str, ids: Iterable[int]) -> None:
        """An id that the model has no row for is a fault of the GPU, which ends the engine."""
        highest = max(ids)
        if self._num_token_ids is not None and highest >= self._num_token_ids:
            most = self._num_token_ids - 1
            raise Invalid(f"{name}: holds {highest}; this model's token ids are 0 to {most}")


def _names(callee: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(callee).parameters


def _has(names: Mapping[str, inspect.Parameter], name: str) -> bool:
    return name in names or any(one.kind is one.VAR_KEYWORD for one in names.values())


def _num_token_ids(tokenizer: Any) -> int | None:
    """The size of the vocabulary with its added tokens; the engine wraps the tokenizer in its own.

    `None` where no tokenizer says: the engine then judges by itself.
    """
    inner = getattr(tokenizer, "tokenizer", tokenizer)
    return len(inner) if hasattr(inner, "__len__") else None
