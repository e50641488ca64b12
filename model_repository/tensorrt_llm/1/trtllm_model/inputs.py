"""The input arrays of a request as plain Python values, and the error that a client gets for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Inputs = Mapping[str, NDArray[Any]]
# How a request ended, as the metrics count it.
Outcome = Literal["finished", "cancelled", "refused", "invalid", "failed"]

SHOWN_CHARACTERS = 80


class RequestError(Exception):
    """Ends a request with an error for its client: by default, what was sent cannot be served.

    `code` is the name of a code of Triton's, such as UNAVAILABLE for what is worth a retry.
    """

    def __init__(
        self, message: str, code: str = "INVALID_ARG", outcome: Outcome = "invalid"
    ) -> None:
        super().__init__(message)
        self.code = code
        self.outcome = outcome


def check_size(inputs: Inputs, most_bytes: int | None) -> None:
    """Refuse a request that holds more than `most_bytes`, by the input that holds most of them."""
    if most_bytes is None:
        return
    sizes = {}
    for name, values in inputs.items():
        sizes[name] = sum(map(len, values.flat)) if values.dtype.kind == "O" else values.nbytes
    if sum(sizes.values()) > most_bytes:
        name = max(sizes, key=lambda name: sizes[name])
        what = f"{name}: has {sizes[name]} bytes"
        raise RequestError(f"{what}; this server takes at most {most_bytes} in a request")


def scalar(inputs: Inputs, name: str, default: Any = None) -> Any:
    """The only element of an input, or `default` where the client did not send it."""
    if name not in inputs:
        return default
    values = inputs[name]
    if values.size != 1:
        raise RequestError(f"{name}: has shape {list(values.shape)}; one element is expected")
    return values.item()


def text(inputs: Inputs, name: str) -> str | None:
    """The only string of an input; never an empty one."""
    value = scalar(inputs, name)
    if value is None:
        return None
    decoded = decode(name, value)
    if not decoded:
        raise RequestError(f"{name}: is empty; leave it out, or send at least one character")
    return decoded


def texts(inputs: Inputs, name: str, most: int) -> list[str] | None:
    """All strings of an input, in any shape; none of them empty."""
    values = _elements(inputs, name, most)
    if values is None:
        return None
    words = [decode(name, value) for value in values]
    if not all(words):
        raise RequestError(f"{name}: holds an empty string; each has at least one character")
    return words


def token_ids(inputs: Inputs, name: str, most: int | None = None) -> list[int] | None:
    """All token ids of an input, in any shape; the vocabulary is not known here."""
    values = _elements(inputs, name, most)
    if values is None:
        return None
    if values.dtype.kind not in "iu":
        raise RequestError(f"{name}: has the type {values.dtype}; token ids are whole numbers")
    if values.size and values.min() < 0:
        raise RequestError(f"{name}: holds {values.min()}; token ids are at least 0")
    ids: list[int] = values.tolist()
    return ids


def document(inputs: Inputs, name: str, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    """The JSON list or object in the only string of an input, or None where it was not sent."""
    given = text(inputs, name)
    if given is None:
        return None
    try:
        value = json.loads(given)
    except ValueError as fault:
        raise RequestError(f"{name}: is no JSON: {fault}") from fault
    except RecursionError as fault:
        raise RequestError(f"{name}: is nested too deeply to be read as JSON") from fault
    if not isinstance(value, kind):
        expected = {list: "a list", dict: "an object"}[kind]
        raise RequestError(f"{name}: is {shown(value)}; {expected} in JSON is expected")
    return value


def decode(name: str, value: Any) -> str:
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as fault:
        raise RequestError(f"{name}: is not UTF-8: {fault.reason} at byte {fault.start}") from fault


def shown(value: Any) -> str:
    """A value as an error names it: short, whatever was sent."""
    if isinstance(value, float):
        return f"{value:g}"
    words = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return words if len(words) <= SHOWN_CHARACTERS else f"{words[: SHOWN_CHARACTERS - 3]}..."


def _elements(inputs: Inputs, name: str, most: int | None) -> NDArray[Any] | None:
    if name not in inputs:
        return None
    values = np.ravel(inputs[name])
    if most is not None and values.size > most:
        raise RequestError(f"{name}: has {values.size} elements; at most {most} are allowed")
    return values
