"""Reads the files that a script writes with here documents, echo, printf or Python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from ...diagnostics import NOWHERE, Location
from ...documents import Variable, Yaml, merged
from ...general_rules import DUPLICATE_KEY
from ..model import HereDocument, Statement, Word
from .shell import Script
from .shell_values import Values, with_branches
from .yaml_text import SHELL, MaskedText, value_of

# The literal part of their output is read.
_READ = ("echo", "printf", "cat", "tee")
_OUTPUTS = (">", ">>", ">|", "1>", "1>>", "&>", "&>>")
_OPENS = re.compile(r"""open\(\s*["']?([^"',)]*)["']?\s*,\s*["'][wax]|\.write_text\(""")
_ALL = re.compile(r"\$[@*]|\$\{\w+\[")
_NOTHING = re.compile(r"(?!)")
_LATER = re.compile(r"\$(?:@|\*|\{?\w|\()|`")


def unread_writes(rows: Sequence[Statement], here: Iterable[HereDocument]) -> Iterator[str]:
    """Yields commands that change an option file in a way that cannot be followed, with their
    lines."""
    for row in rows:
        line = row.words[0].location.line
        if name := edited_file(row) or _redirected(row):
            command = row.words[0].text.rpartition("/")[2]
            yield f"line {line}: {command} writes {name}"
        elif is_python(row.words[0].text):
            yield from _opened_by_python(" ".join(word.text for word in row.words[1:]), line)
    for document in here:
        if not document.name and is_python(document.command):
            yield from _opened_by_python(document.text, document.start.line)


def unread_words(words: Iterable[Word]) -> Iterator[str]:
    """Yields unknown words of a server command that may be flags."""
    before = "--model"  # the first word may be the model
    for word in words:
        is_value = before.startswith("--") and "=" not in before
        is_value = is_value and not _ALL.match(word.text)
        if not word.certain and _LATER.match(word.text) and not is_value:
            what = word.text if word.text.strip("$_") else "a template"
            yield f"line {word.location.line}: {what} may put in flags"
        before = word.text


def _redirected(row: Statement) -> str:
    """Returns the option file that receives the output of a command that cannot be followed."""
    command = row.words[0].text.rpartition("/")[2]
    most = {"cat": 1, "printf": 2}.get(command, len(row.words))  # words that are followed
    if command in _READ and len(row.words) <= most:
        return ""
    for sign, word in row.redirects:
        if sign in _OUTPUTS and OPTION_FILE.search(word.text):
            return word.text
    return ""


def _opened_by_python(code: str, line: int) -> Iterator[str]:
    for found in _OPENS.finditer(code):
        at = line + code.count("\n", 0, found.start())
        yield f"line {at}: python writes {found[1] or 'a file'}"


_PYTHON = re.compile(r"(?:^|[/\s;&|(])python[\d.]*(?:\s|$)")
_MANIFESTS = re.compile(r"\b(?:kubectl|oc|helm|docker[ -]compose)\b")
# Programs that fill in a here document later, whether it is quoted or not.
_FILLED_LATER = re.compile(r"\b(?:envsubst|sed|perl|eval|jinja2?|j2)\b")
# A here document of a Dockerfile: the target file follows the delimiter.
_COPIED = re.compile(r"^\s*(?:COPY|ADD)\s(?:.*\s)?<<-?[\"']?\w+[\"']?\s+([^\s<]+)\s*$")
OPTION_FILE = re.compile(r"\.(?:ya?ml|json)\b")
_EDITORS = ("sed", "perl", "awk", "gawk", "ed", "ex", "yq")
_IN_PLACE = re.compile(r"-\w*i|--in-?place|-ni")
_BEFORE = ("then", "else", "do", "{", "sudo", "!")


@dataclass(frozen=True, slots=True)
class Fragment:
    """What a script writes to a file: `lines` with their locations, or `data` that it sets.

    `expands` means that the shell expands variables in the lines, `optional` that the write is
    conditional, `is_open` that `data` may be incomplete, `is_edit` that it is merged into an
    existing file.
    """

    name: str
    start: Location
    lines: tuple[tuple[str, Location], ...] = ()
    appends: bool = False
    expands: bool = True
    data: Yaml | None = None
    optional: bool = False
    is_open: bool = False
    is_edit: bool = False


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a script writes; `is_open` means that a variable may add more to it.

    `alternatives` hold one option each, with one of the values that branches assign to its
    variable.
    """

    name: str
    documents: Sequence[Yaml]
    is_open: bool = False
    alternatives: Sequence[Yaml] = ()


def written_files(script: Script) -> list[WrittenFile]:
    """Returns the files that a script writes, in order of their first write."""
    rows, values = script.statements, script.values
    fragments: list[Fragment] = []
    for each in script.here:
        fragments += _of_here_document(each, script.text)
    fragments += _of_statements(rows)
    branches = {row.words[0].location.line for row, optional in with_branches(rows) if optional}
    fragments = [
        replace(
            row,
            name=values.expanded(row.name),
            optional=not branches.isdisjoint((row.start.line - 1, row.start.line)),
        )
        for row in fragments
    ]
    open_files: dict[str, list[Fragment]] = {}
    complete: list[list[Fragment]] = []
    for fragment in sorted(fragments, key=lambda row: row.start):
        if fragment.name not in open_files or not (fragment.appends or fragment.data):
            open_files[fragment.name] = []
            complete.append(open_files[fragment.name])
        open_files[fragment.name].append(fragment)
    found = []
    edited = {values.expanded(name) for row in rows if (name := edited_file(row))}
    for written in chain.from_iterable(map(_assembled, complete)):
        for document in written.documents:
            document.data = _filled(document.data, "", document, values)
            if written.name in edited:
                document.data = _unknown_values(document.data)
        first = written.documents[0].data if len(written.documents) == 1 else None
        is_open = written.is_open or written.name in edited
        alternatives = tuple(_alternatives(first, (), values))
        found.append(replace(written, is_open=is_open, alternatives=alternatives))
    return found


def _alternatives(data: Any, keys: tuple[str, ...], values: Values) -> Iterator[Yaml]:
    """Yields each value that branches assign to an option, nested in the option's groups."""
    if isinstance(data, Mapping):
        for key, item in data.items():
            yield from _alternatives(item, (*keys, str(key)), values)
    elif isinstance(data, Variable) and keys:
        for text, place in values.alternatives(data):
            if (value := value_of(text)) is not None:
                path = ".".join(keys)
                for key in reversed(keys):
                    value = {key: value}
                yield Yaml(value, {"": place, path: place})


def _filled(data: Any, path: str, document: Yaml, values: Values) -> Any:
    """Expands the variables that the script sets; the values keep the locations of the
    assignments."""
    if isinstance(data, Variable):
        text = values.expanded(data)
        if text == data or SHELL.search(text) or (value := value_of(text)) is None:
            return data
        if (place := values.place(data)) != NOWHERE:
            document.places[path] = place
        return value
    if isinstance(data, Mapping):
        return {
            key: _filled(item, f"{path}.{key}" if path else str(key), document, values)
            for key, item in data.items()
        }
    if isinstance(data, list):
        return [_filled(item, f"{path}.{n}", document, values) for n, item in enumerate(data)]
    return data


def _unknown_values(data: Any) -> Any:
    """Replaces the values of a file that a command edits later by unknowns; the keys stay known."""
    if isinstance(data, Mapping):
        return {key: _unknown_values(item) for key, item in data.items()}
    if isinstance(data, list):
        return [_unknown_values(item) for item in data]
    return data if data is None else Variable(str(data))


def edited_file(row: Statement) -> str:
    """Returns the option file that a command edits in place."""
    words = [word.text for word in row.words if word.text != "sudo"]
    name = words[0].rpartition("/")[2] if words else ""
    if name not in _EDITORS or not any(_IN_PLACE.match(word) for word in words[1:]):
        return ""
    files = [word for word in words[2:] if OPTION_FILE.search(word) and " " not in word]
    return files[-1] if files else ""


def is_python(command: str) -> bool:
    """Returns whether a command, or the line that contains it, runs Python."""
    return _PYTHON.search(command) is not None


def _assembled(fragments: Sequence[Fragment]) -> Iterator[WrittenFile]:
    """Joins the fragments of a file; if they do not fit together, yields a file for each."""
    name = fragments[0].name
    texts = [row for row in fragments if row.lines]
    added = [row for row in fragments if row.data]
    if not texts:
        for row in added:
            if row.data and not row.is_edit:
                yield WrittenFile(name, [row.data], row.is_open)
        return
    whole = _read(name, texts)
    if len(texts) > 1 and any(not document.readable for document in whole.documents):
        for fragment in texts:
            alone = _read(name, [fragment])
            yield WrittenFile(name, alone.documents, True)
        return
    certain = [row for row in texts if not row.optional]
    if len(certain) < len(texts):  # only one of several branches writes
        kept: set[str] = set()
        for document in _read(name, certain).documents if certain else ():
            kept.update(row.message for row in document.diagnostics)
        for document in whole.documents:
            document.diagnostics = [
                row
                for row in document.diagnostics
                if row.rule != DUPLICATE_KEY or row.message in kept
            ]
    documents = whole.documents
    for row in added:
        if row.data and row.optional:
            whole = replace(whole, is_open=True)
        is_apart = row.data and (row.optional or not _set_in(documents, row.data))
        if row.data and is_apart and not row.is_edit:
            yield WrittenFile(name, [row.data], True)
    yield whole


def _set_in(documents: Sequence[Yaml], given: Yaml) -> bool:
    """Merges data into the only document of a file; returns whether the file has one mapping."""
    if len(documents) != 1 or not isinstance(documents[0].data, Mapping):
        return False
    documents[0].data = merged(documents[0].data, given.data)
    documents[0].places.update({path: place for path, place in given.places.items() if path})
    return True


def _read(name: str, fragments: Sequence[Fragment]) -> WrittenFile:
    rows = list(chain.from_iterable(fragment.lines for fragment in fragments))
    pattern = SHELL if any(row.expands for row in fragments) else _NOTHING
    text = MaskedText("\n".join(line for line, _ in rows) + "\n", pattern)
    documents = text.documents()
    for document in documents:
        _move(document, [place for _, place in rows])
    return WrittenFile(name, documents, text.is_open)


def _move(document: Yaml, places: Sequence[Location]) -> None:
    """Converts locations in the file to locations in the script."""

    def moved(place: Location) -> Location:
        if place == NOWHERE or not places:
            return place
        start = places[min(place.line, len(places)) - 1]
        return Location(start.line, start.column + place.column - 1)

    document.places = {path: moved(place) for path, place in document.places.items()}
    document.blocks = {path: moved(place) for path, place in document.blocks.items()}
    document.diagnostics = [
        replace(row, location=moved(row.location)) for row in document.diagnostics
    ]


def _of_here_document(document: HereDocument, script: str) -> Iterator[Fragment]:
    copied = _COPIED.search(document.command)
    if copied and not document.name:
        document = replace(document, name=copied[1])
    if not document.name and is_python(document.command):
        yield from _of_python(document.text, document.start, not document.quoted)
        return
    if not document.name and not _MANIFESTS.search(document.command):
        return
    expands = not document.quoted or bool(_FILLED_LATER.search(script))
    text = document.text
    if '"' not in text.replace('\\"', ""):  # it may be inside double quotes, as in `bash -c "..."`
        text = re.sub(r'\\(["$`\\])', r"\1", text)
    rows = enumerate(text.splitlines(), document.start.line)
    lines = [(line, Location(number, 1)) for number, line in rows]
    if document.strips_tabs:
        lines = [
            (bare := line.lstrip("\t"), Location(place.line, 1 + len(line) - len(bare)))
            for line, place in lines
        ]
    name = document.name or "-"
    yield Fragment(name, document.start, tuple(lines), document.appends, expands)


def _of_statements(rows: Sequence[Statement]) -> Iterator[Fragment]:
    for index, row in enumerate(rows):
        words = list(row.words)
        while words and words[0].text in _BEFORE:
            words.pop(0)
        if not words:
            continue
        name = words[0].text.rpartition("/")[2]
        if is_python(name) and (code := _code_of(words)):
            start = Location(code.location.line, code.location.column + 1)
            yield from _of_python(code.text, start, not code.certain)
        elif name in ("echo", "printf") and (target := _target(rows, index)):
            yield from _of_output(name, words[1:], *target)


def _target(rows: Sequence[Statement], index: int) -> tuple[str, bool] | None:
    """Returns the file that receives the output of a command, and whether the output is
    appended."""
    row = rows[index]
    for operator, word in row.redirects:
        if operator in _OUTPUTS:
            return (word.text, operator.endswith(">>")) if word.text != "/dev/null" else None
    if row.end == "|" and index + 1 < len(rows):
        words = [word.text for word in rows[index + 1].words if word.text != "sudo"]
        if words[:1] == ["tee"] and len(words) > 1 and not words[-1].startswith("-"):
            return words[-1], "-a" in words or "--append" in words
    return None


def _of_output(command: str, words: Sequence[Word], name: str, appends: bool) -> Iterator[Fragment]:
    """Yields the text that `echo` or `printf` writes; the values of `printf` are not put in."""
    flags = [word for word in words if re.fullmatch(r"-[neE]+", word.text)]
    rest = list(words[len(flags) :]) if command == "echo" else list(words)
    if not rest or (command == "printf" and len(rest) > 1):
        return
    expands = not all(word.certain for word in words)
    start, text = rest[0].location, " ".join(word.text for word in rest)
    first = Location(start.line, start.column + rest[0].quoted)
    is_escaped = command == "printf" or any("e" in flag.text for flag in flags)
    if is_escaped:
        text = text.replace("\\n", "\n").replace("\\t", "\t")
    rows = []
    for number, row in enumerate(text.splitlines(), start.line):
        is_first = is_escaped or number == start.line
        rows.append((row, first if is_first else Location(number, 1)))
    # Starts before later fragments of the same file.
    yield Fragment(name, start, tuple(rows), appends, expands)


def _code_of(words: Sequence[Word]) -> Word | None:
    """Returns the code after `python -c`."""
    texts = [word.text for word in words]
    index = texts.index("-c") + 1 if "-c" in texts else len(texts)
    return words[index] if index < len(words) else None


def _of_python(text: str, start: Location, expands: bool) -> Iterator[Fragment]:
    """Yields the mappings that a Python program writes; `expands` means that the shell expands its
    text."""
    from . import python

    for name, document, is_open, is_edit in python.dumped_documents(text, start, expands):
        is_open |= not name
        yield Fragment(name or "python", start, data=document, is_open=is_open, is_edit=is_edit)
