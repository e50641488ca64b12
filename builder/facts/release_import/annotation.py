"""Python annotations as text, in the words of a table."""

from __future__ import annotations

import re
from typing import Any

Row = dict[str, Any]

MAX_LENGTH = 1000  # of an annotation; those of an engine have a tenth of it

_PLAIN = {"int": "int", "float": "float", "bool": "bool", "str": "str", "Any": "any"}
_BOUND = re.compile(r"\b(ge|gt|le|lt)=(-?(?:\d+\.?\d*|\.\d+))")


def annotated(text: str) -> Row | None:
    """The option that a Python annotation describes; `None` for what no file can hold.

    >>> annotated("Optional[Annotated[int, Gt(gt=0)]]")
    {'type': 'int', 'gt': 0, 'nullable': True}
    """
    if len(text) > MAX_LENGTH:
        return None
    text = text.strip().replace("typing.", "")
    if found := re.fullmatch(r"<(?:class|enum) '([\w.]+)'>", text):
        text = found[1]
    if text in _PLAIN:
        return {"type": _PLAIN[text]}
    head, _, inner = text.partition("[")
    parts = _split(inner.removesuffix("]"))
    if not parts:
        return None
    if head == "Literal":
        return {"type": "enum", "values": [part.strip("'\"") for part in parts]}
    if head == "Annotated":
        row = annotated(parts[0])
        return row and {**row, **{name: _number(limit) for name, limit in _BOUND.findall(inner)}}
    if head in ("Optional", "Union"):
        given = [part for part in parts if part not in ("None", "NoneType")]
        rows = [row for part in given if (row := annotated(part))]
        nullable = {"nullable": True} if head == "Optional" or len(given) < len(parts) else {}
        if not rows or len(rows) < len(given):
            return None
        return {**(rows[0] if len(rows) == 1 else {"type": "either", "of": rows}), **nullable}
    if head.lower() in ("list", "set", "tuple"):
        items = annotated(parts[0])
        return items and {"type": "list", "items": items}
    return None


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _split(text: str) -> list[str]:
    """The arguments of an annotation, at the commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
