"""Streamed text: whether a server sends what is new or all so far, and the whole text of either."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from .client import Fault

Mode = Literal["delta", "cumulative"]


def mode(texts: Sequence[str]) -> Mode:
    """How the texts of a stream, none of them empty, belong together.

    Cumulative texts each begin with the one before and grow; new texts do so only by accident, and
    not all along a stream. Raises `Fault` for texts that mostly grow, but not always.
    """
    pairs = list(pairwise(texts))
    growing = sum(after.startswith(before) for before, after in pairs)
    if not pairs or growing * 2 < len(pairs):
        return "delta"
    if growing == len(pairs):
        return "cumulative" if len(texts[-1]) > len(texts[0]) else "delta"
    broken = next(i for i, (a, b) in enumerate(pairs) if not b.startswith(a))
    before, after = pairs[broken]
    raise Fault(
        f"texts of all so far must grow, but part {broken + 2} is "
        f"{after[:30]!r} after {before[:30]!r}"
    )


def whole(texts: Sequence[str]) -> str:
    if not texts:
        return ""
    return texts[-1] if mode(texts) == "cumulative" else "".join(texts)


def difference(one: str, other: str) -> str:
    """Where two texts part, in words."""
    pairs = enumerate(zip(one, other, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
    return f"differs at character {at}: {one[at : at + 30]!r}, not {other[at : at + 30]!r}"
