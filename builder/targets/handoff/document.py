"""Builds documents for people: Markdown, and an HTML page of the same text.

The dialect is that of GitHub and GitLab. Every string that is not `Text` is escaped when it enters
a document, so values cannot become structure. The page loads nothing and runs nothing. The
runbook's text, procedures and commands are rows of `builder/data/runbook.yaml`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml

from ...diagnostics import printable
from ...facts import data_file, plain_data
from ...render import html, source_expression

# What has a meaning anywhere in a line, and what has one at its beginning.
_ANYWHERE = re.compile(r"([\\`*_\[\]<>|~&$])")
_INSIDE_A_WORD = re.compile(r"(?<=[A-Za-z0-9])\\_(?=[A-Za-z0-9])")
_AT_THE_BEGINNING = re.compile(r"^([#+=:-]|\d+(?=[.)]))")
_CODE_SPAN = re.compile(r"\\.|(?P<code>(?P<fence>`+)(?!`).*?(?<!`)(?P=fence)(?!`))")


class Text(str):
    """Markdown within a line, in which all values are escaped."""

    __slots__ = ()

    def __add__(self, other: str) -> Text:
        return Text(f"{self}{plain(other)}")

    def __radd__(self, other: str) -> Text:
        return Text(f"{plain(other)}{self}")


@dataclass(frozen=True, slots=True)
class Section:
    """A chapter, or a part of one; `id` is what links name. Blocks are Markdown or parts.

    The contents name the parts of a chapter too where they are `listed`.
    """

    id: str
    title: str
    blocks: tuple[Block, ...]
    listed: bool = False

    @property
    def parts(self) -> tuple[Section, ...]:
        return tuple(block for block in self.blocks if isinstance(block, Section))


Block = str | Section


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    kind: str
    subject: tuple[str, ...]
    sections: tuple[Section, ...]


def markdown(document: Document) -> str:
    about = f"{document.kind}. {' · '.join(document.subject)}"
    contents = chain.from_iterable(map(_entries, document.sections))
    lines = [f"# {_line(document.title)}", paragraph(about), "\n".join(contents)]
    lines += chapters(document.sections, 2)
    return "\n\n".join(lines) + "\n"


def page(document: Document) -> str:
    return html(
        "handoff/page.html.j2",
        document=document,
        style_hash=source_expression(html("handoff/page.css")),
        is_section=lambda block: isinstance(block, Section),
        to_html=_reader().render,
    )


def plain(text: object) -> Text:
    """Text without a meaning; an underscore inside a word has none anyway."""
    if isinstance(text, Text):
        return text
    escaped = _ANYWHERE.sub(r"\\\1", _one_line(text))
    return Text(_INSIDE_A_WORD.sub("_", escaped))


def _one_line(text: object) -> str:
    return printable(re.sub(r"\s+", " ", str(text)))


def code(text: object) -> Text:
    words = _one_line(text).strip()
    fence = "`" * (_longest_run(words) + 1)
    pad = " " if words.startswith("`") or words.endswith("`") else ""
    return Text(f"{fence}{pad}{words}{pad}{fence}" if words else "")


def link(text: str, target: str) -> Text:
    return Text(f"[{_line(text)}]({target})")


def paragraph(text: str) -> str:
    return _AT_THE_BEGINNING.sub(r"\\\1", plain(text).strip())


def bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {paragraph(item)}" for item in items)


def note(title: str, text: str) -> str:
    """What a reader must not miss."""
    return f"> **{_line(title)}.** {plain(text)}"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Names with their values."""
    return "\n".join(f"- **{_line(name)}**: {plain(value)}" for name, value in rows)


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    numeric: Iterable[int] = (),
) -> str:
    """`numeric` are the columns that are aligned on the right."""
    on_the_right = set(numeric)
    lines = [[_line(title) for title in columns]]
    lines += [["---:" if i in on_the_right else "---" for i in range(len(columns))]]
    body = "\n".join([*(cells(*line) for line in lines), *(cells(*row) for row in rows)])
    return f"{paragraph(caption)}:\n\n{body}"


def cells(*values: object) -> str:
    """A line of a table."""
    return f"| {' | '.join(_cell(plain(value)) for value in values)} |"


def command(title: str, script: str, outcome: str) -> str:
    """What to type, in one shell after the others, and what is to come of it."""
    parts = (f"**{_line(title)}**", _script(script), paragraph(outcome))
    return "\n\n".join(filter(None, parts))


def remedies(rows: Iterable[tuple[str, str, str]]) -> str:
    """What may be behind an alert, the likeliest first: sign, cause, and commands that tell."""
    return "\n\n".join(
        f"**Sign:** {plain(sign)} **Cause:** {plain(cause)}\n\n{_script(script)}"
        for sign, cause, script in rows
    )


def _entries(section: Section) -> Iterator[str]:
    yield f"- [{_line(section.title)}](#{section.id})"
    if section.listed:
        yield from (f"  - [{_line(part.title)}](#{part.id})" for part in section.parts)


