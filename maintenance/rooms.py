"""Counts modules, lines and classes of each room, and holds them to the budgets of ARCHITECTURE.md.

python -m maintenance.rooms            prints a row for each room
python -m maintenance.rooms --check    exits with 1 where a room exceeds its budget
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
TREES = ("builder", "launch", "supervisor", "model_repository")
MOST_NAMESAKES = 2

_ROW = re.compile(r"\| `(?P<room>[\w/]+)` \| (?P<counts>[\d,]+ \| [\d,]+ \| [\d,]+) \|")


@dataclass(frozen=True, slots=True)
class Size:
    """What there is to learn in a room."""

    modules: int = 0
    lines: int = 0
    classes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(
            self.modules + other.modules, self.lines + other.lines, self.classes + other.classes
        )


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the product: its room, its lines and the names of its classes."""

    room: str
    lines: int
    classes: tuple[str, ...]


def modules() -> Iterator[Module]:
    """Each module of the product; a room is a folder in one of the trees, or a tree itself."""
    for tree in TREES:
        for path in sorted((ROOT / tree).rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            text = path.read_text(encoding="utf-8")
            nodes = ast.walk(ast.parse(text))
            classes = tuple(node.name for node in nodes if isinstance(node, ast.ClassDef))
            room = "/".join(parts[:2]) if len(parts) > 2 else parts[0]
            yield Module(room, len(text.splitlines()), classes)


def sizes(found: Sequence[Module]) -> dict[str, Size]:
    """The size of each room."""
    rooms: dict[str, Size] = defaultdict(Size)
    for module in found:
        rooms[module.room] += Size(1, module.lines, len(module.classes))
    return dict(rooms)


def budgets(text: str) -> dict[str, Size]:
    """The budget of each room, from the table of ARCHITECTURE.md."""
    found = {}
    for row in _ROW.finditer(text):
        counts = [int(count.replace(",", "")) for count in row["counts"].split(" | ")]
        found[row["room"]] = Size(*counts)
    return found


def faults(rooms: Mapping[str, Size], allowed: Mapping[str, Size]) -> Iterator[str]:
    """Rooms that exceed their budget or have none, and budgets of rooms that are gone."""
    for room, size in sorted(rooms.items()):
        budget = allowed.get(room)
        if budget is None:
            yield f"{room} has no row in ARCHITECTURE.md; add one that says what the room is for"
            continue
        for what in ("modules", "lines", "classes"):
            count, most = getattr(size, what), getattr(budget, what)
            if count > most:
                yield f"{room} has {count:,} {what}, and its budget is {most:,}; cut, or raise it"
    for room in sorted(allowed.keys() - rooms.keys()):
        yield f"{room} has a row in ARCHITECTURE.md and no module; remove the row"


def namesakes(found: Sequence[Module]) -> Iterator[str]:
    """Class names that stand for more than a few things."""
    counts = Counter(name for module in found for name in module.classes)
    for name, count in sorted(counts.items()):
        if count > MOST_NAMESAKES:
            yield f"{count} classes are named {name}; at most {MOST_NAMESAKES} may be"


def main(words: Sequence[str] = ()) -> int:
    """Print the rooms, or check them."""
    found = list(modules())
    rooms = sizes(found)
    if list(words) == ["--check"]:
        allowed = budgets((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
        wrong = [*faults(rooms, allowed), *namesakes(found)]
        print("\n".join(wrong) or f"{len(rooms)} rooms are within their budgets")
        return 1 if wrong else 0
    print(f"{'':32}{'modules':>8}{'lines':>8}{'classes':>8}")
    for room, size in [*sorted(rooms.items()), ("all", sum(rooms.values(), Size()))]:
        print(f"{room:32}{size.modules:8}{size.lines:8}{size.classes:8}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
