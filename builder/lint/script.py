"""Shell scripts: the words of server commands in them, and the files that they write."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ..diagnostics import Location
from ..documents import START

COMMAND = "trtllm-serve"
MODULE = "tensorrt_llm.commands.serve"  # the same, as `python -m` starts it

_TOKEN = re.compile(
    r"""(?P<redirect>(?:\d+|&)?(?:<<<|>>|>\||[<>]&|[<>])[ \t]*(?:\d+-?(?=[\s;|&)]|\Z)|-)?)
      | (?P<operator>&&|\|\||;;|\|&|[;&|\n])
      | (?P<space>(?:[ \t\r]|\\\r?\n)+)
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
    location: Location
    certain: bool


@dataclass(frozen=True, slots=True)
class HereDocument:
    """A file that a script writes from its own text; without a name it is read by a command."""

    name: str
    text: str
    start: Location


@dataclass(frozen=True, slots=True)
class Statement:
    """A simple command, and the operator behind it; a bracket counts as one."""

    words: tuple[Word, ...]
    end: str


@dataclass
class Script:
    """The words after each server command, and the files written."""

    commands: list[list[Word]] = field(default_factory=list)
    files: list[HereDocument] = field(default_factory=list)


def read(text: str) -> Script:
    """The server commands and written files of a script."""
    # A here document that goes to no file may be a script for another shell.
    files = [document for document in _here_documents(text) if document.name]
    return Script(list(_commands(_without(files, text), START)), files)


def statements(text: str, start: Location = START) -> list[Statement]:
    """The commands of a text in their order, without their redirections and without data."""
    return list(_statements(_without(_here_documents(text), text), start))


def _statements(text: str, start: Location) -> Iterator[Statement]:
    words: list[Word] = []
    is_file = False  # what a redirection names
    place = _places(text, start)
    for match in _TOKEN.finditer(text):
        kind, raw = match.lastgroup, match.group()
        if kind == "redirect":
            is_file = raw.rstrip()[-1] not in "-0123456789"
        elif kind == "word":
            if not is_file:
                words.append(_word(raw, place(match.start())))
            is_file = False
        elif kind in ("operator", "end"):
            if words:
                yield Statement(tuple(words), raw)
            words = []
    if words:
        yield Statement(tuple(words), "\n")


def _without(documents: Iterable[HereDocument], text: str) -> str:
    """A script with the lines of its here documents left blank."""
    lines = text.splitlines(keepends=True)
    for document in documents:
        first = document.start.line - 1
        # Gone, or the rest of a `bash -c "..."` would count as its data when that is read.
        lines[first - 1] = _HERE.sub(lambda found: " " * len(found.group()), lines[first - 1])
        count = len(document.text.splitlines()) + 1
        lines[first : first + count] = ["\n"] * len(lines[first : first + count])
    return "".join(lines)


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
        name = target.group(1).strip("\"'") if target else ""
        yield HereDocument(name, "".join(lines[begin:index]), Location(begin + 1, 1))
        index += 1


def _commands(text: str, start: Location, depth: int = 0) -> Iterator[list[Word]]:
    """The words that follow each server command, up to the end of that command."""
    for words in (row.words for row in _statements(text, start)):
        for index, word in enumerate(words):
            if is_server(word.text):
                yield [*words[index + 1 :]]
                break
            if depth < 2 and mentions_server(word.text):  # bash -c "..."
                inner = Location(word.location.line, word.location.column + 1)
                yield from _commands(word.text, inner, depth + 1)


def _places(text: str, start: Location) -> Callable[[int], Location]:
    """The place of each position in a text that begins at `start`."""
    begins = [0] + [match.end() for match in re.finditer("\n", text)]

    def place(position: int) -> Location:
        row = bisect_right(begins, position) - 1
        column = position - begins[row] + (start.column if row == 0 else 1)
        return Location(start.line + row, column)

    return place


def _word(raw: str, place: Location) -> Word:
    certain = not re.search(r"[$`]", re.sub(r"'[^']*'|\\\$", "", raw))
    return Word(_QUOTED.sub(_unquoted, raw), place, certain)


def _unquoted(match: re.Match[str]) -> str:
    single, double, escaped = match.groups()
    return next(part for part in (single, double, escaped) if part is not None)
