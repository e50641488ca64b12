"""Estimates the cost of matching regular expressions from untrusted files."""

from __future__ import annotations

import re
from functools import lru_cache
from math import comb

MAX_REPETITIONS = 4  # and groups of alternatives: a name is compared in about 0.01 s
REPETITION = re.compile(r"(?:[*+?]|\{\d*,?\d*\})[?+]?")
_ALTERNATIVES = re.compile(r"\([^()]*\|")


def is_slow(expression: str) -> bool:
    """Whether matching a name may take long.

    Python tries every way to split a name among repetitions and alternatives: with `.*.*!` the
    square of its length, with `(.*)*!` twice as many for each letter.
    """
    found = signs(expression)
    most = max(len(REPETITION.findall(found)), len(_ALTERNATIVES.findall(found)))
    return re.search(r"\)(?:[*+]|\{)", found) is not None or most > MAX_REPETITIONS


@lru_cache(maxsize=4096)
def steps(expression: str, length: int) -> int:
    """The most steps of a search through a text of this length, unless it `is_slow`."""
    found = signs(expression)
    is_anchored = found.startswith("^") and "|" not in found
    shares = len(REPETITION.findall(found)) + (not is_anchored)
    choices: int = (1 + found.count("|")) ** max(1, len(_ALTERNATIVES.findall(found)))
    return comb(length + shares, shares) * choices


def signs(expression: str) -> str:
    """An expression with `x` for each character class and each escaped character."""
    found = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", expression, flags=re.DOTALL)
    return found.replace("(?", "(")
