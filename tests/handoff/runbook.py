"""A rendered runbook as its reader sees it: the commands in their order, and what each is said to
print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PRINTS = re.compile(r"It prints `([^`]+)`\.")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of commands. `place` are the anchors of the chapters that it stands in."""

    place: tuple[str, ...]
    title: str
    script: str
    prints: str | None

    @property
    def chapter(self) -> str:
        return self.place[0]

    def __str__(self) -> str:
        return f"{'/'.join(self.place)}: {self.title}"


def read(file: Path) -> list[Block]:
    return list(_blocks(file.read_text(encoding="utf-8").split("\n\n")))


def _blocks(paragraphs: list[str]) -> Iterator[Block]:
    """A fence may hold blank lines, and what follows it says what comes of its commands."""
    place: list[str] = []
    anchor, title = "", ""
    pieces = [piece.strip("\n") for piece in paragraphs]
    while pieces:
        text = pieces.pop(0)
        if found := re.fullmatch(r'<a id="([a-z0-9-]+)"></a>', text):
            anchor = found[1]
        elif heading := re.match(r"(#{2,}) ", text):
            place = [*place[: len(heading[1]) - 2], anchor]
        elif text.startswith("```"):
            while not text.endswith("\n```"):
                text += f"\n\n{pieces.pop(0)}"
            script = text.removeprefix("```bash\n").removesuffix("```")
            after = pieces[0] if pieces else ""
            said = _PRINTS.search(after)
            yield Block(tuple(place), title, script, said and said[1])
        else:
            title = text.strip("*")
