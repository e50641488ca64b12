"""The values of options: which ones the engine's validation takes for each type."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ...diagnostics import Diagnostic
from ...facts.release import Field

WRONG_VALUES = frozenset({"value-type", "unknown-value", "value-range"})
MAX_DIGITS = 4300  # Python reads no longer number from text

_EXPECTED = {
    "record": "a mapping",
    "union": "a mapping",
    "mapping": "a mapping",
    "list": "a list",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "object": "a Python object, which no file can hold",
}


def expected(field: Field) -> str:
    if field["type"] == "either":
        return " or ".join(dict.fromkeys(map(expected, field["of"])))
    if field["type"] == "enum":
        return f"one of {', '.join(map(str, field['values']))}"
    return _EXPECTED.get(field["type"], "another value")


def wrong_type(path: str, value: Any, field: Field, what: str = "is") -> Diagnostic:
    remedy = f"expected {expected(field)}"
    return Diagnostic(path, f"{what} {shown(value)}", remedy, rule="value-type")


def shown(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value, default=str))[:60]


def spelled(field: Field, value: Any) -> Any:
    """The allowed value that was given, in its own spelling; `None` if there is none."""
    for allowed in field["values"]:
        if value == allowed and isinstance(value, bool) == isinstance(allowed, bool):
            return allowed
        if field.get("case_insensitive") and str(value).lower() == str(allowed).lower():
            return allowed
    return None


def bounds(field: Field, value: Any, path: str) -> Iterator[Diagnostic]:
    if field["type"] in ("int", "float", "either") and (_is_number(value) or _is_int(value)):
        number = value if isinstance(value, int) else float(value)
        for bound, holds, text in _BOUNDS:
            if (limit := field.get(bound)) is not None and not holds(number, limit):
                remedy = f"give a value {text} {limit}"
                yield Diagnostic(path, f"{value} is out of range", remedy, rule="value-range")
                return
        if isinstance(number, float) and not math.isfinite(number):
            what, remedy = f"{value} is no finite number", "give a number"
            yield Diagnostic(path, what, remedy, rule="value-range", severity="warning")
    elif isinstance(value, str) and len(value) < field.get("min_length", 0):
        yield Diagnostic(path, "is empty", "give a value", rule="value-range")


_BOUNDS: tuple[tuple[str, Callable[[float, float], bool], str], ...] = (
    ("ge", lambda value, limit: value >= limit, "of at least"),
    ("gt", lambda value, limit: value > limit, "above"),
    ("le", lambda value, limit: value <= limit, "of at most"),
    ("lt", lambda value, limit: value < limit, "below"),
)


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float | str) or (isinstance(value, str) and not value.isascii()):
        return False
    try:
        float(value)
    except (ValueError, OverflowError):
        return False
    return True


def _is_int(value: Any) -> bool:
    if isinstance(value, str):
        whole = re.fullmatch(r"\s*[+-]?\d+(_\d+)*(\.0+)?\s*", value, re.ASCII)
        return whole is not None and len(value) <= MAX_DIGITS
    if isinstance(value, float):
        return value.is_integer() and abs(value) < 2**63
    return isinstance(value, int)


TRUE = {"true", "yes", "on", "y", "t", "1"}
_FALSE = {"false", "no", "off", "n", "f", "0"}


def _is_bool(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in TRUE | _FALSE
    return isinstance(value, int | float) and value in (0, 1)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


# What the engine's validation takes for a value of each type, as pydantic does unless it is strict.
SHAPES: dict[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "float": _is_number,
    "bool": _is_bool,
    "str": lambda value: isinstance(value, str),
    "object": lambda value: False,
    "list": lambda value: (
        isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    ),
    "mapping": _is_mapping,
    "record": _is_mapping,
    "union": _is_mapping,
}
