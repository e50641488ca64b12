"""Reads YAML that contains variables and templates, and locates texts inside values."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any

from ...diagnostics import NOWHERE, Diagnostic, Location
from ...documents import START, Variable, Yaml, scan_yaml
from ...general_rules import DUPLICATE_KEY

# Words that are the same in a quoted or folded value and in its source.
_WORD = re.compile(r"[\w./:=-]{3,}")


def places(text: str, start: Location = START) -> Callable[[int], Location]:
    """Returns a function from a position in a text to its location; the text begins at `start`."""
    begins = [0] + [match.end() for match in re.finditer("\n", text)]

    def place(position: int) -> Location:
        row = bisect_right(begins, position) - 1
        column = position - begins[row] + (start.column if row == 0 else 1)
        return Location(start.line + row, column)

    return place


def inside(document: Yaml, path: str, text: str, place: Location) -> Location:
    """Converts a location in the text at a path to a location in the document. A quoted or folded
    text differs from its source, so its words are searched there in order."""
    if place == NOWHERE:
        return document.locate(path)
    if block := document.blocks.get(path):
        return Location(block.line + place.line - 1, block.column + place.column - 1)
    if path not in document.folded:
        return document.locate(path)
    start, written = document.folded[path]
    offsets, lines = _lines(text, written)
    before = text.splitlines(keepends=True)[: max(place.line - 1, 0)]
    at = bisect_right(offsets, sum(map(len, before)) + max(place.column - 1, 0)) - 1
    return Location(start.line + lines[at], start.column) if at >= 0 and lines[at] else start


@lru_cache(maxsize=4)
def _lines(text: str, written: str) -> tuple[list[int], list[int]]:
    """Returns the offset of each word of a text, and the source line that contains it."""
    offsets, lines, at, line = [], [], 0, 0
    for word in _WORD.finditer(text):
        found = written.find(word.group(), at)
        if found >= 0:
            line += written.count("\n", at, found)
            at = found
        offsets.append(word.start())
        lines.append(line)
    return offsets, lines


# $NAME, ${NAME...}, $(command), $((sum)) and `command`, unless a backslash precedes them.
SHELL = re.compile(
    r"(?<!\\)(?:\$\{(?:[^{}\n]|\{[^{}\n]*\})*\}"
    r"|\$\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\)"
    r"|\$(?:\w+|[@*#?!$-])|`[^`\n]*`)"
)
# {{ action }} of a Go or Jinja template, and {% statement %} and {# comment #} of Jinja. A match
# never contains the start of another one; otherwise many unclosed starts would each scan the whole
# text. The shell's ${#LIST[@]} does not begin a comment.
TEMPLATE = re.compile(
    r"\{\{(?:[^{}]|\{[^{}]*\}|\}(?!\}))*\}\}"
    r"|\{%(?:(?!\{%).)*?%\}|(?<!\$)\{#(?:(?!\{#).)*?#\}",
    re.S,
)
_ACTION = rf"(?s)\$?(?:{TEMPLATE.pattern})"
# Actions that write no text.
_CONTROL = r"\{\{-?\s*(?:if|else|end|range|with|define|block|break|continue|/\*|\$\w+\s*:?=)|\{[%#]"
# Actions that end a branch of a template; another branch may repeat its keys.
_BRANCH_END = r"\{\{-?\s*(?:else|end)\b|\{%-?\s*(?:else|elif|endif|endfor)\b"
# Private-use characters replace unknown text, so that lines and columns do not change.
_FIRST, _COUNT = 0xE000, 6400
_MARK = "#"  # starts a line that is read as a comment
_MASKED = f"([{chr(_FIRST)}-{chr(_FIRST + _COUNT - 1)}])\\1*"
_HIDDEN = rf"^\s*{_MARK}(?={_MASKED})"  # hidden by an enclosing text


class MaskedText:
    """A text with its variables masked. `is_open` means that they may insert whole lines.

    `other_branches` are keys that several branches of a template set; only the last branch is read.
    """

    def __init__(self, text: str, pattern: re.Pattern[str]) -> None:
        self.pattern, self.originals = pattern, list[str]()
        self.is_open = False
        self.other_branches = list[Diagnostic]()
        lines = pattern.sub(self._mask, text).split("\n")
        before = ""
        for index, line in enumerate(lines):
            if self._is_alone(line) and not (before.endswith((":", "-")) and self._is_value(line)):
                self.is_open |= not all(re.match(_CONTROL, each) for each in self._in(line))
                lines[index] = _commented(line)
            elif line.strip():
                before = line.rstrip()
        self.text = "\n".join(lines)

    def documents(self, start: Location = START) -> list[Yaml]:
        """Returns the YAML documents of the text; a value that is filled in later is a
        `Variable`."""
        found = scan_yaml(self.text, start)
        for document in found:
            document.data = self._restored(document.data)
            faults = [
                row for row in document.diagnostics if not self._is_in_other_branch(row, start)
            ]
            self.other_branches += [row for row in document.diagnostics if row not in faults]
            document.diagnostics = [
                replace(row, path=self.original(row.path), message=self.original(row.message))
                for row in faults
            ]
        return found

    def _is_in_other_branch(self, found: Diagnostic, start: Location) -> bool:
        """Returns whether a repeated key follows the end of a branch of the template."""
        if found.rule != DUPLICATE_KEY:
            return False
        lines = self.text.split("\n")[: found.location.line - start.line]
        return any(
            re.match(_BRANCH_END, action) for action in chain.from_iterable(map(self._in, lines))
        )

    def original(self, text: str) -> str:
        """Returns a text with its masked parts restored."""
        return re.sub(_MASKED, lambda found: self._at(found[1]), text)

    def _mask(self, found: re.Match[str]) -> str:
        character = chr(_FIRST + len(self.originals) % _COUNT)
        self.originals.append(found[0])
        first, *others = found[0].split("\n")  # several lines are still one value
        return "\n".join((character * len(first), *(" " * len(line) for line in others)))

    @property
    def has_statements(self) -> bool:
        """Whether a template has actions other than inserting values."""
        return any(re.match(_CONTROL, each) for each in self.originals)

    def _at(self, character: str) -> str:
        index = ord(character) - _FIRST
        return self.originals[index] if index < len(self.originals) else character

    def _in(self, line: str) -> Iterator[str]:
        return (self._at(found[1]) for found in re.finditer(_MASKED, line))

    def _is_alone(self, line: str) -> bool:
        bare = re.sub(_HIDDEN, "", line)
        rest = re.sub(_MASKED, "", bare).strip()
        return bool(re.search(_MASKED, bare)) and (not rest or rest.startswith(_MARK))

    def _is_value(self, line: str) -> bool:
        return not any(re.match(_CONTROL, each) for each in self._in(line))

    def _restored(self, data: Any) -> Any:
        if isinstance(data, str):
            if not re.search(_MASKED, data):
                return data
            return Variable(self.original(data), self.pattern)
        if isinstance(data, Mapping):
            if any(isinstance(key, str) and re.search(_MASKED, key) for key in data):
                self.is_open = True
            return {
                key: self._restored(item)
                for key, item in data.items()
                if not (isinstance(key, str) and re.search(_MASKED, key))
            }
        if isinstance(data, list):
            return [self._restored(item) for item in data]
        return data


# A placeholder for the user to fill in, which is no redirection.
_PLACEHOLDER = r"(?<![<\w])<\w(?:[\w .|/-]*[\w.|/-])?>|(?<=\s)\{\w+(?:\|\w+)+\}"


def template_as_shell(text: str) -> str:
    """Replaces template actions and placeholders by shell variables of the same length."""
    if "{" not in text and ">" not in text:
        return text  # both patterns take seconds for megabytes
    either = f"{_ACTION}|{_PLACEHOLDER}"
    return re.sub(either, lambda found: re.sub(r"[^\n]", "_", found[0]).replace("_", "$", 1), text)


def _commented(line: str) -> str:
    """Turns a line of actions into a comment that stays in its block."""
    start = len(line) - len(line.lstrip())
    return line if line[start] == _MARK else f"{line[:start]}{_MARK}{line[start:]}"


def value_of(text: str) -> Any:
    """Returns the value of a text as YAML, or `None` if it cannot be read."""
    first = scan_yaml(text)[0]
    return None if first.diagnostics else first.data


def variable_paths(data: Any, path: str = "") -> Iterator[str]:
    """Yields the paths of all values that are filled in later."""
    if isinstance(data, Variable):
        yield path
    items = data if isinstance(data, Mapping) else {}
    if isinstance(data, list):
        items = dict(enumerate(data))
    for key, item in items.items():
        yield from variable_paths(item, f"{path}.{key}" if path else str(key))
