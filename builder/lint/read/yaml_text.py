"""Reads YAML with variables and templates in it, and locates texts inside values."""

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

# What stands in a quoted or folded text as it does in the text that it means.
_WORD = re.compile(r"[\w./:=-]{3,}")


def places(text: str, start: Location = START) -> Callable[[int], Location]:
    """The place of each position in a text that begins at `start`."""
    begins = [0] + [match.end() for match in re.finditer("\n", text)]

    def place(position: int) -> Location:
        row = bisect_right(begins, position) - 1
        column = position - begins[row] + (start.column if row == 0 else 1)
        return Location(start.line + row, column)

    return place


def inside(document: Yaml, path: str, text: str, place: Location) -> Location:
    """The place in a document of one in the text at a path, which counts from its own beginning.

    A text that is not written as it is read is found again by its words, one after the other.
    """
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
    """Where the words of a text begin, and in which line of what is written each stands."""
    offsets, lines, at, line = [], [], 0, 0
    for word in _WORD.finditer(text):
        found = written.find(word.group(), at)
        if found >= 0:
            line += written.count("\n", at, found)
            at = found
        offsets.append(word.start())
        lines.append(line)
    return offsets, lines


# $NAME, ${NAME...}, $(command), $((sum)) and `command`, as far as no backslash stands before.
SHELL = re.compile(
    r"(?<!\\)(?:\$\{(?:[^{}\n]|\{[^{}\n]*\})*\}"
    r"|\$\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\)"
    r"|\$(?:\w+|[@*#?!$-])|`[^`\n]*`)"
)
# {{ an action of a Go or Jinja template }}, and Jinja's {% statements %}.
# None reaches over another that begins, or each of many without an end would be sought one; and the
# shell's own ${#LIST[@]} begins no comment.
TEMPLATE = re.compile(
    r"\{\{(?:[^{}]|\{[^{}]*\}|\}(?!\}))*\}\}"
    r"|\{%(?:(?!\{%).)*?%\}|(?<!\$)\{#(?:(?!\{#).)*?#\}",
    re.S,
)
_ACTION = re.compile(rf"\$?(?:{TEMPLATE.pattern})", re.S)
# Actions that write nothing themselves.
_CONTROL = re.compile(
    r"\{\{-?\s*(?:if|else|end|range|with|define|block|break|continue|/\*|\$\w+\s*:?=)|\{[%#]", re.S
)
# Actions that end one branch of a template, so that another may repeat its keys.
_BRANCH_END = re.compile(r"\{\{-?\s*(?:else|end)\b|\{%-?\s*(?:else|elif|endif|endfor)\b")
# Characters of private use stand for what is not known, so that lines and columns stay.
_FIRST, _COUNT = 0xE000, 6400
_MARK = "#"  # before a line that is read as a comment
_MASKED = re.compile(f"([{chr(_FIRST)}-{chr(_FIRST + _COUNT - 1)}])\\1*")
_HIDDEN = re.compile(rf"^\s*{_MARK}(?={_MASKED.pattern})")  # by a text around this one


class MaskedText:
    """A text with its variables masked. `is_open` if they may put in whole lines.

    `other_branches` are keys that another branch of a template gives again, of which only the last
    one is read.
    """

    def __init__(self, text: str, pattern: re.Pattern[str]) -> None:
        self.pattern, self.originals = pattern, list[str]()
        self.is_open = False
        self.other_branches = list[Diagnostic]()
        lines = pattern.sub(self._mask, text).split("\n")
        before = ""
        for index, line in enumerate(lines):
            if self._is_alone(line) and not (before.endswith((":", "-")) and self._is_value(line)):
                self.is_open |= not all(_CONTROL.match(each) for each in self._in(line))
                lines[index] = _commented(line)
            elif line.strip():
                before = line.rstrip()
        self.text = "\n".join(lines)

    def documents(self, start: Location = START) -> list[Yaml]:
        """The YAML documents of the text; a value that is put in later is a `Variable`."""
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
        """Whether a key is given again behind the end of a branch of the template."""
        if found.rule != DUPLICATE_KEY:
            return False
        lines = self.text.split("\n")[: found.location.line - start.line]
        return any(
            _BRANCH_END.match(action) for action in chain.from_iterable(map(self._in, lines))
        )

    def original(self, text: str) -> str:
        """A text as it was written."""
        return _MASKED.sub(lambda found: self._at(found[1]), text)

    def _mask(self, found: re.Match[str]) -> str:
        character = chr(_FIRST + len(self.originals) % _COUNT)
        self.originals.append(found[0])
        first, *others = found[0].split("\n")  # what goes on for lines is one value all the same
        return "\n".join((character * len(first), *(" " * len(line) for line in others)))

    @property
    def has_statements(self) -> bool:
        """Whether a template does more in it than put in values."""
        return any(_CONTROL.match(each) for each in self.originals)

    def _at(self, character: str) -> str:
        index = ord(character) - _FIRST
        return self.originals[index] if index < len(self.originals) else character

    def _in(self, line: str) -> Iterator[str]:
        return (self._at(found[1]) for found in _MASKED.finditer(line))

    def _is_alone(self, line: str) -> bool:
        bare = _HIDDEN.sub("", line)
        rest = _MASKED.sub("", bare).strip()
        return bool(_MASKED.search(bare)) and (not rest or rest.startswith(_MARK))

    def _is_value(self, line: str) -> bool:
        return not any(_CONTROL.match(each) for each in self._in(line))

    def _restored(self, data: Any) -> Any:
        if isinstance(data, str):
            if not _MASKED.search(data):
                return data
            return Variable(self.original(data), self.pattern)
        if isinstance(data, Mapping):
            if any(isinstance(key, str) and _MASKED.search(key) for key in data):
                self.is_open = True
            return {
                key: self._restored(item)
                for key, item in data.items()
                if not (isinstance(key, str) and _MASKED.search(key))
            }
        if isinstance(data, list):
            return [self._restored(item) for item in data]
        return data


def template_as_shell(text: str) -> str:
    """A text with the actions of a template as variables of a shell, each as long as it was."""
    return _ACTION.sub(lambda found: re.sub(r"[^\n]", "_", found[0]).replace("_", "$", 1), text)


def _commented(line: str) -> str:
    """A line of actions only as a comment, which stays in the block that it stands in."""
    start = len(line) - len(line.lstrip())
    return line if line[start] == _MARK else f"{line[:start]}{_MARK}{line[start:]}"


def value_of(text: str) -> Any:
    """The value that a text is as YAML; `None` if it cannot be read."""
    first = scan_yaml(text)[0]
    return None if first.diagnostics else first.data


def variable_paths(data: Any, path: str = "") -> Iterator[str]:
    """The paths of all values that are put in later."""
    if isinstance(data, Variable):
        yield path
    items = data if isinstance(data, Mapping) else {}
    if isinstance(data, list):
        items = dict(enumerate(data))
    for key, item in items.items():
        yield from variable_paths(item, f"{path}.{key}" if path else str(key))
