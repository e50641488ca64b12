"""Acceptance lengths that others measured: tokens a step by the number of draft tokens."""

from __future__ import annotations

from dataclasses import dataclass

from . import data_file
from .schema import Text

FILE = "acceptance.yaml"


@dataclass(frozen=True, slots=True)
class AcceptanceCurve:
    """`lengths` are those of 1, 2, 3 ... draft tokens; `file` is the source's own."""

    model: Text
    drafting: Text
    thinking: bool
    file: Text
    sampling: Text
    lengths: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AcceptanceFile:
    """The curves of one source, all of the same workload."""

    source: Text
    workload: Text
    curves: tuple[AcceptanceCurve, ...]


def curves() -> tuple[AcceptanceCurve, ...]:
    found: AcceptanceFile = data_file.shipped(FILE, AcceptanceFile)
    return found.curves


def lengths(model: str, drafting: str, draft_tokens: int) -> list[float]:
    """What curves of a model have for a kind and a number of draft tokens, the least first.

    A model is known by its name without the vendor, in whatever precision.
    """
    name = model.rpartition("/")[2].lower()
    return sorted(
        one.lengths[draft_tokens - 1]
        for one in curves()
        if _model(one.model) == _model(name)
        and one.drafting.lower().startswith(drafting.lower())
        and 1 <= draft_tokens <= len(one.lengths)
    )


def _model(name: str) -> str:
    """The name without the precision of its weights."""
    return name.removesuffix("-nvfp4").removesuffix("-fp8").removesuffix("-fp4")
