"""A request of this model: Triton's input arrays, checked, as what the engine is asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Inputs = Mapping[str, NDArray[Any]]


class Invalid(Exception):
    """The client sent something that cannot be served; the text is for the client."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A scalar input `sampling_param_<name>` and the values that it may have."""

    name: str
    allowed: Callable[[Any], bool]
    rule: str


PARAMETERS = (
    Parameter("best_of", lambda value: value >= 1, "at least 1"),
    Parameter("temperature", lambda value: 0 <= value < math.inf, "a finite number from 0 on"),
    Parameter("top_k", lambda value: value >= 0, "at least 0, where 0 means all tokens"),
    Parameter("top_p", lambda value: 0 <= value <= 1, "between 0 and 1"),
    Parameter("frequency_penalty", math.isfinite, "a finite number"),
    Parameter("presence_penalty", math.isfinite, "a finite number"),
    Parameter("max_tokens", lambda value: value >= 1, "at least 1"),
    Parameter("seed", lambda value: value >= 0, "at least 0"),
    Parameter("exclude_input_from_output", lambda value: True, "true or false"),
    Parameter("return_perf_metrics", lambda value: True, "true or false"),
)
DEFAULTS: Mapping[str, Any] = {
    "best_of": 1,
    "exclude_input_from_output": False,
    "return_perf_metrics": False,
}
OPTIONAL_OUTPUTS = ("finish_reason", "stop_reason", "cumulative_logprob")


@dataclass(frozen=True, slots=True)
class Request:
    """What the engine is asked for, and which optional outputs the client wants.

    `sampling` holds keyword arguments of the engine's `SamplingParams`.
    """

    prompt: str
    sampling: Mapping[str, Any]
    streaming: bool
    outputs: tuple[str, ...]


def parse(inputs: Inputs, decoupled: bool) -> Request:
    """Raises `Invalid` naming the input, its value and what is allowed."""
    streaming = bool(scalar(inputs, "streaming", False))
    if streaming and not decoupled:
        raise Invalid(
            "streaming: is true, but this model answers once per request; set it to false, "
            "or set decoupled: true under triton_config in model.yaml"
        )
    outputs = tuple(name for name in OPTIONAL_OUTPUTS if scalar(inputs, f"return_{name}", False))
    return Request(_prompt(inputs), _sampling(inputs, streaming, outputs), streaming, outputs)


def scalar(inputs: Inputs, name: str, default: Any = None) -> Any:
    """The only element of an input, or `default` where the client did not send it."""
    if name not in inputs:
        return default
    values = inputs[name]
    if values.size != 1:
        raise Invalid(f"{name}: has shape {list(values.shape)}; one element is expected")
    return values.item()


def _prompt(inputs: Inputs) -> str:
    values = inputs.get("text_input")
    if values is None:
        raise Invalid("text_input: is missing; send the prompt as one string")
    if values.ndim != 1 or values.size == 0:
        raise Invalid(f"text_input: has shape {list(values.shape)}; [1] is expected")
    prompt = _text("text_input", values[0])
    if not prompt:
        raise Invalid("text_input: is empty; a prompt has at least one character")
    return prompt


def _sampling(inputs: Inputs, streaming: bool, outputs: tuple[str, ...]) -> dict[str, Any]:
    sampling = dict(DEFAULTS)
    for parameter in PARAMETERS:
        name = f"sampling_param_{parameter.name}"
        value = scalar(inputs, name)
        if value is None:
            continue
        if not parameter.allowed(value):
            raise Invalid(f"{name}: is {value:g}; it must be {parameter.rule}")
        sampling[parameter.name] = value
    if stop := _stop(inputs):
        sampling["stop"] = stop
    if streaming:
        # The engine ranks the sequences of best_of anew at every step, so that a stream of the best
        # one alone would have to take text back. All of them are streamed instead, in fixed order.
        sampling["n"] = sampling["best_of"]
    if "cumulative_logprob" in outputs:
        sampling["logprobs"] = 1  # the PyTorch backend sums log probabilities only when asked
    return sampling


def _stop(inputs: Inputs) -> list[str]:
    words = [_text("sampling_param_stop", word) for word in inputs.get("sampling_param_stop", [])]
    if not all(words):
        raise Invalid("sampling_param_stop: holds an empty string; stop words have characters")
    return words


def _text(name: str, value: Any) -> str:
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as fault:
        raise Invalid(f"{name}: is not UTF-8: {fault.reason} at byte {fault.start}") from fault
