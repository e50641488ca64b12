"""A document as one HTML page that loads nothing and runs nothing."""

from __future__ import annotations

import base64
import hashlib

from ...render import html
from .document import Block, Document, Shares

FOLDER = "handoff"
WIDTH = 640


def write(document: Document) -> str:
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
