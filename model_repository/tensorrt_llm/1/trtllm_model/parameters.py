"""The parameters of a request: inputs by another name or in another place, and a few of their own.

Triton hands over as parameters what a client sends beside the inputs: over `/generate` every key
that is no input. So a parameter that is an input, or the short or other name of one, means that
input, and one that nobody knows is refused with the nearest right name. Nothing is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .inputs import Inputs, RequestError, shown
from .sampling import PREFIX

# Those with a meaning of their own: Triton's time limit, and headers that Triton forwards.
OWN = ("cumulative_text", "timeout", "traceparent", "tracestate", "user-agent")
# Names of the same inputs in Triton's backends for vLLM and for engines built ahead of time.
ALIASES: Mapping[str, str] = {
    "stream": "streaming",
    "stop_words": f"{PREFIX}stop",
    "bad_words": f"{PREFIX}bad",
    "random_seed": f"{PREFIX}seed",
    "min_length": f"{PREFIX}min_tokens",
    "num_return_sequences": f"{PREFIX}n",
    "exclude_input_in_output": f"{PREFIX}exclude_input_from_output",
}
# What to do instead, where no input of this model has the same meaning or a similar name.
INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("prompt", "inputs", "query", "QUERY"), "write text_input"),
    **dict.fromkeys(
        ("max_new_tokens", "max_output_tokens", "max_completion_tokens", "request_output_len"),
        f"write {PREFIX}max_tokens",
    ),
    "max_length": f"write {PREFIX}max_tokens, which counts the answer alone",
    "return_log_probs": f"write {PREFIX}logprobs, with how many for each token",
    "beam_width": f"write {PREFIX}best_of, with {PREFIX}use_beam_search",
    "do_sample": f"leave it out; {PREFIX}temperature 0 is greedy",
    "sampling_parameters": f"write its fields one by one, such as {PREFIX}max_tokens",
    **dict.fromkeys(
        ("response_format", "guided_json", "json_schema"),
        f"write {PREFIX}guided_decoding_json",
    ),
    **dict.fromkeys(("end_id", "pad_id"), "leave it out; the tokenizer's own is used"),
    **dict.fromkeys(
        ("sequence_id", "sequence_start", "sequence_end"),
        "leave it out; requests of this model stand alone, so send the whole conversation",
    ),
    "model": "leave it out; the model is named by the address",
}
# Of a name that is compared with others, and shown.
LONGEST_NAME = 64


def read(request: Any) -> dict[str, Any]:
    """The parameters of a Triton request by name.

    gRPC and `/infer` hand Triton's own `timeout` to the server, `/generate` to the model, which
    also gets the request's id in that way.
    """
    if request.correlation_id():
        raise RequestError(f"sequence_id: {INSTEAD['sequence_id']}")
    given: dict[str, Any] = json.loads(request.parameters() or "{}")
    if given.get("id") == request.request_id():
        given.pop("id", None)
    if timeout_us := request.timeout():
        # A negative one comes as a number without a sign.
        given["timeout"] = timeout_us if timeout_us < 2**63 else timeout_us - 2**64
    return given


def as_inputs(
    parameters: Mapping[str, Any], inputs: Inputs, declared: Mapping[str, Any]
) -> tuple[Inputs, dict[str, Any]]:
    """The inputs with those that were sent as parameters, and the parameters of their own.

    `declared` are the numpy types of the model's inputs by name. Raises `RequestError` for a
    parameter that is unknown, of another type, or differs from what was sent for the same input.
    """
    merged, own = dict(inputs), {}
    places = dict.fromkeys(inputs, "the input")
    for name, value in parameters.items():
        if name.lower() in OWN:
            own[name] = value
            continue
        target, array = _input(name, value, declared)
        if target not in merged:
            merged[target], places[target] = array, name
        elif not np.array_equal(np.ravel(merged[target]), array):
            other = target if places[target] == "the input" else places[target]
            what = f"{name}: is {shown(value)}, and {other} says otherwise"
            raise RequestError(f"{what}; send one of them")
    return merged, own


def _input(name: str, value: Any, declared: Mapping[str, Any]) -> tuple[str, NDArray[Any]]:
    """The input that a parameter means, and its array. `stop` is two of them, told by the type."""
    candidates = [name, f"{PREFIX}{name}", ALIASES.get(name, "")]
    targets = [target for target in candidates if target in declared]
    if not targets:
        short = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."
        raise RequestError(f"{short}: is not an input of this model; {_instead(short, declared)}")
    for target in targets:
        dtype = np.dtype(declared[target])
        element, words = _element(value, dtype)
        if element is not None:
            return target, np.array([element], dtype=dtype)
    raise RequestError(f"{name}: is {shown(value)}; it must be {words}")


def _element(value: Any, dtype: np.dtype[Any]) -> tuple[Any, str]:
    """A parameter's value as an element of an input, `None` if it is none; and what would be one.

    A number with a fraction may come as a string: gRPC of Triton 2.51 has no such parameters.
    """
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        fits = type(value) is int and bounds.min <= value <= bounds.max
        return value if fits else None, f"a whole number from {bounds.min} to {bounds.max}"
    if dtype.kind == "f":
        if isinstance(value, str):
            with suppress(ValueError):
                value = float(value)
        return value if type(value) in (int, float) else None, "a number"
    if dtype.kind == "O":
        text = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else None
        return text, "a string"
    return value if isinstance(value, bool) else None, "true or false"


def _instead(name: str, declared: Mapping[str, Any]) -> str:
    if name in INSTEAD:
        return INSTEAD[name]
    inputs = {**{name: name for name in OWN}, **{target: target for target in declared}, **ALIASES}
    inputs |= {
        target.removeprefix(PREFIX): target for target in declared if target.startswith(PREFIX)
    }
    nearest = get_close_matches(name.lower(), inputs, n=1)
    return f"write {inputs[nearest[0]]}" if nearest else "the model's metadata lists them"
