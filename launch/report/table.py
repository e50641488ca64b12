"""A table of a page: columns, rows of text, and what a reader should know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .numerals import NONE

NUMERIC = "num"


@dataclass(frozen=True, slots=True)
class Table:
    """`kinds` has a word per column: `num` stands right, `code` and `text` stand left. The first
    column is the head of its row."""

    caption: str
    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def of_runs(
    caption: str,
    number_of_runs: int,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[object]],
) -> Table:
    """A table whose rows start with a run; of one run, the run goes without saying."""
    if number_of_runs == 1:
        return make(caption, columns, [row[1:] for row in rows])
    return make(caption, [("run", "text"), *columns], rows)


def dense(table: Table) -> Table:
    """Without the columns of figures that nobody measured."""
    kept = [
        index
        for index, kind in enumerate(table.kinds)
        if kind != NUMERIC or any(row[index] not in ("", NONE) for row in table.rows)
    ]
    if not any(table.kinds[index] == NUMERIC for index in kept):
        return replace(table, rows=())
    return Table(
        table.caption,
        tuple(table.columns[index] for index in kept),
        tuple(table.kinds[index] for index in kept),
        tuple(tuple(row[index] for index in kept) for row in table.rows),
    )


def make(
    caption: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[object]]
) -> Table:
    """Columns as title and kind."""
    return Table(
        caption,
        tuple(title for title, _ in columns),
        tuple(kind for _, kind in columns),
        tuple(tuple("" if cell is None else str(cell) for cell in row) for row in rows),
    )
