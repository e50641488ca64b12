"""Writes docs/targets.md anew: the keys of each target, from the classes that read them.

python -m maintenance.target_keys
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from builder import targets
from builder.schema import Strict, fields_of, shape

PAGE = Path(__file__).parent.parent / "docs" / "targets.md"
HEAD = """\
# Keys of targets

What a deployment file may say below `targets.NAME`, or `--set targets.NAME.KEY=VALUE`: each key
with its type and its default, if it has one. `python -m maintenance.target_keys` writes this page.
"""
WORDS = {str: "text", int: "integer", float: "number", bool: "true or false"}


def page() -> str:
    lines, known = [HEAD], dict[type[Strict], str]()
    for name in targets.names():
        lines += _part(name, targets.options_type(name), known)
    return "\n".join(lines)


def _part(name: str, kind: type[Strict], known: dict[type[Strict], str]) -> Iterator[str]:
    """The text and the keys of a class, then those of the classes of its keys, each once."""
    known[kind] = name
    fields = fields_of(kind)
    yield f"{'###' if '.' in name else '##'} {name}\n"
    if not fields:
        yield "No keys.\n"
        return
    yield f"{inspect.cleandoc(kind.__doc__ or '')}\n"
    rows = [f"`{key}` ({_words(hint)}{_default(kind, key)})" for key, (hint, _) in fields.items()]
    yield ",\n".join(rows) + ".\n"
    for key, (hint, _) in fields.items():
        for inner in _classes(hint):
            if inner in known:
                yield f"`{key}` has the keys of `{known[inner]}`.\n"
            else:
                yield from _part(f"{name}.{key}", inner, known)


def _words(hint: Any) -> str:
    origin, arguments = shape(hint)
    if origin is typing.Annotated:
        return _words(arguments[0])
    if origin is typing.Union:
        return " or ".join(_words(row) for row in arguments if row is not NoneType)
    if origin is Literal:
        return ", ".join(f"`{row}`" for row in arguments)
    if origin is list:
        return f"list of {_words(arguments[0])}"
    return WORDS.get(origin, "mapping")


def _classes(hint: Any) -> Iterator[type[Strict]]:
    origin, arguments = shape(hint)
    if isinstance(origin, type) and issubclass(origin, Strict):
        yield origin
    if origin is typing.Annotated:
        yield from _classes(arguments[0])
    if origin is typing.Union:
        for row in arguments:
            yield from _classes(row)


def _default(kind: type[Strict], key: str) -> str:
    found = getattr(kind, key, dataclasses.MISSING)
    if isinstance(found, dataclasses.Field):
        make: Any = found.default_factory
        found = make()
    if found is dataclasses.MISSING:
        return ", required"
    if found is None or found in ([], {}):
        return ""
    if isinstance(found, Strict):
        found = found.data(exclude_none=True)
    return f": `{json.dumps(found)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
