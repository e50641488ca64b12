"""A request of this model: Triton's input arrays and parameters, checked, as what the engine runs.

A request has one prompt: a text, token ids, or messages for the tokenizer's chat template.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from .chat import Chat
from .chat import read as read_chat
from .inputs import Inputs, RequestError, decode, scalar, shown, token_ids
from .sampling import PREFIX
from .sampling import read as read_sampling

Prompt = str | list[int] | Chat

# Input -> the outputs that a client asks for by it.
OPTIONAL_OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "return_finish_reason": ("finish_reason",),
    "return_stop_reason": ("stop_reason",),
    "return_cumulative_logprob": ("cumulative_logprob",),
    "return_index": ("index",),
    "return_output_ids": ("output_ids", "output_lengths"),
    "return_num_input_tokens": ("num_input_tokens",),
    "return_num_output_tokens": ("num_output_tokens",),
    "sampling_param_logprobs": ("logprobs",),
    "sampling_param_prompt_logprobs": ("prompt_logprobs",),
}
# By what the client's library calls itself; Triton forwards it as the metadata of gRPC.
GRPC_LIBRARIES = re.compile(r"\b(grpc|tonic)\b")
TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask the engine for, and which results the client wants.

    `sampling` holds keyword arguments of the engine's `SamplingParams`; the ones under
    `guided_decoding` are for its `GuidedDecodingParams`. Deltas are sent unless `cumulative_text`.
    `priority` is from 0 to 1; `trace_headers` are those of a W3C trace context.
    """

    prompt: Prompt
    sampling: Mapping[str, Any]
    streaming: bool
    outputs: tuple[str, ...]
    cumulative_text: bool = False
    priority: float | None = None
    trace_headers: Mapping[str, str] | None = None
    timeout_s: float | None = None
    over_grpc: bool = False

    @property
    def is_unwatched(self) -> bool:
        """Whether a lost client stays unnoticed: over HTTP, Triton notices only when it writes."""
        return not (self.streaming or self.over_grpc)


def parse(
    inputs: Inputs,
    parameters: Mapping[str, Any],
    decoupled: bool,
    named_outputs: Collection[str] = (),
) -> Request:
    """Raises `RequestError` naming the input or parameter, its value and what is allowed.

    `named_outputs` are the outputs that the client names to Triton, if any.
    """
    streaming = bool(scalar(inputs, "streaming", False))
    if streaming and not decoupled:
        raise RequestError(
            "streaming: is true, but this model answers once per request; leave it out, or ask "
            "the model that streams, whose name has no _unary at its end"
        )
    outputs = tuple(chain(*(o for name, o in OPTIONAL_OUTPUTS.items() if scalar(inputs, name))))
    outputs += _named(named_outputs, outputs)
    sampling = read_sampling(inputs, streaming, outputs)
    prompt = _prompt(inputs)
    if isinstance(prompt, Chat):
        # The template writes the special tokens, and its text does not belong in the answer.
        for name, value in {"add_special_tokens": False, "exclude_input_from_output": True}.items():
            if PREFIX + name not in inputs:
                sampling[name] = value
    return Request(
        prompt,
        sampling,
        streaming,
        outputs,
        cumulative_text=_switch(parameters, "cumulative_text"),
        priority=_priority(inputs),
        trace_headers=_trace_headers(parameters),
        timeout_s=_timeout_s(parameters),
        over_grpc=bool(GRPC_LIBRARIES.search(str(parameters.get("user-agent", "")))),
    )


def _named(named: Collection[str], wanted: Collection[str]) -> tuple[str, ...]:
    """The outputs that a client names and that none of its inputs asks for."""
    more: list[str] = []
    for name, outputs in OPTIONAL_OUTPUTS.items():
        lacking = [output for output in outputs if output in named and output not in wanted]
        if lacking and name.startswith(PREFIX):
            raise RequestError(
                f"{lacking[0]}: is an output only with {name} above 0; send that too"
            )
        more += lacking
    return tuple(more)


def _prompt(inputs: Inputs) -> Prompt:
    given = [name for name in ("text_input", "messages", "input_ids") if name in inputs]
    if not given:
        raise RequestError("text_input: is missing; send the prompt as one string")
    if len(given) > 1:
        raise RequestError(f"{given[1]}: cannot be sent with {given[0]}; a request has one prompt")
    chat = read_chat(inputs)
    if chat is not None:
        return chat
    ids = token_ids(inputs, "input_ids")
    if ids is None:
        values = inputs["text_input"]
        if values.shape != (1,):
            raise RequestError(f"text_input: has shape {list(values.shape)}; [1] is expected")
        prompt = decode("text_input", values[0])
        if not prompt:
            raise RequestError("text_input: is empty; a prompt has at least one character")
        return prompt
    if not ids:
        raise RequestError("input_ids: is empty; a prompt has at least one token")
    return ids


def _priority(inputs: Inputs) -> float | None:
    value = scalar(inputs, "priority")
    if value is not None and not 0 <= value <= 1:
        raise RequestError(f"priority: is {shown(value)}; it must be between 0 and 1")
    return None if value is None else float(value)


def _switch(parameters: Mapping[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"{name}: is {shown(value)}; it must be true or false")
    return value


def _timeout_s(parameters: Mapping[str, Any]) -> float | None:
    """Triton's parameter is in microseconds."""
    value = parameters.get("timeout")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(f"timeout: is {shown(value)}; it must be microseconds, at least 1")
    return value / 1e6


def _trace_headers(parameters: Mapping[str, Any]) -> dict[str, str] | None:
    """The W3C trace context, sent as parameters or forwarded headers, whose case may be any.

    By that standard a context that is wrong counts as none: a trace is never what a request fails
    of, and who wrote it may be a proxy that the client does not know.
    """
    named = {name.lower(): value for name, value in parameters.items()}
    parent, state = named.get("traceparent"), named.get("tracestate")
    if not isinstance(parent, str) or not TRACEPARENT.fullmatch(parent):
        return None
    return {"traceparent": parent, **({"tracestate": state} if isinstance(state, str) else {})}
