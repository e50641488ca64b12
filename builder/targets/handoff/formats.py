"""A document as Markdown, in the dialect of GitHub and GitLab, and as one HTML page.

The page loads nothing and runs nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import singledispatch

from ...render import html
from .document import (
    Block,
    Bullets,
    Command,
    Document,
    Facts,
    Note,
    Paragraph,
    Remedies,
    Section,
    Shares,
    Span,
    Table,
    Text,
    plain,
)

# What has a meaning anywhere in a line, and what has one at its beginning.
_ANYWHERE = re.compile(r"([\\`*_\[\]<>|~&$])")
_INSIDE_A_WORD = re.compile(r"(?<=[A-Za-z0-9])\\_(?=[A-Za-z0-9])")
_AT_THE_BEGINNING = re.compile(r"^([#+=:-]|\d+(?=[.)]))")


def markdown(document: Document) -> str:
    about = f"{document.kind}. {' · '.join(document.subject)}"
    lines = [f"# {_line(document.title)}", _text(plain(about)), _contents(document.sections)]
    for section in document.sections:
        lines += _section(section, 2)
    return "\n\n".join(lines) + "\n"


def _contents(sections: Sequence[Section]) -> str:
    return "\n".join(line for one in sections for line in _entries(one))


def _entries(section: Section) -> Iterator[str]:
    yield f"- [{_line(section.title)}](#{section.id})"
    for part in section.parts if section.listed else ():
        yield f"  - [{_line(part.title)}](#{part.id})"


def _section(section: Section, level: int) -> Iterator[str]:
    yield f'<a id="{section.id}"></a>\n\n{"#" * level} {_line(section.title)}'
    for block in section.blocks:
        if isinstance(block, Section):
            yield from _section(block, level + 1)
        else:
            yield _block(block)


@singledispatch
def _block(block: Block) -> str:
    raise TypeError(f"{type(block).__name__} has no form in Markdown")


@_block.register
def _(block: Paragraph) -> str:
    return _text(block.text)


@_block.register
def _(block: Bullets) -> str:
    return "\n".join(f"- {_text(item)}" for item in block.items)


@_block.register
def _(block: Note) -> str:
    return f"> **{_line(block.title)}.** {_inline(block.text)}"


@_block.register
def _(block: Facts) -> str:
    return "\n".join(f"- **{_line(name)}**: {_inline(value)}" for name, value in block.rows)


@_block.register
def _(block: Table) -> str:
    rows = [[_line(title) for title in block.columns]]
    rows += [["---:" if i in block.numeric else "---" for i in range(len(block.columns))]]
    rows += [[_cell(cell) for cell in row] for row in block.rows]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{_text(plain(block.caption))}:\n\n{table}"


@_block.register
def _(block: Shares) -> str:
    rows = [f"| {_line(name)} | {value:,.1f} |" for name, value in (*block.parts, block.whole)]
    head = f"{_text(plain(block.caption))}:\n\n| part | {_line(block.unit)} |\n| --- | ---: |"
    return "\n".join([head, *rows])


@_block.register
def _(block: Command) -> str:
    parts = (f"**{_line(block.title)}**", _script(block.script), _text(block.outcome))
    return "\n\n".join(filter(None, parts))


@_block.register
def _(block: Remedies) -> str:
    return "\n\n".join(
        f"**Sign:** {_inline(sign)} **Cause:** {_inline(cause)}\n\n{_script(script)}"
        for sign, cause, script in block.rows
    )


def _script(commands: str) -> str:
    fence = "`" * max(3, _longest_run(commands) + 1)
    return f"{fence}bash\n{commands.rstrip()}\n{fence}"


def _text(text: Text) -> str:
    """Inline text that begins a line."""
    return _AT_THE_BEGINNING.sub(r"\\\1", _inline(text).strip())


def _inline(text: Text) -> str:
    return "".join(map(_span, text))


def _cell(text: Text) -> str:
    """Inline text in a table, where a bar ends the cell even in code unless it is escaped."""
    spans = (_span(one).replace("|", r"\|") if one.code else _span(one) for one in text)
    return "".join(spans).strip()


def _span(span: Span) -> str:
    if span.code:
        return _code(span.text)
    return f"[{_line(span.text)}]({span.link})" if span.link else _escaped(span.text)


def _line(text: str) -> str:
    return _escaped(text).strip()


def _escaped(text: str) -> str:
    """Text without a meaning; an underscore inside a word has none anyway."""
    text = re.sub(r"\s+", " ", text)
    return _INSIDE_A_WORD.sub("_", _ANYWHERE.sub(r"\\\1", text))


def _code(text: str) -> str:
    text = re.sub(r"\s+", " ", text).strip()
    fence = "`" * (_longest_run(text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}" if text else ""


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


FOLDER = "handoff"
WIDTH = 640


def page(document: Document) -> str:
    return html(
        f"{FOLDER}/page.html.j2",
        document=document,
        style_hash=_hash(html(f"{FOLDER}/page.css")),
        kind=_kind,
        drawn=_drawn,
        width=WIDTH,
    )


def _kind(block: Block) -> str:
    return type(block).__name__.lower()


def _drawn(shares: Shares) -> list[tuple[str, float, float]]:
    """Each part's name, and where its piece of the bar begins and how wide it is."""
    total, at, pieces = shares.whole[1] or 1.0, 0.0, []
    for name, value in shares.parts:
        width = value / total * WIDTH
        pieces.append((name, round(at, 1), round(width, 1)))
        at += width
    return pieces


def _hash(text: str) -> str:
    """What the content security policy knows the style by."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
