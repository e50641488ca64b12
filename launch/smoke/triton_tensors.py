"""The tensors of a request to the Triton model and of its answer, for all transports."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from .client import CheckFailure, Completion, NotSupported, SmokeRequest

# What the published model declares; a server's own metadata goes first.
PUBLISHED = {
    "text_input": "BYTES",
    "streaming": "BOOL",
    "return_finish_reason": "BOOL",
    "return_cumulative_logprob": "BOOL",
    "sampling_param_max_tokens": "INT32",
    "sampling_param_temperature": "FP32",
    "sampling_param_top_k": "INT32",
    "sampling_param_top_p": "FP32",
    "sampling_param_seed": "UINT64",
    "sampling_param_stop": "BYTES",
    "sampling_param_exclude_input_from_output": "BOOL",
    "sampling_param_return_perf_metrics": "BOOL",
}
# Triton's names for the Python types that a request may hold; a wrong type is sent as what it is.
DATATYPES: dict[type, str] = {str: "BYTES", bool: "BOOL", int: "INT32", float: "FP32"}
PYTHON_TYPES = {
    "INT32": int,
    "INT64": int,
    "UINT64": int,
    "UINT32": int,
    "BYTES": str,
    "BOOL": bool,
}

# How the elements of a datatype are packed; those of BYTES stand behind their length.
FORMATS = {"BOOL": "?", "INT32": "i", "INT64": "q", "UINT32": "I", "UINT64": "Q", "FP32": "f"}
FORMATS |= {"FP64": "d"}

LOGPROBS, METRICS = "return_cumulative_logprob", "sampling_param_return_perf_metrics"
# Inputs that the published model lacks. Those of `COUNTED` are sent wherever there are any.
EOS = "sampling_param_ignore_eos"
JSON_SCHEMA = "sampling_param_guided_decoding_json"
TOKEN_IDS = "input_ids"
MESSAGES = "messages"
COUNTED = ("return_num_input_tokens", "return_num_output_tokens")

COUNTS = {"prompt_tokens": "num_input_tokens", "completion_tokens": "num_output_tokens"}


def declared_inputs(rows: Sequence[Mapping[str, Any]] | None) -> dict[str, str]:
    """The datatype of each input that a model's metadata lists, else those of the published model.

    What has no name and datatype is a `LookupError` or `TypeError`.
    """
    return {str(row["name"]): str(row["datatype"]) for row in rows or ()} or dict(PUBLISHED)


def inputs(
    request: SmokeRequest, streaming: bool, declared: Mapping[str, str]
) -> dict[str, Sequence[Any]]:
    """The elements of every input by its name. Raises `NotSupported` for one that the
    model lacks.

    `top_k` 1 makes every release greedy; some take temperature 0 for that, and some do not. The
    prompt is excluded, since engines put it before a whole text, but not before a streamed one.
    """
    elements: dict[str, Sequence[Any]] = {
        "streaming": [streaming],
        "return_finish_reason": [True],
        "sampling_param_exclude_input_from_output": [True],
        **{name: [True] for name in COUNTED if name in declared},
        **_prompt(request, declared),
    }
    for name in ("max_tokens", "temperature", "top_k", "top_p", "seed"):
        if (value := getattr(request, name)) is not None:
            elements[_known(f"sampling_param_{name}", declared)] = [value]
    if request.stop:
        elements[_known("sampling_param_stop", declared)] = list(request.stop)
    for name, wanted in (
        (LOGPROBS, request.logprobs),
        (METRICS, request.metrics),
        (EOS, request.ignore_eos),
    ):
        if wanted:
            elements[_known(name, declared)] = [True]
    if request.json_schema is not None:
        elements[_known(JSON_SCHEMA, declared)] = [json.dumps(request.json_schema)]
    return elements


def read_outputs(
    values: Mapping[str, Sequence[Any]], final: bool | None, request_id: str = ""
) -> Completion:
    """A response's outputs by name; without an explicit mark, a finish reason makes it final."""
    texts = values.get("text_output", ("",))
    if not texts or not isinstance(texts[0], str):
        raise CheckFailure(f"text_output is {texts!r}, a string is expected")
    reason = values.get("finish_reason", (None,))[0]
    reason = None if reason in (None, "None", "") else str(reason)
    numbers = {name: row[0] for name, row in values.items() if row and _is_number(row[0])}
    counts: dict[str, Any] = {
        key: int(numbers[name]) for key, name in COUNTS.items() if name in numbers
    }
    logprobs = values.get("cumulative_logprob", ())
    return Completion(
        texts[0],
        reason,
        reason is not None if final is None else final,
        request_id,
        total_tokens=sum(counts.values()) if len(counts) == 2 else None,
        logprobs=tuple(float(value) for value in logprobs),
        measured=numbers,
        **counts,
    )


def datatype(name: str, values: Sequence[Any], declared: Mapping[str, str]) -> str:
    """The declared datatype; a value of another type keeps its own."""
    wanted, kind = declared.get(name, ""), type(values[0])
    is_known = wanted in FORMATS or wanted == "BYTES"
    fits = is_known and PYTHON_TYPES.get(wanted, float) is kind
    return wanted if fits else DATATYPES[kind]


def packed(datatype: str, values: Sequence[Any]) -> bytes:
    """The elements as gRPC carries them: little-endian."""
    if datatype != "BYTES":
        return struct.pack(f"<{len(values)}{FORMATS[datatype]}", *values)
    texts = [value.encode("utf-8") for value in values]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def unpacked(datatype: str, raw: bytes) -> list[Any]:
    if datatype in FORMATS:
        return [value for (value,) in struct.iter_unpack(f"<{FORMATS[datatype]}", raw)]
    texts, at = [], 0
    while datatype == "BYTES" and at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        texts.append(raw[at + 4 : at + 4 + length].decode("utf-8"))
        at += 4 + length
    return texts


def _prompt(request: SmokeRequest, declared: Mapping[str, str]) -> dict[str, Sequence[Any]]:
    if request.messages is not None:
        return {_known(MESSAGES, declared): [json.dumps(list(request.messages))]}
    if request.prompt is None:
        return {}
    if isinstance(request.prompt, list):
        return {_known(TOKEN_IDS, declared): request.prompt}
    return {"text_input": [request.prompt]}


def _known(name: str, declared: Mapping[str, str]) -> str:
    if name not in declared:
        raise NotSupported(f"the model has no input {name}")
    return name


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
