"""Shell scripts: the words of server commands in them, and the files that they write."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..documents import Place

COMMAND = "trtllm-serve"
MODULE = "tensorrt_llm.commands.serve"  # the same, as `python -m` starts it

_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t\r]|\\\r?\n)+)
      | (?P<comment>\#[^\n]*)
      | (?P<word>(?:\$\([^()\n]{0,200}(?:\([^()\n]{0,200}\)[^()\n]{0,200}){0,3}\)
          | \$\{[^}\n]{0,200}\} | '[^']*' | "(?:[^"\\]|\\.)*" | \\.
          | [^\s'"\\;|&<>()\#] | (?<=[^\s;|&<>()])\#)+)
      | (?P<end>.|\n)""",
    re.VERBOSE | re.DOTALL,
)
_QUOTED = re.compile(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|\\(.)", re.DOTALL)
_HERE = re.compile(r"(?<!<)<<-?\s*(['\"]?)(\w+)\1")
_TARGET = re.compile(r"(?:>|\btee\s+(?:-a\s+)?)\s*([^\s<>|&;]+)")


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, without its quotes; `certain` if the shell puts nothing else in."""

    text: str
    place: Place
    certain: bool


@dataclass(frozen=True, slots=True)
class HereDocument:
    """A file that a script writes from its own text."""

    name: str
    text: str
    start: Place


@dataclass
class Script:
    """The words after each server command, and the files written."""

    commands: list[list[Word]] = field(default_factory=list)
    files: list[HereDocument] = field(default_factory=list)


def read(text: str) -> Script:
    """The server commands and written files of a script."""
    script = Script(files=list(_here_documents(text)))
    rest = text.splitlines(keepends=True)
    for document in script.files:  # what is data to the shell is no command
        first = document.start.line - 1
        for index in range(first, first + document.text.count("\n")):
            rest[index] = "\n"
    script.commands = list(_commands("".join(rest), Place(1, 1)))
    return script


def is_server(word: str) -> bool:
    """Whether a word is the name of the server's program."""
    return word.rpartition("/")[2] in (COMMAND, MODULE)


def mentions_any(text: str) -> bool:
    """Whether a text can start a server or write a file of its own."""
    return COMMAND in text or MODULE in text or "<<" in text


def mentions_server(word: str) -> bool:
    """Whether a word is a command line of its own, with a server in it."""
    return (COMMAND in word or MODULE in word) and re.search(r"\s", word) is not None


def _here_documents(text: str) -> Iterator[HereDocument]:
    lines = text.splitlines(keepends=True)
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        found = None if line.lstrip().startswith("#") else _HERE.search(line)
        if not found:
            continue
        begin = index
        while index < len(lines) and lines[index].strip() != found.group(2):
            index += 1
        target = _TARGET.search(line)
        if target:  # one that is no file may be a script for another shell
            name = target.group(1).strip("\"'")
            yield HereDocument(name, "".join(lines[begin:index]), Place(begin + 1, 1))


def _commands(text: str, start: Place, depth: int = 0) -> Iterator[list[Word]]:
    """The words that follow each server command, up to the end of that command."""
    words: list[Word] | None = None
    for word in _words(text, start):
        if word is None:
            if words is not None:
                yield words
            words = None
        elif words is not None:
            words.append(word)
        elif is_server(word.text):
            words = []
        elif depth < 2 and mentions_server(word.text):  # bash -c "..."
            inner = Place(word.place.line, word.place.column + 1)
            yield from _commands(word.text, inner, depth + 1)
    if words is not None:
        yield words


def _words(text: str, start: Place) -> Iterator[Word | None]:
    """The words of a text, and `None` where a command ends."""
    begins = [0] + [match.end() for match in re.finditer("\n", text)]
    for match in _TOKEN.finditer(text):
        if match.lastgroup == "word":
            row = bisect_right(begins, match.start()) - 1
            column = match.start() - begins[row] + (start.column if row == 0 else 1)
            raw = match.group()
            certain = not re.search(r"[$`]", re.sub(r"'[^']*'|\\\$", "", raw))
            bare = _QUOTED.sub(_unquoted, raw)
            yield Word(bare, Place(start.line + row, column), certain)
        elif match.lastgroup == "end":
            yield None


def _unquoted(match: re.Match[str]) -> str:
    single, double, escaped = match.groups()
    return next(part for part in (single, double, escaped) if part is not None)
