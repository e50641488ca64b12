"""The licence of a model: the one of its shipped facts, or what the card in its folder names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..documents import load_yaml
from .checkpoint import Checkpoint
from .checkpoint_files import CARD


@dataclass(frozen=True, slots=True)
class Licence:
    """`note` is what a deployment has to know of its terms, `url` where they are."""

    name: str
    source: str
    verified: bool
    note: str | None = None
    url: str | None = None


def of(checkpoint: Checkpoint) -> Licence | None:
    """`None` where it is not known."""
    if checkpoint.file is not None:
        document: Mapping[str, Any] = load_yaml(checkpoint.file.read_text(encoding="utf-8"))
        row = document.get("licence")
        return Licence(**row) if row else None
    if name := checkpoint.listing.licence:
        return Licence(name, f"{CARD} of the checkpoint", verified=True)
    return None
