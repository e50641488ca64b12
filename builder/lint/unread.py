"""What a script does to option files or commands in ways that are not read, so that it is said."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from .script import HereDocument, Statement, Word
from .written import is_python

_OPTION_FILE = re.compile(r"\.(?:ya?ml|json)\b")
_EDITORS = ("sed", "perl", "awk", "gawk", "ed", "ex")
_IN_PLACE = re.compile(r"-\w*i|--in-place|-ni")
# Their output is read as far as it is literal.
_READ = ("echo", "printf", "cat", "tee", "}")
_OUTPUTS = (">", ">>", ">|", "1>", "1>>", "&>", "&>>")
_OPENS = re.compile(r"""open\(\s*["']?([^"',)]*)["']?\s*,\s*["'][wax]|\.write_text\(""")
_ALL = re.compile(r"\$[@*]|\$\{\w+\[")
_LATER = re.compile(r"\$(?:@|\*|\{?\w|\()|`")


def of_script(
    rows: Sequence[Statement], here: Iterable[HereDocument], read_files: Collection[str]
) -> Iterator[str]:
    """What writes or alters a file of options, each with its line. `read_files` are those of which
    the content was read, Python's among them under that name."""
    for index, row in enumerate(rows):
        line = row.words[0].location.line
        if ((name := _altered(row)) and not _is_read(row, read_files)) or (
            name := _redirected(rows, index)
        ):
            command = row.words[0].text.rpartition("/")[2]
            yield f"line {line}: {command} writes {name}"
        elif is_python(row.words[0].text) and "python" not in read_files:
            yield from _of_python(" ".join(word.text for word in row.words[1:]), line)
    for document in here:
        if not document.name and is_python(document.command) and "python" not in read_files:
            yield from _of_python(document.text, document.start.line)


def of_command(words: Iterable[Word]) -> Iterator[str]:
    """Words of a server's command that are not known, and may be flags."""
    before = "--model"  # which stands first
    for word in words:
        is_value = before.startswith("--") and "=" not in before
        is_value = is_value and not _ALL.match(word.text)
        if not word.certain and _LATER.match(word.text) and not is_value:
            what = word.text if word.text.strip("$_") else "a template"
            yield f"line {word.location.line}: {what} may put in flags"
        before = word.text


def _altered(row: Statement) -> str:
    """The option file that a command changes where it lies."""
    words = [word.text for word in row.words if word.text != "sudo"]
    name = words[0].rpartition("/")[2] if words else ""
    if name not in _EDITORS or not any(_IN_PLACE.match(word) for word in words[1:]):
        return ""
    files = [word for word in words[2:] if _OPTION_FILE.search(word) and " " not in word]
    return files[-1] if files else ""


def _is_read(row: Statement, read_files: Collection[str]) -> bool:
    """Whether the command changes files of which the content was read, in a way that is."""
    from . import stream_editing

    words = [word for word in row.words if word.text != "sudo"]
    editing = stream_editing.read(words[1:]) if words[0].text == "sed" else None
    return editing is not None and all(word.text in read_files for word in editing.files)


def _redirected(rows: Sequence[Statement], index: int) -> str:
    """The option file that the output of a command goes to that is not read."""
    row = rows[index]
    command = row.words[0].text.rpartition("/")[2]
    if command in _READ and (command != "cat" or len(row.words) == 1):
        return ""
    for sign, word in row.redirects:
        if sign in _OUTPUTS and _OPTION_FILE.search(word.text):
            return word.text
    return ""


def _of_python(code: str, line: int) -> Iterator[str]:
    for found in _OPENS.finditer(code):
        at = line + code.count("\n", 0, found.start())
        yield f"line {at}: python writes {found[1] or 'a file'}"
