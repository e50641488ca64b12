"""Templates of log lines: fixed text with placeholders, as rows of data write them.

`{name}` stands for a word, `{name:int}`, `{name:positive}` and `{name:number}` for numbers,
`{name:text}` for any text, and `{*}` for text that is not kept; `^` at the start is the start of a
message, after the time, level and rank that its program writes before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

_KINDS = {
    "word": r"[^\s,;\"']+",
    "int": r"\d[\d,]*",
    "positive": r"[1-9][\d,]*",
    "number": r"\d+(?:\.\d+)?",
    "text": r".+?",
}
_PLACEHOLDER = re.compile(r"\{(?P<name>\*|[a-z_]+)(?::(?P<kind>[a-z]+))?\}")
LEAST_LITERAL = 5  # characters of fixed text, so that few lines have to be looked at closely


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled template: `literal` is in every line that `pattern` matches."""

    literal: bytes
    expression: str
    anchored: bool

    @property
    def pattern(self) -> re.Pattern[str]:
        return _pattern(self.expression)


@cache
def _pattern(expression: str) -> re.Pattern[str]:
    """Compiled when a line first has its literal: few of a thousand templates are needed."""
    return re.compile(expression)


def fault(text: str) -> str:
    """What is wrong with a template, as `what is wrong; how to fix it`; empty if nothing is."""
    for found in _PLACEHOLDER.finditer(text):
        if found["kind"] and found["kind"] not in _KINDS:
            return f"{found[0]} has no known kind; use one of {', '.join(_KINDS)}"
    longest = max(_PLACEHOLDER.split(text.removeprefix("^"))[::3], key=len)
    if len(longest.strip()) < LEAST_LITERAL:
        return f"{text} has too little fixed text; write {LEAST_LITERAL} characters in a row"
    return ""


def names(text: str) -> list[str]:
    """The names that a text wants values for."""
    return [found["name"] for found in _PLACEHOLDER.finditer(text) if found["name"] != "*"]


@cache
def compiled(text: str) -> Template:
    """The template of a text without a fault."""
    anchored = text.startswith("^")
    parts = _PLACEHOLDER.split(text.removeprefix("^"))
    literals, expression = parts[::3], ""
    for index, literal in enumerate(literals):
        expression += re.escape(literal)
        if index == len(literals) - 1:
            break
        name, kind = parts[3 * index + 1], parts[3 * index + 2] or "word"
        is_last = index == len(literals) - 2 and not literals[-1]
        if name == "*":
            expression += ".*?"
        elif kind == "text" and is_last:
            expression += f"(?P<{name}>.+)"
        else:
            expression += f"(?P<{name}>{_KINDS[kind]})"
    longest = max(literals, key=len)
    return Template(longest.encode(), f"^{expression}" if anchored else expression, anchored)
