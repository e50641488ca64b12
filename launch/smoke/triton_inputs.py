"""The inputs of the Triton model for a request, and its answer, whatever carries them."""

from __future__ import annotations

from typing import Any

from .client import Ask

# Triton's names for the Python types that a request may hold; a wrong type is sent as what it is.
DATATYPES: dict[type, str] = {str: "BYTES", bool: "BOOL", int: "INT32", float: "FP32"}


def inputs(ask: Ask, streaming: bool) -> dict[str, list[Any]]:
    """The elements of every input by its name.

    `top_k` 1 makes every release greedy; some take temperature 0 for that, and some do not. The
    prompt is excluded, since engines put it before a whole text, but not before a streamed one.
    """
    elements: dict[str, list[Any]] = {
        "streaming": [streaming],
        "return_finish_reason": [True],
        "sampling_param_max_tokens": [ask.max_tokens],
        "sampling_param_temperature": [ask.temperature],
        "sampling_param_top_k": [1],
        "sampling_param_exclude_input_from_output": [True],
    }
    if ask.prompt is not None:
        elements["text_input"] = [ask.prompt]
    if ask.stop:
        elements["sampling_param_stop"] = list(ask.stop)
    return elements


def finish_reason(text: str | None) -> str | None:
    """The model sends `None` as a word while there is no reason yet."""
    return None if text in (None, "None", "") else text
