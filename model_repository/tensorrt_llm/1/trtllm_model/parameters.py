"""Reads the parameters of a request: inputs by another name, and a few that are no inputs.

Triton hands over as parameters whatever a client sends in addition to the inputs: over `/generate`
every other key. A parameter with the name of an input, or a short or other name of one, sets that
input. An unknown one is refused with the nearest known name; none is ignored.
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

# Those with a meaning of their own, and headers that Triton forwards, whose case may be any.
OWN = ("cumulative_text", "timeout")
HEADERS = ("traceparent", "tracestate", "user-agent")
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
# Of these an empty text means none, as the clients of the other backends send it.
WORDS = ("stop_words", "bad_words")
# Names of other servers, and what to do instead where no input has the same meaning.
INSTEAD: Mapping[str, str] = {
    name: instead
    for names, instead in (
        ("prompt inputs input input_text text query QUERY question", "write text_input"),
        ("token_ids prompt_token_ids input_tokens", "write input_ids"),
        (
            "max_new_tokens max_output_tokens max_completion_tokens max_tokens_to_sample "
            "request_output_len num_predict n_predict",
            f"write {PREFIX}max_tokens",
        ),
        ("max_length", f"write {PREFIX}max_tokens, which counts the answer alone"),
        ("truncate", f"write {PREFIX}truncate_prompt_tokens"),
        ("runtime_top_k", f"write {PREFIX}top_k"),
        ("runtime_top_p", f"write {PREFIX}top_p"),
        ("stop_sequences stop_sequence stop_strings until", f"write {PREFIX}stop"),
        (
            "echo return_full_text",
            f"write {PREFIX}exclude_input_from_output, which means the opposite",
        ),
        (
            "return_log_probs return_logprobs top_logprobs top_n_tokens",
            f"write {PREFIX}logprobs, with how many for each token",
        ),
        (
            "return_context_logits return_generation_logits",
            f"leave it out; this model gives log probabilities, by {PREFIX}logprobs",
        ),
        ("beam_width num_beams", f"write {PREFIX}best_of, with {PREFIX}use_beam_search"),
        ("do_sample", f"leave it out; {PREFIX}temperature 0 is greedy"),
        (
            "sampling_parameters sampling_params",
            f"write its fields one by one, such as {PREFIX}max_tokens",
        ),
        (
            "response_format guided_json json_schema structured_outputs",
            f"write {PREFIX}guided_decoding_json",
        ),
        ("guided_regex regex", f"write {PREFIX}guided_decoding_regex"),
        ("guided_grammar grammar", f"write {PREFIX}guided_decoding_grammar"),
        (
            "guided_decoding_guide_type guided_decoding_guide",
            f"write {PREFIX}guided_decoding_ and the guide's type, such as json",
        ),
        ("enable_thinking reasoning_effort", "write it into chat_template_kwargs"),
        ("end_id pad_id eos_token_id pad_token_id", "leave it out; the tokenizer's own is used"),
        (
            "sequence_id sequence_start sequence_end",
            "leave it out; requests of this model stand alone, so send the whole conversation",
        ),
        ("num_draft_tokens draft_input_ids", "leave it out; the server's options say of drafts"),
        ("image image_bytes image_url images", "leave it out; this model reads text alone"),
        (
            "lora_id lora_name lora_path lora_task_id lora_weights",
            "leave it out; this model has no adapters",
        ),
        ("model", "leave it out; the model is named by the address"),
    )
    for name in names.split()
}
# How alike a name must be to be called the right one of a misspelt one; 1 is the same.
LEAST_ALIKE = 0.75
# Bits of a request's flags: the first and the last one of a sequence.
SEQUENCE_FLAGS = 0b11
# Triton sends it back with every token.
LONGEST_ID = 4096
# Of a name that is compared with others, and shown.
LONGEST_NAME = 64


def read(request: Any) -> dict[str, Any]:
    """The parameters of a Triton request by name.

    gRPC and `/infer` hand Triton's own `timeout` to the server, `/generate` to the model, which
    also gets the request's id in that way.
    """
    if request.correlation_id():
        raise RequestError(f"sequence_id: {INSTEAD['sequence_id']}")
    if request.flags() & SEQUENCE_FLAGS:
        raise RequestError(f"sequence_start and sequence_end: {INSTEAD['sequence_start']}")
    try:
        sent, request_id = request.parameters(), request.request_id()
    except UnicodeDecodeError as fault:  # of Triton's own, which does not say which
        what = "the id, or a name or value of a parameter or header, is not UTF-8"
        raise RequestError(f"{what}: {fault.reason}") from fault
    if len(request_id) > LONGEST_ID:
        what = f"id: has {len(request_id)} characters; at most {LONGEST_ID} are allowed"
        raise RequestError(f"{what}, since each response repeats it")
    given: dict[str, Any] = json.loads(sent or "{}", object_pairs_hook=_once)
    if given.get("id") == request_id:
        given.pop("id", None)
    if timeout_us := request.timeout():
        # A negative one comes as a number without a sign.
        given["timeout"] = timeout_us if timeout_us < 2**63 else timeout_us - 2**64
    return given


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Triton hands over what a client sends under one name in two places one after the other."""
    given: dict[str, Any] = {}
    for name, value in pairs:
        if name in given:
            raise RequestError(f"{_short(name)}: is sent twice; send it once")
        given[name] = value
    return given


