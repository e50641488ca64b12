"""What is read of a bundle's `launch.json`, which may hold more, and where one is otherwise."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

MAX_SECONDS = 10_000_000
MAX_NODES = 100_000


def _is_text(value: Any) -> bool:
    """As a program can get it."""
    try:
        return isinstance(value, str) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _is_argv(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_text, value))


def _is_like(pattern: str, value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _is_between(least: int, most: int, value: Any) -> bool:
    return type(value) is int and least <= value <= most


def _is_map(key: str, fits: Callable[[Any], bool], value: Any) -> bool:
    return isinstance(value, dict) and all(_is_like(key, k) and fits(v) for k, v in value.items())


def _is_list(fits: Callable[[Any], bool], value: Any) -> bool:
    return isinstance(value, list) and all(map(fits, value))


_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_is_name = partial(_is_like, _NAME)
_are_variables = partial(_is_map, _VARIABLE, _is_text)
_ENTRY = {
    "argv": _is_argv,
    "host": partial(_is_like, r"[A-Za-z0-9:_][A-Za-z0-9:._-]{0,254}"),
    "ports": partial(_is_map, _NAME, partial(_is_between, 0, 65535)),
    "environment": _are_variables,
    "ready": {"port": _is_name, "path?": partial(_is_like, r"/[!-~]{0,999}")},
    "start_timeout_s": partial(_is_between, 0, MAX_SECONDS),
    "stop_timeout_s?": partial(_is_between, 0, MAX_SECONDS),
    "model_name?": partial(_is_like, r"(?!\.{1,2}$)[^/\x00-\x1f\x7f]{1,255}"),
    "restricted_apis?": partial(_is_list, _is_name),
    "nodes?": partial(_is_between, 1, MAX_NODES),
}
_DOCUMENT = {
    "name": _is_name,
    "checkpoint": _is_text,
    "engine": {"name": _is_name, "release": _is_text},
    "environment": _are_variables,
    "targets": {"*": _ENTRY},
}


def misfits(document: Any) -> Iterator[str]:
    """The dotted paths at which a document is not as it must be; "" is the whole of it."""
    found = [path.strip(".") for path in _misfits(document, _DOCUMENT, "")]
    yield from found
    for name, entry in document["targets"].items() if not found else ():
        if entry["ready"]["port"] not in entry["ports"]:
            yield f"targets.{name}.ports.{entry['ready']['port']}"


def _misfits(value: Any, form: Any, path: str) -> Iterator[str]:
    """By a test of the value, or a mapping of forms; `*` is any key, `?` ends one that may lack."""
    if callable(form):
        if not form(value):
            yield path
    elif not isinstance(value, dict):
        yield path
    else:
        for key, inner in (dict.fromkeys(value, form["*"]) if "*" in form else form).items():
            name = key if "*" in form else key.removesuffix("?")
            if name == key or value.get(name) is not None:
                yield from _misfits(value.get(name), inner, f"{path}.{name}")
