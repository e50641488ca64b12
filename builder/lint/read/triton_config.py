"""Reads protobuf's text format without the protobuf library: fields with their locations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from ...diagnostics import Diagnostic, Location, located
from ...documents import MAX_DEPTH
from ...errors import BadInput

_TOKEN = re.compile(
    r"""(?P<space>[\s]+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fF]?))
      | (?P<open>\$\{\w+\})
      | (?P<name>-?[A-Za-z_][A-Za-z0-9_]*)
      | (?P<mark>[{}<>\[\]:,;])""",
    re.VERBOSE,
)
_CLOSING = {"{": "}", "<": ">", "[": "]"}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value as written, without its quotes. `kind` is string, number, name, or open for a
    placeholder that a template leaves. The parser also uses "mark" and "end", which never occur as
    values of a message."""

    kind: str
    text: str
    location: Location

    @property
    def number(self) -> int | None:
        try:
            return int(self.text, 0) if self.kind == "number" else None
        except ValueError:
            return None

    @property
    def is_open(self) -> bool:
        """Whether a template leaves the value to be filled in, with or without quotes."""
        return self.kind == "open" or "${" in self.text


@dataclass(slots=True)
class Message:
    """The fields of a message in order; a name may occur several times."""

    location: Location
    fields: list[Field] = field(default_factory=list)

    def named(self, name: str) -> list[Scalar | Message]:
        rows = (row.values for row in self.fields if row.name == name)
        return list(chain.from_iterable(rows))

    def messages(self, name: str) -> list[Message]:
        return [value for value in self.named(name) if isinstance(value, Message)]

    def scalars(self, name: str) -> list[Scalar]:
        return [value for value in self.named(name) if isinstance(value, Scalar)]

    def scalar(self, name: str) -> Scalar | None:
        return next(iter(self.scalars(name)), None)

    def text(self, name: str) -> str:
        """The text of a scalar field, or an empty string."""
        found = self.scalar(name)
        return found.text if found else ""

    def number(self, name: str) -> int | None:
        found = self.scalar(name)
        return found.number if found else None

    def first(self, name: str) -> Message | None:
        return next(iter(self.messages(name)), None)

    def place(self, name: str) -> Location:
        """The location of a field, or of the message that lacks it."""
        return next((row.location for row in self.fields if row.name == name), self.location)

    @property
    def open_values(self) -> Iterator[Scalar]:
        """The placeholders without quotes, at any depth."""
        for value in chain.from_iterable(row.values for row in self.fields):
            if isinstance(value, Message):
                yield from value.open_values
            elif value.kind == "open":
                yield value


@dataclass(frozen=True, slots=True)
class Field:
    """A field; `values` has several entries if a list was written."""

    name: str
    location: Location
    values: tuple[Scalar | Message, ...]
    colon: bool


def parse(text: str) -> tuple[Message, list[Diagnostic]]:
    """Parses a text; returns the fields before the first syntax error, and that error if any."""
    root = Message(Location(1, 1))
    try:
        _Reader(_tokens(text)).read(root, None, 0)
    except BadInput as error:
        return root, list(error.diagnostics)
    return root, []


def _error(place: Location, what: str, remedy: str) -> BadInput:
    return BadInput(located(place, "", what, remedy))


def _tokens(text: str) -> Iterator[Scalar]:
    position, line, begin = 0, 1, 0
    while position < len(text):
        place = Location(line, position - begin + 1)
        match = _TOKEN.match(text, position)
        if not match:
            what, remedy = f"has {text[position]!r} where none is expected", "correct this line"
            if text[position] in "\"'":
                what, remedy = "has a string without an end", "close its quotes on this line"
            raise _error(place, what, remedy)
        if match.lastgroup != "space":
            yield Scalar(str(match.lastgroup), match.group(), place)
        position = match.end()
        if newlines := match.group().count("\n"):
            line += newlines
            begin = match.start() + match.group().rindex("\n") + 1
    yield Scalar("end", "the end of the file", Location(line, position - begin + 1))


class _Reader:
    def __init__(self, tokens: Iterator[Scalar]) -> None:
        self._tokens = tokens
        self._next = next(tokens)

    def read(self, message: Message, opened: Scalar | None, depth: int) -> None:
        """Reads fields into `message`, up to the closing bracket or the end of the text."""
        end = _CLOSING[opened.text] if opened else ""
        if depth > MAX_DEPTH:
            raise _error(self._next.location, "is nested too deeply", "flatten it")
        while self._next.text != end or self._next.kind == "string":
            if self._next.kind == "end":
                if opened:
                    what = f"has a {opened.text} that is never closed"
                    raise _error(opened.location, what, f"add {end}")
                return
            if opened and self._next.text in ("}", ">", "]"):
                line = opened.location.line
                what = f"has {self._next.text} within the {opened.text} of line {line}"
                raise _error(self._next.location, what, f"close that first, with {end}")
            message.fields.append(self._field(depth))
            if self._next.kind == "mark" and self._next.text in ",;":
                self._advance()

    def _field(self, depth: int) -> Field:
        name = self._advance()
        if name.kind != "name":
            what = f"has {name.text} where the name of a field is expected"
            raise _error(name.location, what, "correct this line")
        colon = self._next.text == ":"
        if colon:
            self._advance()
        if self._next.kind == "mark" and self._next.text == "[":
            values = tuple(self._list(depth))
        else:
            values = (self._value(depth),)
        if not colon and any(isinstance(value, Scalar) for value in values):
            what = f"has no colon after {name.text}"
            raise _error(name.location, what, f"write {name.text}: ...")
        return Field(name.text, name.location, values, colon)

    def _list(self, depth: int) -> Iterator[Scalar | Message]:
        opened = self._advance()
        while self._next.text != "]" or self._next.kind == "string":
            yield self._value(depth)
            if self._next.text == "," and self._next.kind == "mark":
                comma = self._advance()
                if self._next.text == "]":
                    raise _error(comma.location, "has a comma before ]", "remove it")
            elif self._next.kind == "end":
                raise _error(opened.location, "has a [ that is never closed", "add ]")
            elif self._next.text != "]":
                what = f"has {self._next.text} within a list"
                raise _error(self._next.location, what, "add a ,")
        self._advance()

    def _value(self, depth: int) -> Scalar | Message:
        token = self._advance()
        if token.kind == "mark" and token.text in "{<":
            message = Message(token.location)
            self.read(message, token, depth + 1)
            self._advance()
            return message
        if token.kind == "string":
            parts = [token.text[1:-1]]
            while self._next.kind == "string":  # adjacent strings are joined
                parts.append(self._advance().text[1:-1])
            return Scalar("string", "".join(parts), token.location)
        if token.kind in ("number", "name", "open"):
            return token
        raise _error(token.location, f"has {token.text} where a value is expected", "add one")

    def _advance(self) -> Scalar:
        token = self._next
        if token.kind != "end":
            self._next = next(self._tokens)
        return token