def as_inputs(
    parameters: Mapping[str, Any], inputs: Inputs, declared: Mapping[str, Any]
) -> tuple[Inputs, dict[str, Any]]:
    """The inputs, with the ones sent as parameters added, and the other parameters.

    `declared` are the numpy types of the model's inputs by name. Raises `RequestError` for a
    parameter that is unknown, of another type, or differs from what was sent for the same input.
    """
    merged, own = dict(inputs), {}
    places = dict.fromkeys(inputs, "the input")
    for name, value in parameters.items():
        if name in OWN or name.lower() in HEADERS:
            own[name] = value
            continue
        if name in WORDS and value == "":
            continue
        target, array = _input(name, value, declared)
        if target not in merged:
            merged[target], places[target] = array, name
        elif not np.array_equal(np.ravel(merged[target]), array):
            place = places[target]
            other = target if place == "the input" and target != name else place
            what = f"{name}: is {shown(value)}, and {other} says otherwise"
            raise RequestError(f"{what}; send one of them")
    return merged, own


def _input(name: str, value: Any, declared: Mapping[str, Any]) -> tuple[str, NDArray[Any]]:
    """The input that a parameter means, and its array. `stop` is two of them, told by the type."""
    candidates = [name, f"{PREFIX}{name}", ALIASES.get(name, "")]
    targets = [target for target in candidates if target in declared]
    if not targets:
        short = _short(name)
        raise RequestError(f"{short}: is not an input of this model; {_instead(short, declared)}")
    for target in targets:
        dtype = np.dtype(declared[target])
        element, words = _element(value, dtype)
        if element is not None:
            return target, np.array([element], dtype=dtype)
    found = json.dumps(value) if isinstance(value, float) else shown(value)
    raise RequestError(f"{name}: is {found}; it must be {words}")


def _element(value: Any, dtype: np.dtype[Any]) -> tuple[Any, str]:
    """A parameter's value as an element of an input, or `None`; and what a valid one looks like.

    A number with a fraction may come as a string: older clients of gRPC send no other.
    """
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        if type(value) is not int:
            return None, "a whole number, without a point or quotes"
        fits = bounds.min <= value <= bounds.max
        return value if fits else None, f"a whole number from {bounds.min} to {bounds.max}"
    if dtype.kind == "f":
        if isinstance(value, str) and "_" not in value:  # which Python takes within numbers
            with suppress(ValueError):
                value = float(value)
        return value if type(value) in (int, float) else None, "a number"
    if dtype.kind == "O":
        text = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else None
        return text, "a string"
    return value if isinstance(value, bool) else None, "true or false"


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."


def _instead(name: str, declared: Mapping[str, Any]) -> str:
    if name in INSTEAD:
        return INSTEAD[name]
    inputs = {**{name: name for name in OWN}, **{target: target for target in declared}, **ALIASES}
    inputs |= {
        target.removeprefix(PREFIX): target for target in declared if target.startswith(PREFIX)
    }
    nearest = get_close_matches(name.lower(), inputs, n=1, cutoff=LEAST_ALIKE)
    return f"write {inputs[nearest[0]]}" if nearest else "the model's metadata lists them"
