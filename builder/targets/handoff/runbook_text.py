"""The runbook's own words: sections, procedures and commands of the data, filled in with values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Set
from functools import cache
from typing import Any

from ...documents import DATA
from ...facts import data_file, plain_data
from .document import Block, Section, Text, code, command, link, paragraph, plain, table

FILE = DATA / "runbook.yaml"

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
            steps = [
                made[step]
                if isinstance(step, str) and step in made
                else _commands(step, values, known)
                for step in row["steps"]
            ]
            commands = tuple(command for step in steps for command in step)
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


@cache
def _data() -> Mapping[str, Any]:
    document: Mapping[str, Any] = data_file.load(FILE, plain_data.RUNBOOK_FILE)
    return document
