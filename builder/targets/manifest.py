"""A YAML file of plain data, for programs that are not the engine, and read back as it was meant.

Strings are quoted, so that no reader takes one for another type; a text of several lines stands as
it is. A value may come with the reason for it, which is a comment above it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..bundle import File
from ..documents import load_yaml
from ..render import comment, key, scalar

# What every YAML reader takes as it is, and keeps in a literal block, line by line.
_READABLE = r"\t\x20-\x7e\xa0-\u2027\u2030-\ud7ff\ue000-\ufefe"
_TEXT = re.compile(rf"[\r\n{_READABLE}]*")
_LITERAL = re.compile(rf"(?!\s)(?:[{_READABLE}]*\n)+")
_DIVIDER = "---\n"


@dataclass(frozen=True, slots=True)
class Because:
    """A value with the reason for it."""

    value: Any
    reason: str


def manifest(title: str, *documents: Mapping[str, Any]) -> File:
    """A file of one or more documents under a comment."""
    texts = ["".join(f"{line}\n" for line in _lines(document, 0)) for document in documents]
    found = [_as_json(load_yaml(text)) for text in texts]
    meant = [_as_json(plain(document)) for document in documents]
    if found != meant:
        raise AssertionError(f"{title} reads back as {found}, meant was {meant}")
    return File(f"{comment(title)}\n{_DIVIDER.join(texts)}".encode())


def as_text(data: bytes) -> str | None:
    """The text that some bytes are, if YAML can hold it."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if _TEXT.fullmatch(text) else None


def plain(node: Any) -> Any:
    """Data without its reasons."""
    if isinstance(node, Because):
        return plain(node.value)
    if isinstance(node, Mapping):
        return {name: plain(value) for name, value in node.items()}
    if isinstance(node, Sequence) and not isinstance(node, str):
        return [plain(item) for item in node]
    return node


def _lines(node: Any, depth: int) -> Iterator[str]:
    """The lines of a mapping or a list that is not empty."""
    indent = "  " * depth
    items = node.items() if isinstance(node, Mapping) else ((None, item) for item in node)
    for name, item in items:
        value = item.value if isinstance(item, Because) else item
        if isinstance(item, Because):
            yield comment(item.reason, len(indent))
        if name is None:
            yield from _list_item(value, depth)
            continue
        head = f"{indent}{key(name)}:"
        if isinstance(value, str) and _LITERAL.fullmatch(value):
            yield f"{head} |{_chomping(value)}"
            yield from (f"{indent}  {line}" if line else "" for line in value.split("\n")[:-1])
        elif _is_nested(value):
            yield head
            yield from _lines(value, depth + 1)
        else:
            yield f"{head} {scalar(value)}"


def _list_item(value: Any, depth: int) -> Iterator[str]:
    """The first line of the item stands behind its dash."""
    indent = "  " * depth
    if not _is_nested(value):
        yield f"{indent}- {scalar(value)}"
        return
    for index, line in enumerate(_lines(value, depth + 1)):
        yield f"{indent}- {line.lstrip()}" if index == 0 else line


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | Sequence) and not isinstance(value, str) and bool(value)


def _chomping(value: str) -> str:
    """Whether empty lines at the end of a literal block belong to it."""
    return "+" if value.endswith("\n\n") or value == "\n" else ""


def _as_json(node: Any) -> str:
    """What tells data apart that Python takes for equal, such as `True` and 1."""
    return json.dumps(node, sort_keys=True)