def chapters(sections: Iterable[Section], level: int) -> Iterator[str]:
    """The blocks of sections as Markdown, under headings of a level, 1 for the largest."""
    for section in sections:
        yield f'<a id="{section.id}"></a>\n\n{"#" * level} {_line(section.title)}'
        for block in section.blocks:
            yield from chapters((block,), level + 1) if isinstance(block, Section) else (block,)


def _script(commands: str) -> str:
    fence = "`" * max(3, _longest_run(commands) + 1)
    return f"{fence}bash\n{commands.rstrip()}\n{fence}"


def _line(text: str) -> str:
    return plain(text).strip()


def _cell(text: Text) -> str:
    """In a table a bar ends the cell, even in code, unless it is escaped."""
    return _CODE_SPAN.sub(
        lambda found: found[0].replace("|", r"\|") if found["code"] else found[0], text
    ).strip()


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


@cache
def _reader() -> MarkdownIt:
    """Markdown as HTML for the page: raw HTML is escaped, code and tables scroll by keyboard."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    reader.add_render_rule("fence", _fence)
    for name in ("th_open", "td_open"):
        reader.add_render_rule(name, _cell_open)
    scrolled = '<div class="scroll" role="region" tabindex="0" aria-label="Table">\n<table>\n'
    reader.add_render_rule("table_open", lambda *_: scrolled)
    reader.add_render_rule("table_close", lambda *_: "</table>\n</div>\n")
    return reader


def _cell_open(renderer: Any, tokens: Sequence[Any], index: int, *rest: Any) -> str:
    """The page's policy knows no styles of single cells: numbers have a class."""
    if tokens[index].attrs.pop("style", None):
        tokens[index].attrs["class"] = "num"
    opened: str = renderer.renderToken(tokens, index, *rest)
    return opened


def _fence(_renderer: object, tokens: Sequence[Any], index: int, *_: object) -> str:
    script = escapeHtml(tokens[index].content.rstrip())
    return f'<pre tabindex="0" aria-label="Commands"><code>{script}</code></pre>\n'


# Braces and dollars belong to the shell.
_BLANK = re.compile(r"@\{(\w+)\}")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


Values = Mapping[str, object]


def fill(words: str, values: Values) -> Text:
    """Words of ours as text. Values are text in it, whatever characters they have."""
    pieces = " ".join(words.split()).split("`")
    found = Text()
    for index, piece in enumerate(pieces):
        found += code(_filled(piece, values)) if index % 2 else _linked(piece, values)
    return found


def _linked(piece: str, values: Values) -> Text:
    """Each third piece of a split is a link's target, behind the link's words."""
    words = _LINK.split(piece)
    found = plain(_filled(words[0], values))
    for title, target, rest in zip(words[1::3], words[2::3], words[3::3], strict=True):
        found += link(_filled(title, values), target) + _filled(rest, values)
    return found


def _filled(piece: str, values: Values) -> str:
    return _BLANK.sub(lambda found: str(values[found[1]]), piece)


def script(commands: str, values: Values) -> str:
    """Commands of ours; each value is one word of the shell."""
    return _BLANK.sub(lambda found: shlex.quote(str(values[found[1]])), commands)


def section(name: str, values: Values, *blocks: Block) -> Section:
    row = _data()["sections"][name]
    intro = (paragraph(fill(row["text"], values)),) if "text" in row else ()
    return Section(name, row["title"], (*intro, *blocks), row.get("listed", False))


def procedures(
    of: str, values: Values, known: Set[str], made: Mapping[str, tuple[str, ...]]
) -> tuple[Section, ...]:
    """The procedures of a section that apply; `made` are commands that no row can hold."""
    found = []
    for row in _data()["procedures"]:
        if row["section"] == of and known >= set(row.get("when", ())):
            intro = (paragraph(fill(row["text"], values)),) if "text" in row else ()
            commands: list[str] = []
            for step in row["steps"]:
                is_made = isinstance(step, str) and step in made
                commands += made[step] if is_made else _commands(step, values, known)
            found.append(Section(f"{of}-{row['id']}", row["title"], (*intro, *commands)))
    return tuple(found)


def errors() -> str:
    """What clients get instead of an answer, and what they are to do."""
    columns = ("what comes back", "means", "send it again?")
    rows = [[fill(row[key], {}) for key in ("sign", "means", "again")] for row in _data()["errors"]]
    return table("Errors", columns, rows)


def _commands(step: str | Mapping[str, Any], values: Values, known: Set[str]) -> tuple[str, ...]:
    """A step: a command, or several in one block with a title."""
    names = [step] if isinstance(step, str) else step["of"]
    rows = [
        row for name in names if known >= set((row := _data()["commands"][name]).get("when", ()))
    ]
    if not rows:
        return ()
    title = rows[0]["title"] if isinstance(step, str) else step["title"]
    commands = "".join(script(row["run"], values) for row in rows)
    return (command(title, commands, _outcome(rows[-1], values)),)


def _outcome(row: Mapping[str, Any], values: Values) -> Text:
    prints = "It prints " + code(row["prints"]) + ". " if "prints" in row else Text()
    return prints + fill(row.get("outcome", ""), values)


def _data() -> Any:
    return data_file.shipped("runbook.yaml", plain_data.RUNBOOK_FILE)
