"""What `sed -i` makes of the lines of a file: the substitutions that can be read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .. import expressions
from .script import Word

_SUBSTITUTION = re.compile(r"s(?P<sign>[^\w\s\\])")
_ADDRESS = re.compile(r"/(?P<pattern>(?:[^/\\]|\\.)+)/\s*")
_LATER = re.compile(r"\$[\w{(]")  # the shell puts in what is looked for
# Signs that are plain in a basic expression unless a backslash stands before them.
_EXTENDED = "+?(){}|"


@dataclass(frozen=True, slots=True)
class Edit:
    """A substitution, of all that fits where it is `repeated`; in lines with `of` only."""

    pattern: re.Pattern[str]
    new: str
    repeated: bool
    of: re.Pattern[str] | None = None

    def steps(self, line: str) -> int:
        """The most steps that it may take, and characters that it may make of a line."""
        searches = (each.pattern for each in (self.pattern, self.of) if each)
        copies = len(line) + 1 if self.repeated else 1
        made = copies * (len(self.new) + 1) + self.new.count("\\") * len(line)
        return made + sum(expressions.steps(row, len(line)) for row in searches)

    def line(self, line: str) -> str:
        """A line as it is afterwards."""
        if self.of and not self.of.search(line):
            return line
        try:
            return self.pattern.sub(self.new, line, count=0 if self.repeated else 1)
        except (re.error, IndexError):  # a group that the pattern has not
            return line


@dataclass(frozen=True, slots=True)
class Editing:
    """A command's substitutions, each with the word that it stands in, and the files it changes."""

    edits: tuple[tuple[Word, Edit], ...]
    files: tuple[Word, ...]


def read(words: Sequence[Word]) -> Editing | None:
    """What `sed` does with these words behind its name; `None` if it changes no file where it lies,
    or in a way that is not read."""
    texts = [word.text for word in words]
    if not any(re.match(r"-[a-zA-Z]*i|--in-place", text) for text in texts):
        return None
    extended = any(re.fullmatch(r"-\w*[Er]\w*|--regexp-extended", text) for text in texts)
    behind = [n + 1 for n, text in enumerate(texts) if re.fullmatch(r"-\w*e|--expression", text)]
    plain = [n for n, text in enumerate(texts) if text and not text.startswith("-")]
    scripts = [n for n in behind if n in plain] or plain[:1]
    found = []
    for index in scripts:
        for part in re.split(r";\s*(?=(?:/[^/]*/)?s[^\w\s])", texts[index]):
            if (edit := _edit(part.strip(), extended)) is None:
                return None
            found.append((words[index], edit))
    files = tuple(words[n] for n in plain if n not in scripts)
    return Editing(tuple(found), files) if found and files else None


def _edit(text: str, extended: bool) -> Edit | None:
    """One substitution, of the lines that its address names; `None` if it is another command."""
    address = _ADDRESS.match(text)
    rest = text[address.end() :] if address else text
    if not (found := _SUBSTITUTION.match(rest)):
        return None
    sign = re.escape(found["sign"])
    parts = re.split(rf"(?<!\\){sign}", rest[2:])
    is_later = any(_LATER.search(row) for row in (address["pattern"] if address else "", parts[0]))
    if len(parts) != 3 or not re.fullmatch(r"[gI]*", parts[2]) or is_later:
        return None
    of = _pattern(address["pattern"], extended) if address else None
    pattern = _pattern(parts[0], extended, re.IGNORECASE if "I" in parts[2] else 0)
    if pattern is None or (address and of is None):
        return None
    new = re.sub(r"\\(.)|(&)", _replaced, parts[1].replace("\\n", "\n"))
    return Edit(pattern, new, "g" in parts[2], of)


def _replaced(found: re.Match[str]) -> str:
    """A reference of a replacement as Python writes it, or a plain sign."""
    if found[2] or found[1] == "0":
        return r"\g<0>"
    return rf"\g<{found[1]}>" if found[1].isdigit() else found[1].replace("\\", r"\\")


def _pattern(text: str, extended: bool, flags: int = 0) -> re.Pattern[str] | None:
    """An expression of sed as one of Python: a basic one has its signs the other way round; `None`
    if it is none, or one that may take long."""

    def turned(found: re.Match[str]) -> str:
        bare = found[0].lstrip("\\")
        return bare if found[0] != bare else f"\\{bare}"

    python = re.sub(rf"\\?[{re.escape(_EXTENDED)}]", turned, text) if not extended else text
    python = python.replace("[[:space:]]", r"\s").replace("[[:digit:]]", r"\d")
    python = python.replace("[^[:space:]]", r"\S")
    if "(?" in python or expressions.is_slow(python):
        return None
    try:
        return re.compile(python, flags)
    except re.error:
        return None
