"""What comparing a text with a regular expression that somebody else wrote may cost."""

from __future__ import annotations

import re
from functools import lru_cache
from math import comb

MAX_REPETITIONS = 4  # and groups of alternatives: a name is compared in about 0.01 s
REPETITION = re.compile(r"(?:[*+?]|\{\d*,?\d*\})[?+]?")
_ALTERNATIVES = re.compile(r"\([^()]*\|")


def is_slow(expression: str) -> bool:
    """Whether comparing a name with an expression may take more than a moment.

    Python tries every way to share a name among repetitions and alternatives: with `.*.*!` as many
    as the square of its length, with `(.*)*!` twice as many for each letter.
    """
    found = signs(expression)
    most = max(len(REPETITION.findall(found)), len(_ALTERNATIVES.findall(found)))
    return re.search(r"\)(?:[*+]|\{)", found) is not None or most > MAX_REPETITIONS


@lru_cache(maxsize=4096)
def steps(expression: str, length: int) -> int:
    """The most ways to try in a search through that many characters, unless it `is_slow`."""
    found = signs(expression)
    is_anchored = found.startswith("^") and "|" not in found
    shares = len(REPETITION.findall(found)) + (not is_anchored)
    choices: int = (1 + found.count("|")) ** max(1, len(_ALTERNATIVES.findall(found)))
    return comb(length + shares, shares) * choices


def signs(expression: str) -> str:
    """An expression with a letter for each class and each sign that stands for itself."""
    found = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", expression, flags=re.DOTALL)
    return found.replace("(?", "(")
