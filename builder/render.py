"""Renders templates and plain data as text, and proves the result by reading it back.

The only module that uses Jinja. YAML for other programs has quoted strings, so that every reader
sees the same types, and multi-line texts as blocks. YAML for the engine has each list on one line.
A value may have a reason, which becomes a comment above it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from .bundle import File
from .diagnostics import printable
from .documents import load_yaml
from .files import resource_root

if TYPE_CHECKING:
    import jinja2

WIDTH = 100
# Patterns of many letters are compiled when something is written: most commands write nothing.
_UNREADABLE = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff]"
_YAML_WORDS = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}


@cache
def _environment(autoescape: bool = False) -> jinja2.Environment:
    import jinja2  # most commands render nothing

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource_root("templates")),
        undefined=jinja2.StrictUndefined,
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["json"] = scalar
    environment.filters["key"] = key
    environment.filters["shell"] = lambda value: shlex.quote(str(value))
    environment.filters["comment"] = comment
    return environment


def text(template: str, **values: Any) -> str:
    """A rendered template; an undefined name is an error."""
    return _environment().get_template(template).render(values)


def source_expression(code: str) -> str:
    """How a page's content security policy names a style sheet or a script in the page."""
    return f"sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}"


def html(template: str, **values: Any) -> str:
    """A rendered template with every value escaped, including invisible characters and those that
    change the writing direction."""
    return printable(_environment(autoescape=True).get_template(template).render(values))


def scalar(value: Any) -> str:
    """A YAML scalar or flow sequence that every reader reads with the same type.

    Line breaks, unreadable characters and those that change the writing direction are escaped.
    """
    shown = json.dumps(value, ensure_ascii=False)
    return re.sub(_UNREADABLE, lambda found: f"\\u{ord(found[0]):04x}", shown)


def key(value: str) -> str:
    """A mapping key, quoted unless every YAML reader reads it as text."""
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) and value.lower() not in _YAML_WORDS
    return value if plain else scalar(value)


def comment(value: str, indent: int = 0) -> str:
    """Text as comment lines; control characters cannot end the comment."""
    prefix = " " * indent + "# "
    return textwrap.fill(
        " ".join(re.sub(_UNREADABLE, " ", value).split()),
        WIDTH,
        initial_indent=prefix,
        subsequent_indent=prefix,
    )


# What every YAML reader takes as it is, and keeps in a literal block, line by line.
_READABLE = r"\t\x20-\x7e\xa0-\u2027\u2030-\ud7ff\ue000-\ufefe"
_TEXT = rf"[\r\n{_READABLE}]*"
_LITERAL = rf"(?!\s)(?:[{_READABLE}]*\n)+"
_DIVIDER = "---\n"


@dataclass(frozen=True, slots=True)
class CommentedValue:
    """A value with its reason."""

    value: Any
    reason: str


def yaml_document(title: str, *documents: Mapping[str, Any]) -> File:
    """A file of one or more documents under a comment."""
    return File(f"{comment(title)}\n{_DIVIDER.join(_proved(title, documents))}".encode())


def option_file(title: str, options: Mapping[str, Any]) -> File:
    """A file of engine options under a comment."""
    return File(f"{comment(title)}\n\n{_proved(title, [options], flat=True)[0]}".encode())


def _proved(title: str, documents: Sequence[Mapping[str, Any]], flat: bool = False) -> list[str]:
    """The text of each document, checked by reading it back."""
    texts = ["".join(f"{line}\n" for line in _lines(row, 0, flat)) for row in documents]
    found = [_as_json(load_yaml(text)) for text in texts]
    meant = [_as_json(plain(document)) for document in documents]
    if found != meant:
        raise AssertionError(f"{title} reads back as {found}, meant was {meant}")
    return texts


def as_text(data: bytes) -> str | None:
    """The decoded bytes if YAML can hold them, else `None`."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if re.fullmatch(_TEXT, text) else None


def plain(node: Any) -> Any:
    """Data without its reasons."""
    if isinstance(node, CommentedValue):
        return plain(node.value)
    if isinstance(node, Mapping):
        return {name: plain(value) for name, value in node.items()}
    if isinstance(node, Sequence) and not isinstance(node, str):
        return [plain(item) for item in node]
    return node


def _lines(node: Any, depth: int, flat: bool = False) -> Iterator[str]:
    """The lines of a non-empty mapping or list; `flat` puts everything but mappings on one line."""
    indent = "  " * depth
    items = node.items() if isinstance(node, Mapping) else ((None, item) for item in node)
    for name, item in items:
        value = item.value if isinstance(item, CommentedValue) else item
        if isinstance(item, CommentedValue):
            yield comment(item.reason, len(indent))
        if name is None:
            yield from _list_item(value, depth)
            continue
        head = f"{indent}{key(name)}:"
        if flat and not isinstance(value, Mapping):
            yield f"{head} {scalar(value)}"
        elif isinstance(value, str) and re.fullmatch(_LITERAL, value):
            yield f"{head} |{_chomping(value)}"
            yield from (f"{indent}  {line}" if line else "" for line in value.split("\n")[:-1])
        elif _is_nested(value):
            yield head
            yield from _lines(value, depth + 1, flat)
        else:
            yield f"{head} {scalar(value)}"


def _list_item(value: Any, depth: int) -> Iterator[str]:
    """The lines of a list item; the first follows the dash."""
    indent = "  " * depth
    if not _is_nested(value):
        yield f"{indent}- {scalar(value)}"
        return
    for index, line in enumerate(_lines(value, depth + 1)):
        yield f"{indent}- {line.lstrip()}" if index == 0 else line


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | Sequence) and not isinstance(value, str) and bool(value)


def _chomping(value: str) -> str:
    """The block indicator that keeps empty lines at the end."""
    return "+" if value.endswith("\n\n") or value == "\n" else ""


def _as_json(node: Any) -> str:
    """Text that distinguishes values that Python considers equal, such as `True` and 1."""
    return json.dumps(node, sort_keys=True)
