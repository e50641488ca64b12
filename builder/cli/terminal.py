"""Text for a terminal of 80 columns: wrapped lines, columns, sizes, and JSON for machines."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ..diagnostics import Diagnostic, one_line

WIDTH = 80


def print_json(document: object) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))


def wrapped(label: str, text: str) -> list[str]:
    """A text in lines of the terminal's width, the later ones below the first; names stay whole."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=label,
        subsequent_indent=" " * (len(label) or 4),
        break_long_words=False,
        break_on_hyphens=False,
    )


def lines_text(lines: Iterable[str]) -> str:
    """Lines under each other, each of which stays one line whatever is in it."""
    return "\n".join(map(one_line, lines))


def columns(rows: Sequence[Sequence[str]], numeric: Collection[int] = ()) -> str:
    """Rows in columns; those of `numeric` indices end below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return lines_text(
        "  ".join(
            cell.rjust(width) if index in numeric else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def warn(warnings: Sequence[Mapping[str, Any]]) -> None:
    """The warnings of a manifest on stderr."""
    for row in warnings:
        print(f"warning: {Diagnostic(row['where'], row['what'], row['remedy'])}", file=sys.stderr)


def size(nbytes: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes:.0f} B"
