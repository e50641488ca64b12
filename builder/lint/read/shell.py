"""Reads shell scripts: statements, here documents and the words of server commands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import zip_longest

from ...diagnostics import Location
from ...documents import START
from ..engine import default_formats, names_server
from ..model import HereDocument, Statement, Word
from .shell_values import Values
from .yaml_text import places

_PRINTERS = frozenset(("echo", "printf"))
# Common names of functions that print, defined by the scripts themselves.
_OWN_PRINTERS = frozenset(("log", "info", "warn", "die", "error", "say", "logger"))
# At any position in a statement, also after `ssh HOST` or `kubectl exec`.
_FINDERS = frozenset(("grep", "egrep", "fgrep", "zgrep", "rg", "pgrep", "pkill", "killall"))
# fmt: off
_READERS = frozenset(
    (
        "ps", "pidof", "awk", "sed", "cat", "less", "more", "head", "tail", "wc", "sort",
        "cut", "tr", "jq", "yq", "man", "which", "type", "whatis", "ls", "curl", "wget",
        "git", "read", "test", "[", "[[", ":", "true", "false"
    )
)
# fmt: on
# fmt: off
_BEFORE = frozenset(
    (
        "if", "then", "else", "elif", "while", "until", "do", "!", "{", "time", "sudo",
        "command", "exec", "env"
    )
)
# fmt: on
_FOR_READERS = re.compile(r"(?:.*\.)?(?:txt|md|out|err|csv)|.*log[\w}]*|/dev/\w+", re.I)
# Programs that run code of another language, and the flags before that code.
_INTERPRETERS = re.compile(r"(?:python|pypy|ruby|perl|node|deno|php|lua|Rscript|awk)[\d.]*")
_CODE = re.compile(r"-[a-zA-Z]*[cer]|--eval|--command")


def runs_code(words: Sequence[str]) -> bool:
    """Returns whether a command runs inline code, as `python3 -c 'print("...")'` does."""
    for index, word in enumerate(words):
        if not _INTERPRETERS.fullmatch(word.rpartition("/")[2]):
            continue
        for flag in words[index + 1 :]:
            if not flag.startswith("-"):
                break
            if _CODE.fullmatch(flag):
                return True
    return False


def is_mention(words: Sequence[str], files: Sequence[str], piped_to: Sequence[str]) -> bool:
    """Returns whether a statement mentions a server without starting it.

    Printed text may become a script, unless it goes to a terminal, a log or a filter. `files` are
    the redirection targets, `piped_to` are the words of the next command in the pipe.
    """
    program = _program(words)
    if program in _READERS or program in _OWN_PRINTERS:
        return True
    if not _FINDERS.isdisjoint(word.rpartition("/")[2] for word in words) or runs_code(words):
        return True
    if program not in _PRINTERS:
        return False
    reader = _program(piped_to)
    if reader == "tee":
        files = [*files, *(word for word in piped_to[1:] if not word.startswith("-"))]
    is_read = not piped_to or reader == "tee" or reader in _READERS or reader in _FINDERS
    return is_read and all(_FOR_READERS.fullmatch(name) for name in files)


def _program(words: Sequence[str]) -> str:
    """Returns the program of a statement, after keywords, assignments and `sudo -n`."""
    for word in words:
        name = word.rpartition("/")[2]
        if name not in _BEFORE and not re.match(r"-|[A-Za-z_]\w*=", word):
            return name
    return ""


_TOKEN = re.compile(
    r"""(?P<redirect>(?:\d+|&)?(?:<<<|>>|>\||[<>]&|[<>])[ \t]*(?:\d+-?(?=[\s;|&)]|\Z)|-)?)
      | (?P<operator>&&|\|\||;;|\|&|[;&|\n])
      | (?P<space>(?:[ \t\r]|\\\r?\n)+)
      | (?P<comment>\#[^\n]*)
      | (?P<word>(?:\$\(\((?:[^()\n]|\((?:[^()\n]|\([^()\n]{0,200}\))*\))*\)\)
          | \$\([^()\n]{0,200}(?:\([^()\n]{0,200}\)[^()\n]{0,200}){0,3}\)
          | \$\{[^}\n]{0,200}\} | '[^']*' | "(?:[^"\\]|\\.)*" | \\(?:\r\n|.)
          | [^\s'"\\;|&<>()\#] | (?<=[^\s;|&<>()])\#)+)
      | (?P<end>.|\n)""",
    re.VERBOSE | re.DOTALL,
)
_QUOTED = re.compile(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|\\(\r\n|.)", re.DOTALL)
_HERE = re.compile(r"(?<!<)<<-?\s*(['\"]?)(\w+)\1")
_TARGET = re.compile(
    r"(?:(?<![\d&>])(?P<redirect>>>?)\|?[ \t]*"
    r"|\btee[ \t]+(?P<append>(?:-a|--append)[ \t]+)?)(?P<name>(?!/dev/null)[^\s<>|&;]+)"
)


@dataclass(frozen=True)
class Script:
    """The here documents and all statements of a script, whose text begins at `start`.
    `environment` are the variables that the script starts with."""

    here: Sequence[HereDocument] = ()
    statements: Sequence[Statement] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    start: Location = START

    @cached_property
    def values(self) -> Values:
        return Values(self.statements, self.environment)


# Cache size: several rules read the texts of nested commands.
_KEPT = 16


def read_script(text: str, start: Location = START) -> Script:
    """Reads a script: its statements and here documents."""
    return _read(text, start)


@lru_cache(maxsize=_KEPT)
def _read(text: str, start: Location) -> Script:
    here = tuple(_here_documents(text))
    rows = tuple(_statements(_without(here, text), start))
    return Script(here, rows, text=text, start=start)


def is_script(document: HereDocument) -> bool:
    """Returns whether a here document becomes a script, by its file name or its first line."""
    return document.name.endswith((".sh", ".bash", ".sbatch")) or document.text.startswith("#!")


def statements(text: str, start: Location = START) -> Sequence[Statement]:
    """Returns the commands of a text in order; redirections and here documents are left out."""
    return read_script(text, start).statements


def starting(rows: Sequence[Statement]) -> Iterator[Statement]:
    """Yields the statements, without commands that only mention a server (`grep`, `echo`,
    `cat`)."""
    for row, following in zip_longest(rows, rows[1:]):
        piped_to = following.words if following and row.end in ("|", "|&") else ()
        words, files, reader = (
            [word.text for word in group]
            for group in (row.words, [file for _, file in row.redirects], piped_to)
        )
        if not is_mention(words, files, reader):
            yield row


def _statements(text: str, start: Location) -> Iterator[Statement]:
    rows = list(_simple_commands(text, start))
    for index, row in enumerate(rows):
        if row.end != "(" or not row.words or not re.fullmatch(r"\w+\+?=", row.words[-1].text):
            if row.words:
                yield row
            continue
        elements: list[Word] = []
        for inside in rows[index + 1 :]:
            elements += inside.words
            if inside.end == ")":
                break
        yield replace(row, elements=tuple(elements))


def _simple_commands(text: str, start: Location) -> Iterator[Statement]:
    words: list[Word] = []
    redirects: list[tuple[str, Word]] = []
    operator = ""  # of a redirection, until its file is read
    place = places(text, start)
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
            if words or raw == ")":
                yield Statement(tuple(words), raw, tuple(redirects))
            words, redirects, operator = [], [], ""
    if words:
        yield Statement(tuple(words), "\n", tuple(redirects))


def _without(documents: Iterable[HereDocument], text: str) -> str:
    """Returns a script with the lines of these here documents blanked."""
    lines = text.splitlines(keepends=True)
    for document in documents:
        first = document.start.line - 1
        # Removes the marker: the rest of `bash -c "..."` would otherwise count as its data.
        line = lines[first - 1]
        found = _here(line)
        if found:
            rest = _HERE.sub(lambda again: " " * len(again.group()), line[found.start() :])
            lines[first - 1] = line[: found.start()] + rest
        count = len(document.text.splitlines()) + 1
        lines[first : first + count] = ["\n"] * len(lines[first : first + count])
    return "".join(lines)


_INSTRUCTION = re.compile(
    r"^(?P<before>[ \t]*)(?P<word>RUN|CMD|ENTRYPOINT)(?P<rest>[ \t](?:.*\\\n)*.*)$",
    re.MULTILINE | re.IGNORECASE,
)
_RUN_FLAGS = re.compile(r"(?:[ \t]+--[a-z]+=\S+)+")  # flags of RUN, such as `--mount`
_LIST_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\],]')
_LIST_FOLLOWS = re.compile(r"\n[ \t]*CMD[ \t]*\[", re.IGNORECASE)


def dockerfile_as_shell(text: str) -> str:
    """Replaces instruction names and list brackets by spaces. If a `CMD` list follows an
    `ENTRYPOINT` list, the two become one command."""
    return _INSTRUCTION.sub(_instruction, text)


def _instruction(found: re.Match[str]) -> str:
    rest = found["rest"]
    if flags := _RUN_FLAGS.match(rest):
        rest = " " * flags.end() + rest[flags.end() :]
    if rest.lstrip().startswith("["):
        rest = _LIST_PART.sub(lambda part: part[0] if part[0][0] == '"' else " ", rest)
        if found["word"].upper() == "ENTRYPOINT" and _LIST_FOLLOWS.match(found.string, found.end()):
            rest += " \\"
    return found["before"] + " " * len(found["word"]) + rest


def mentions_any(text: str) -> bool:
    """Returns whether a text can start a server or write a file itself."""
    if "<<" in text or names_server(text):
        return True
    if any(name in text for name in (*default_formats().workers, *default_formats().programs)):
        return True
    return re.search(r"\.ya?ml\b|dump\(", text) is not None  # written by echo, printf, yq or Python


def _here_documents(text: str) -> Iterator[HereDocument]:
    lines = text.splitlines(keepends=True)
    bare = [line.strip() for line in lines]
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        found = None if line.lstrip().startswith("#") else _here(line)
        if not found:
            continue
        begin = index
        index = _end(lines, bare, begin, found.group(2))
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
            lines[index].rstrip("\n") if index < len(lines) else "",
            found.group(2),
        )
        index += 1


def _here(line: str) -> re.Match[str] | None:
    """Returns the here document marker of a line; `<<` inside `((` shifts a number instead."""
    for found in _HERE.finditer(line):
        if line.count("((", 0, found.start()) <= line.count("))", 0, found.start()):
            return found
    return None


def _end(lines: Sequence[str], bare: list[str], begin: int, delimiter: str) -> int:
    """Returns the index of the line that ends a here document.

    If the delimiter is missing, a near match is used: the same word in other case or with extra
    characters, else a line with only a word in capitals.
    """
    try:
        return bare.index(delimiter, begin)
    except ValueError:
        if not delimiter.isupper():
            return len(lines)
    meant = re.compile(rf"\W*{delimiter}\W*", re.IGNORECASE)
    for pattern in (meant, _CAPITALS):
        for number in range(begin, len(bare)):
            if pattern.fullmatch(bare[number]):
                return number
    return len(lines)


_CAPITALS = re.compile(r"[A-Z][A-Z_]+")


def _word(raw: str, place: Location) -> Word:
    certain = not re.search(r"[$`]", re.sub(r"'[^']*'|\\\$", "", raw))
    return Word(_QUOTED.sub(_unquoted, raw), place, certain, raw[:1] in ("'", '"'))


# In double quotes a backslash is dropped before these characters; before a newline, both are.
_ESCAPED = re.compile(r'\\(?:(["$`\\])|\r?\n)')


def _unquoted(match: re.Match[str]) -> str:
    single, double, escaped = match.groups()
    if double is not None:
        return _ESCAPED.sub(r"\1", double)
    return single if single is not None else escaped.rstrip("\r\n")
