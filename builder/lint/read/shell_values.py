"""Expands the shell variables of a script whose values the script itself sets.

Known are variables with a single value, the default in `${NAME:-text}` if nothing else is set, sums
and products of plain numbers, and arrays with the elements appended to them. Any other expression
stays a variable.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...diagnostics import NOWHERE, Location
from ..model import Statement, Word

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.S)
# Words before assignments in a shell, and the instructions of a Dockerfile.
_DECLARES = ("export", "local", "readonly", "declare", "typeset", "ENV", "ARG")
_READS = ("read", "mapfile", "readarray", "getopts", "unset", "for", "select")
_BEFORE = ("then", "else", "elif", "do", "{", "!", ":", "if", "while", "until")
_OPENS, _CLOSES = ("if", "case", "for", "while", "until", "select"), ("fi", "esac", "done")
_USE = re.compile(
    r"(?<!\\)\$(?:\(\((?P<sum>(?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)\)"
    r"|\{(?P<name>\w+)(?:(?P<way>:?[-=+?])(?P<other>(?:[^{}]|\{[^{}]*\})*))?\}"
    r"|(?P<plain>\w+)|\((?P<later>\w+)\))"
)
_WHOLE_LIST = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_PLAIN_USE = re.compile(r"\$(?:\{(\w+)\}|(\w+))\Z")
_PIECE = re.compile(r"(?:\$\{[^}]*\}|\$\(\([^()]*(?:\([^()]*\)[^()]*)*\)\)|\S)+")
# Assignments, increments and decrements in arithmetic, but no comparisons such as `==`.
_COUNTED = re.compile(
    r"([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)
_IN_SUM = re.compile(r"(?<!\w)\$?\{?([A-Za-z_]\w*)\}?")
# Set by Slurm and MPI for the scripts that they start.
_GIVEN = re.compile(r"(?:SLURM|PMIX?|OMPI)_\w+")
_PRINTED = re.compile(r"\$\(|`")  # command substitution
MAX_DEPTH = 8  # nesting of variables
MAX_CHARACTERS = 10_000  # stops a text that doubles at every use


@dataclass(frozen=True, slots=True)
class _Setting:
    """A value that is assigned or appended to a variable."""

    text: str
    location: Location
    literal: bool
    adds: bool = False
    optional: bool = False
    elements: tuple[Word, ...] | None = None


class Values:
    """The variables of a script. `environment` holds the variables that the script starts with."""

    def __init__(
        self, rows: Iterable[Statement], environment: Mapping[str, str] | None = None
    ) -> None:
        self._settings: dict[str, list[_Setting]] = {}
        self._changing: set[str] = set()  # changed by `read` or arithmetic
        for name, text in (environment or {}).items():
            self._settings[name] = [_Setting(text, NOWHERE, "$" not in text)]
        for row, optional in with_branches(rows):
            self._read(row, optional)

    @property
    def names(self) -> set[str]:
        """The variables that are set anywhere."""
        return {*self._settings, *self._changing}

    def expanded(self, text: str) -> str:
        """Returns a text with all known variables expanded."""
        return self._expanded(text, ())

    def place(self, text: str) -> Location:
        """Returns the location of a variable's value, or `NOWHERE` if the text is not one
        variable."""
        seen = NOWHERE
        for _ in range(MAX_DEPTH):
            found = _PLAIN_USE.match(text)
            setting = self._only((found[1] or found[2]) if found else "")
            if setting is None:
                break
            seen, text = setting.location, setting.text
        return seen

    def alternatives(self, text: str) -> list[tuple[str, Location]]:
        """Returns the values that branches assign to the variable in a text, with their locations.
        The result is empty if there is only one value or if a value is unknown."""
        found = _PLAIN_USE.match(text)
        name = (found[1] or found[2]) if found else ""
        rows = self._settings.get(name, [])
        if name in self._changing or not all(row.literal and not row.adds for row in rows):
            return []
        return [(row.text, row.location) for row in rows] if len(rows) > 1 else []

    def words(self, words: Sequence[Word]) -> list[Word]:
        """Returns the words of a command with arrays expanded and values split, as the shell does
        it."""
        filled: list[Word] = []
        for word in words:
            filled += self._filled(word, ())
        return filled

    def _read(self, row: Statement, optional: bool) -> None:
        words = list(row.words)
        while words and words[0].text in _BEFORE:
            words.pop(0)
        for word in row.words:
            for use in _USE.finditer("" if word.certain else word.text):
                if (use["way"] or "").endswith("=") and use["name"] not in self._settings:
                    self._set(use["name"], _Setting(use["other"], word.location, False))
                self._count(use["sum"] or "")
        if not words:
            return
        if words[0].text == "let" or (row.end == ")" and _is_sum(words)):
            self._count(" ".join(word.text for word in words))
            return
        if words[0].text in _READS:
            self._changing |= {word.text for word in words[1:] if word.text.isidentifier()}
            return
        declared = words[0].text in _DECLARES
        if declared and any(re.fullmatch(r"-\w*i\w*", word.text) for word in words[1:]):
            self._changing |= {word.text.partition("=")[0] for word in words[1:]}  # arithmetic
        for word in words[1:] if declared else words:
            if declared and word.text.startswith("-"):
                continue
            if not (found := _ASSIGNED.fullmatch(word.text)):
                break
            self._assign(found, word, row, optional)

    def _count(self, text: str) -> None:
        """Marks the variables that an arithmetic expression sets as unknown."""
        for names in _COUNTED.findall(text):
            self._changing.update(filter(None, names))

    def _assign(self, found: re.Match[str], word: Word, row: Statement, optional: bool) -> None:
        name, adds, text = found[1], bool(found[2]), found[3]
        own = re.match(rf"\$(?:\{{{name}\}}|{name}\b)", text)
        if own and own.end() < len(text):
            adds, text = True, text[own.end() :]
        place = Location(word.location.line, word.location.column + len(found[0]) - len(found[3]))
        listed = row.elements if word is row.words[-1] else None
        self._set(name, _Setting(text, place, word.certain, adds, optional, listed))

    def _set(self, name: str, setting: _Setting) -> None:
        self._settings.setdefault(name, []).append(setting)

    def _only(self, name: str) -> _Setting | None:
        """Returns the only value of a variable, or `None` if there are several or it is unknown."""
        rows = [row for row in self._settings.get(name, ()) if not row.adds]
        if name in self._changing or len({(row.text, row.elements) for row in rows}) != 1:
            return None
        return rows[0]

    def _value(self, name: str, pending: tuple[str, ...]) -> str | None:
        """Returns the complete value of a variable, or `None` if it is unknown."""
        setting = None if name in pending or len(pending) > MAX_DEPTH else self._only(name)
        if setting is None or setting.elements is not None:
            return None
        added = [row for row in self._settings[name] if row.adds and row.elements is None]
        if any(row.optional for row in added):
            return None
        text = "".join(
            row.text if row.literal else self._expanded(row.text, (*pending, name))
            for row in (setting, *added)
        )
        is_known = setting.literal or not (_USE.search(text) or _PRINTED.search(text))
        return text if is_known and len(text) < MAX_CHARACTERS else None

    def _expanded(self, text: str, pending: tuple[str, ...]) -> str:
        return _USE.sub(lambda found: self._used(found, pending), text)

    def _used(self, found: re.Match[str], pending: tuple[str, ...]) -> str:
        if found["sum"] is not None:
            result = _sum(_IN_SUM.sub(lambda name: self._summand(name, pending), found["sum"]))
            return found[0] if result is None else str(result)
        name = found["name"] or found["plain"] or found["later"]
        value, way = self._value(name, pending), found["way"] or ""
        if way.endswith("+"):
            return found[0]
        if value or (value is not None and ":" not in way):
            return value
        if way.endswith(("-", "=")) and (value == "" or self._is_unset(name, pending)):
            other = self._expanded(found["other"].strip("\"'"), (*pending, name))
            return found[0] if _USE.search(other) else other
        return found[0]

    def _summand(self, found: re.Match[str], pending: tuple[str, ...]) -> str:
        value = self._value(found[1], pending)
        return value if value and value.isdecimal() else found[0]

    def _is_unset(self, name: str, pending: tuple[str, ...]) -> bool:
        if _GIVEN.fullmatch(name) and name not in self._settings:
            return False
        return (
            name in pending
            or not (name in self._changing or name in self._settings)
            or (self._only(name) is not None and not self._only_literal(name))
        )

    def _only_literal(self, name: str) -> bool:
        setting = self._only(name)
        return setting is not None and setting.literal

    def _filled(self, word: Word, pending: tuple[str, ...]) -> Iterator[Word]:
        if word.certain or "$" not in word.text or len(pending) > MAX_DEPTH:
            yield word
        elif (listed := _WHOLE_LIST.fullmatch(word.text)) and listed[1] not in pending:
            yield from self._list(listed[1], word, pending)
        elif not word.quoted and (used := _PLAIN_USE.fullmatch(word.text)):
            yield from self._split(used[1] or used[2], word, pending)
        else:
            text = self._expanded(word.text, pending)
            known = not re.search(r"(?<!\\)[$`]", text)
            place = self.place(word.text) if known else NOWHERE
            yield replace(
                word, text=text, certain=known, location=place if place.line else word.location
            )

    def _list(self, name: str, word: Word, pending: tuple[str, ...]) -> Iterator[Word]:
        """Yields the elements of an array, including conditional ones."""
        rows = [row for row in self._settings.get(name, ()) if row.elements is not None]
        if name in self._changing or sum(not row.adds for row in rows) > 1 or not rows:
            yield word
            return
        for row in rows:
            for element in row.elements or ():
                for filled in self._filled(element, (*pending, name)):
                    optional = filled.optional or (row.adds and row.optional)
                    for part in (filled,) if word.quoted else parts(filled):
                        yield replace(part, optional=optional)

    def _split(self, name: str, word: Word, pending: tuple[str, ...]) -> Iterator[Word]:
        """Yields the words of an unquoted value, including conditional parts."""
        setting = None if name in pending else self._only(name)
        if setting is None or setting.elements is not None:
            yield word
            return
        rows = (setting, *(row for row in self._settings[name] if row.adds))
        if any(_PRINTED.search("" if row.literal else row.text) for row in rows):
            yield word
            return
        for row in rows:
            for line, text in enumerate(row.text.split("\n")):
                at = row.location if row.location.line else word.location
                place = Location(at.line + line, at.column) if line else at
                for piece in _PIECE.findall(text.replace("\\", " ")):
                    literal = row.literal or not re.search(r"[$`]", piece)
                    inner = Word(piece, place, literal, optional=row.adds and row.optional)
                    yield from self._filled(inner, (*pending, name))


def parts(word: Word) -> Iterator[Word]:
    """Splits an unquoted word at spaces."""
    if not re.search(r"\s", word.text):
        yield word
        return
    for piece in _PIECE.findall(word.text):
        yield replace(word, text=piece, quoted=False)


def with_branches(rows: Iterable[Statement]) -> Iterator[tuple[Statement, bool]]:
    """Yields statements, each with whether it is conditional."""
    depth, before = 0, "\n"
    for row in rows:
        first = row.words[0].text
        depth += first in _OPENS
        yield row, depth > 0 or before in ("&&", "||")
        depth -= first in _CLOSES
        before = row.end


def _is_sum(words: Sequence[Word]) -> bool:
    """Returns whether the words before a closing parenthesis only set variables."""
    text = " ".join(word.text for word in words)
    return _COUNTED.match(text) is not None and not re.search(r"=\S*\s+[A-Za-z./]", text)


_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _sum(text: str) -> int | None:
    """Evaluates integer arithmetic with + - * / %; `None` for anything else."""
    if len(text) > 80 or not re.fullmatch(r"[\d\s+*/%()-]*", text):
        return None
    try:
        return _counted(ast.parse(text.strip().replace("/", "//"), mode="eval").body)
    except (SyntaxError, ZeroDivisionError):
        return None


def _counted(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value if node.value < 2**31 else None
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATIONS:
        return None
    left, right = _counted(node.left), _counted(node.right)
    if left is None or right is None or min(left, right) < 0:  # shells round towards zero
        return None
    return _OPERATIONS[type(node.op)](left, right)


NOTHING_SET = Values(())
