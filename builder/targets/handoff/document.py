"""A document for people: sections and blocks, of which Markdown and HTML are written alike.

What is said and how it is spelled are apart: a value, whoever gave it, is text in here and cannot
become structure in either form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a line: plain, as code, or a link."""

    text: str
    code: bool = False
    link: str | None = None


Text = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: Text


@dataclass(frozen=True, slots=True)
class Bullets:
    items: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """What a reader must not miss."""

    tone: Literal["info", "warning"]
    title: str
    text: Text


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values; a `glance` of few, short ones stands out."""

    rows: tuple[tuple[str, Text], ...]
    glance: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """`numeric` are the columns that stand right. The first column is the head of its row."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of a whole, which a page can also draw."""

    caption: str
    unit: str
    parts: tuple[tuple[str, float], ...]
    whole: tuple[str, float]


@dataclass(frozen=True, slots=True)
class Command:
    """What to type, in one shell after the others, and what is to come of it."""

    title: str
    script: str
    outcome: Text


@dataclass(frozen=True, slots=True)
class Remedies:
    """What may be behind an alert, the likeliest first: sign, cause, and commands that tell."""

    rows: tuple[tuple[Text, Text, str], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A chapter, or a part of one; `id` is what links name.

    The contents name the parts of a chapter too where they are `listed`.
    """

    id: str
    title: str
    blocks: tuple[Block, ...]
    listed: bool = False

    @property
    def parts(self) -> tuple[Section, ...]:
        return tuple(block for block in self.blocks if isinstance(block, Section))


Block = Paragraph | Bullets | Note | Facts | Table | Shares | Command | Remedies | Section


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    kind: str
    subject: tuple[str, ...]
    sections: tuple[Section, ...]


def plain(text: object) -> Text:
    return (Span(str(text)),)


def code(text: object) -> Text:
    return (Span(str(text), code=True),)


def link(text: str, target: str) -> Text:
    return (Span(text, link=target),)
