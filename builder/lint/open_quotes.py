"""Quotes of a shell script that nothing closes: the shell reads on to the end of the file."""

from __future__ import annotations

import re

from ..diagnostics import Diagnostic, Location, located

# What opens and closes something, and what hides the character behind it.
_PART = re.compile(r"\\.|\$'(?:[^'\\]|\\.)*'?|\$\(|\$\{|[\"'`(){}]|#[^\n]*", re.DOTALL)
_CLOSES = {"$(": ")", "(": ")", "${": "}", '"': '"', "`": "`"}
_IN_TEXT = frozenset(('"', "$(", "${", "`"))  # that double quotes leave their meaning


def diagnostic(text: str) -> Diagnostic | None:
    """The last quote of a script that nothing closes; `text` has no here documents."""
    at = _open(text)
    if at is None:
        return None
    place = Location(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))
    what = f"opens a quote {text[at]} that nothing closes: the shell refuses the script"
    return located(place, "", what, "close it, or an earlier one")


def _open(text: str) -> int | None:
    """Where the quote begins that is open at the end of a script."""
    stack: list[tuple[str, int]] = []
    position = 0
    while found := _PART.search(text, position):
        part, start, position = found[0], found.start(), found.end()
        inner = stack[-1][0] if stack else ""
        is_quoted = inner in ('"', "${")
        if part.startswith("#"):
            if is_quoted or (start and not re.match(r"[\s;&|()`]", text[start - 1])):
                position = start + 1
            elif inner == "`" and "`" in part:
                position = start + part.index("`")
        elif part.startswith("$'"):
            if is_quoted:
                position = start + 1
            elif len(part) < 3 or not part.endswith("'"):
                return start + 1
        elif stack and part == _CLOSES[inner]:
            stack.pop()
        elif part == "'" and not is_quoted:
            end = text.find("'", position)
            if end < 0:
                return start
            position = end + 1
        elif part in _CLOSES and (not is_quoted or part in _IN_TEXT):
            stack.append((part, start))
    return next((start for part, start in reversed(stack) if part in '"`'), None)
