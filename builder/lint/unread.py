"""What a script does to option files or commands in ways that are not read, so that it is said."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from .script import HereDocument, Statement, Word
from .written import OPTION_FILE, edited_file, is_python

# Their output is read as far as it is literal.
_READ = ("echo", "printf", "cat", "tee", "}")
_OUTPUTS = (">", ">>", ">|", "1>", "1>>", "&>", "&>>")
_OPENS = re.compile(r"""open\(\s*["']?([^"',)]*)["']?\s*,\s*["'][wax]|\.write_text\(""")
_ALL = re.compile(r"\$[@*]|\$\{\w+\[")
_LATER = re.compile(r"\$(?:@|\*|\{?\w|\()|`")


def of_script(rows: Sequence[Statement], here: Iterable[HereDocument]) -> Iterator[str]:
    """Commands that change an option file in a way that is not followed, with their lines."""
    for row in rows:
        line = row.words[0].location.line
        if name := edited_file(row) or _redirected(row):
            command = row.words[0].text.rpartition("/")[2]
            yield f"line {line}: {command} writes {name}"
        elif is_python(row.words[0].text):
            yield from _of_python(" ".join(word.text for word in row.words[1:]), line)
    for document in here:
        if not document.name and is_python(document.command):
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


def _redirected(row: Statement) -> str:
    """The option file that receives the output of a command that is not read."""
    command = row.words[0].text.rpartition("/")[2]
    if command in _READ and (command != "cat" or len(row.words) == 1):
        return ""
    for sign, word in row.redirects:
        if sign in _OUTPUTS and OPTION_FILE.search(word.text):
            return word.text
    return ""


def _of_python(code: str, line: int) -> Iterator[str]:
    for found in _OPENS.finditer(code):
        at = line + code.count("\n", 0, found.start())
        yield f"line {at}: python writes {found[1] or 'a file'}"
