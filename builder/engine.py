"""The plan in the words of one engine release, checked against its option table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .errors import BadInput, Problem
from .plan import Decision, Plan


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Decisions with the release's own option paths, and the nested options that they make up.

    The one value set that every target renders.
    """

    decisions: tuple[Decision, ...]
    options: Mapping[str, Any]


def translate(plan: Plan) -> EngineConfig:
    """Spell every decision for the release and check the result.

    Raises `BadInput` naming each option that the release rejects.
    """
    release = plan.facts.release
    decisions = tuple(replace(row, path=release.spell(row.path)) for row in plan.decisions)
    options = _nested(decisions)
    if problems := release.check_options(options):
        raise BadInput([replace(p, where=f"engine_config.{p.where}") for p in problems])
    return EngineConfig(decisions, options)


def _nested(decisions: tuple[Decision, ...]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    problems = []
    for row in decisions:
        *parents, last = row.path.split(".")
        place = options
        for key in parents:
            inner = place.setdefault(key, {})
            if not isinstance(inner, dict):
                what = f"{key} is set to {inner!r} and to a mapping"
                problems.append(Problem(f"engine_config.{row.path}", what, "keep one"))
                inner = {}
            place = inner
        place[last] = row.value
    if problems:
        raise BadInput(problems)
    return options
