"""Text for a terminal of 80 columns: wrapped lines, columns, sizes, and JSON for machines."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence

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


def columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def size(nbytes: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes:.0f} B"
