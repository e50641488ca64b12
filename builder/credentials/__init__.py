"""Credentials: which names and texts are one, so that none is written into a bundle or repeated.

Bundles are copied and kept, and messages end in logs. What is found is therefore refused with its
place, and `mask` is on the way of every diagnostic.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

from .names import is_held
from .randomness import DRAWN, in_base64, is_random, without_words
from .shapes import ASSIGNED, NAME, SHAPES, SPEAKS, SPOKEN_OF

MASK = "[credential]"
# Mappings whose keys are names that others give.
_FREE = frozenset(("environment", "env", "attributes", "annotations", "variables", "parameters"))


@lru_cache(maxsize=2_000)
def mask(text: str) -> str:
    """The text without credentials, and without what a machine may have drawn to be one."""
    return re.sub(DRAWN, _hide_drawn, _mask_certain(text))


@lru_cache(maxsize=2_000)
def _mask_certain(text: str) -> str:
    """The text with every credential in it replaced that its shape or its name tells."""
    if not text.isascii() and (plain := unicodedata.normalize("NFKC", text)) != text:
        # Other forms of the same letters hide no credential.
        return masked if (masked := _mask_certain(plain)) != plain else text
    if _any_of(SPEAKS).search(text):
        text = _any_of(*SPOKEN_OF).sub(MASK, text)
    text = _any_of(*SHAPES).sub(MASK, text)
    text = re.sub(DRAWN, lambda run: MASK if run[1] and _holds_one(run[1]) else run[0], text)
    if "=" not in text:
        return text
    return re.sub(ASSIGNED, lambda row: f"{row[1]}={MASK}" if _is_assigned(row) else row[0], text)


def shown(value: Any, path: str = "", length: int = 60) -> str:
    """The beginning of a value that is wrong, as an error may repeat it."""
    if any(found(value, path)):
        return MASK
    return mask(str(value))[:length]


def found(document: Any, path: str = "", by_name: bool = True) -> Iterator[tuple[str, str]]:
    """The place of every credential in plain data, and what is wrong with it.

    Not `by_name` in tables of names, which say something of each: there a text is one by its shape.
    """
    if isinstance(document, str):
        if _mask_certain(document) != document:
            yield path, "holds a credential, which would be in every bundle"
        elif by_name and any(is_held(name, document) for name in _variables(path)):
            yield path, "is by its name a credential, which a bundle must not hold"
    elif isinstance(document, Mapping):
        name, value = document.get("name"), document.get("value")
        if by_name and isinstance(name, str) and isinstance(value, str) and is_held(name, value):
            yield f"{path}.value", "is by its name a credential, which a bundle must not hold"
        for key, inner in document.items():
            yield from found(inner, f"{path}.{key}".strip("."), by_name)
            yield from found(str(key), path, by_name)
    elif isinstance(document, list):
        for index, inner in enumerate(document):
            yield from found(inner, f"{path}.{index}", by_name)
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield from found(str(document), path, by_name)


def _holds_one(run: str) -> bool:
    plain = in_base64(run)
    return bool(plain) and _mask_certain(plain) != plain


def _hide_drawn(run: re.Match[str]) -> str:
    if not run[1] or in_base64(run[1]) or not is_random(run[1]):
        return run[0]
    before, _, behind = without_words(run[1])
    return f"{before}{MASK}{behind}"


@cache
def _any_of(*shapes: str) -> re.Pattern[str]:
    """What any of the shapes matches: too large to be compiled by commands that say nothing."""
    return re.compile("|".join(f"(?:{shape})" for shape in shapes))


def _is_assigned(row: re.Match[str]) -> bool:
    """Whether a text gives a credential to a name; small letters as in a URL name objects too."""
    name, value = row[1], row[2]
    is_variable = name != name.lower()
    is_asked = row.string[: row.start()].endswith(("?", "&"))  # in a URL
    is_word = name == "key" and not is_asked and re.fullmatch("[a-z]{1,20}", value)
    return is_held(name, value) and (is_variable or not (is_word or re.fullmatch(NAME, value)))


def _variables(path: str) -> list[str]:
    """The names on a path that a user gave."""
    keys = path.split(".")
    free = next((at for at, key in enumerate(keys) if key in _FREE), len(keys))
    return keys[free + 1 :]
