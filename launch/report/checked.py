"""How the smoke suite went: a smoke.json, read and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .fields import Fields


@dataclass(frozen=True, slots=True)
class Check:
    id: str
    title: str
    outcome: str
    transport: str
    evidence: str
    reason: str


@dataclass(frozen=True, slots=True)
class Checked:
    checks: int
    passed: int
    failed: int
    warnings: int
    skipped: int
    results: tuple[Check, ...]


def read(document: Any, where: str) -> Checked:
    """Raises `BadInput` with everything that is wrong in it."""
    top = Fields(document, where)
    checked = Checked(
        checks=top.count("checks") or 0,
        passed=top.count("passed") or 0,
        failed=top.count("failed") or 0,
        warnings=top.count("warnings") or 0,
        skipped=top.count("skipped") or 0,
        results=tuple(
            Check(*(row.text(name) or "" for name in Check.__slots__))
            for row in top.children("results")
        ),
    )
    top.check()
    return checked
