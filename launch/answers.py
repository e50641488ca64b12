"""What a server answered, which may be anything: JSON of bounded content, and names of models."""

from __future__ import annotations

import struct
from typing import Any

from builder import files

# Of JSON; each takes up to 80 bytes of memory. Log probabilities of 32,000 tokens are fewer.
MAX_VALUES = 400_000
MOST_NAME_LETTERS = 1000  # of a model
# What reading an answer raises that has another form than its protocol's.
OTHER_FORMS = (
    *(AttributeError, TypeError, ValueError, LookupError, ArithmeticError),
    *(struct.error, RecursionError),
)


def read_json(body: str | bytes) -> Any:
    """What an answer says. Raises `ValueError` for no JSON, and for more of it than of any answer
    that is asked for."""
    return files.parse_json(body, max_values=MAX_VALUES)


def model_name(value: object) -> str:
    """The name of a model as a server tells it, which is to be sent and shown.

    Raises `ValueError` for what is no name.
    """
    if not isinstance(value, str) or not value.isprintable() or not value:
        raise ValueError("the name of a model is no printable text")
    if len(value) > MOST_NAME_LETTERS:
        raise ValueError(f"the name of a model has {len(value)} letters")
    return value
