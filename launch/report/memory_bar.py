"""The memory budget of a GPU as one bar."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from .numerals import number

WIDTH, HEIGHT = 640, 26
GAP = 1.5


def svg(parts: Sequence[tuple[str, float]]) -> Markup:
    """Parts by name and GiB, in the colours of the key below the bar."""
    total = sum(gib for _, gib in parts)
    at = 0.0
    drawn = []
    for index, (name, gib) in enumerate(parts):
        width = gib / total * WIDTH
        drawn.append(
            Markup('<rect class="{}" x="{:.1f}" width="{:.1f}" height="{}"/>').format(
                colour(index, name), at, max(width - GAP, 0.5), HEIGHT
            )
        )
        at += width
    words = f"Memory of a GPU, {number(total)} GiB"
    return Markup(
        '<svg class="bar" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, words, Markup("").join(drawn))


def colour(index: int, name: str) -> str:
    return "free" if name == "free" else f"s{index}"
