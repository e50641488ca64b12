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
_TARGET = re.compile(
    r"(?:(?<![\d&>])(?P<redirect>>>?)\|?[ \t]*"
    r"|\btee[ \t]+(?P<append>(?:-a|--append)[ \t]+)?)(?P<name>(?!/dev/null)[^\s<>|&;]+)"
)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, without its quotes; `certain` if the shell puts nothing else in."""

    text: str
    location: Location
    certain: bool


@dataclass(frozen=True, slots=True)
class HereDocument:
    """A text in a script that goes to the file `name`, or without one to a command. The shell puts
    values in unless it is `quoted`."""

    name: str
    text: str
    start: Location
    command: str = ""
    quoted: bool = False
    appends: bool = False
    strips_tabs: bool = False


@dataclass(frozen=True, slots=True)
class Statement:
    """A simple command, and the operator behind it; a bracket counts as one."""

    words: tuple[Word, ...]
    end: str
    redirects: tuple[tuple[str, Word], ...] = ()


@dataclass
class Script:
    """The words after each server command, the here documents, and the commands around them."""

    commands: list[list[Word]] = field(default_factory=list)
    here: list[HereDocument] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)


def read(text: str, start: Location = START) -> Script:
    """The server commands of a script and of those that it writes, and what it writes."""
    here = list(_here_documents(text))
    # A here document that goes to no file may be a script for another shell.
    rest = _without((row for row in here if row.name or _is_data(row)), text)
    found = Script(list(_commands(rest, start)), here)
    found.statements = list(_statements(_without(here, text), start))
    for document in here:
        if document.name and is_script(document):
            found.commands += _commands(document.text, document.start)
    return found


def _is_data(document: HereDocument) -> bool:
    """Whether a here document is no script for another shell, by the command that reads it."""
    return re.search(r"\b(?:python[\d.]*|kubectl|oc|helm)\b", document.command) is not None


def is_script(document: HereDocument) -> bool:
    """Whether a here document becomes a script, by its file or its first line."""
    return document.name.endswith((".sh", ".bash", ".sbatch")) or document.text.startswith("#!")


def statements(text: str, start: Location = START) -> list[Statement]:
    """The commands of a text in their order, without their redirections and without data."""
    return list(_statements(_without(_here_documents(text), text), start))


def _statements(text: str, start: Location) -> Iterator[Statement]:
    words: list[Word] = []
    redirects: list[tuple[str, Word]] = []
    operator = ""  # of a redirection whose file follows
    place = _places(text, start)
    for match in _TOKEN.finditer(text):
        kind, raw = match.lastgroup, match.group()
        if kind == "redirect":
            operator = raw.strip() if raw.rstrip()[-1] not in "-0123456789" else ""
        elif kind == "word":
            word = _word(raw, place(match.start()))
            if operator:
                redirects.append((operator, word))
            else:
                words.append(word)
            operator = ""
        elif kind in ("operator", "end"):
            if words:
                yield Statement(tuple(words), raw, tuple(redirects))
            words, redirects = [], []
    if words:
        yield Statement(tuple(words), "\n", tuple(redirects))


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
    if COMMAND in text or MODULE in text or "<<" in text:
        return True
    return re.search(r"\.ya?ml\b|dump\(", text) is not None  # echo, printf, yq or Python


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
        name = target["name"].strip("\"'") if target else ""
        appends = bool(target and (target["append"] or target["redirect"] == ">>"))
        yield HereDocument(
            name,
            "".join(lines[begin:index]),
            Location(begin + 1, 1),
            line,
            bool(found.group(1)),
            appends,
            found.group().startswith("<<-"),
        )
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


# What a backslash stands before in double quotes, and is dropped.
_ESCAPED = re.compile(r'\\(["$`\\])')


def _unquoted(match: re.Match[str]) -> str:
    single, double, escaped = match.groups()
    if double is not None:
        return _ESCAPED.sub(r"\1", double)
    return next(part for part in (single, escaped) if part is not None)
