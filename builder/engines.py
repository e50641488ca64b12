"""Translates a plan into the options of an engine release and checks them against its table.

What differs between engines is in their records and option tables, so no engine needs code here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .diagnostics import Diagnostic
from .errors import BadInput
from .facts.release import Release
from .planning import Decision, Plan
from .planning.plan_builder import nested
from .rules.constraints import violations
from .rules.validation import checked, validate


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Decisions under the release's own option paths, and the nested options that they make up.

    Every server renders this one set of values.
    """

    decisions: tuple[Decision, ...]
    options: Mapping[str, Any]
    warnings: tuple[Diagnostic, ...] = ()


def translate(plan: Plan) -> EngineConfig:
    """Spell every decision for the release and check the result.

    Raises `BadInput` naming each option that the release rejects or ignores. If the release has no
    table and is checked against its neighbours, what only one of them refuses is a warning.
    """
    release = plan.facts.release
    decisions = tuple(replace(row, path=release.option_path(row.path)) for row in plan.decisions)
    options = _nested(decisions)
    context = plan.facts.rule_context(plan.deployment)

    def against(table: Release) -> list[Diagnostic]:
        here = replace(context, release=table)
        return [*validate(table, options), *violations(options, here, strict=True)]

    found = checked(release, against)
    found = [replace(problem, where=_where(problem)) for problem in found]
    if errors := [problem for problem in found if problem.severity == "error"]:
        raise BadInput(errors)
    return EngineConfig(decisions, options, tuple(found))


def _where(problem: Diagnostic) -> str:
    """In the deployment: the model is its checkpoint, all else its own words for the engine."""
    return "checkpoint" if problem.where == "model" else f"engine_config.{problem.where}"


def _nested(decisions: tuple[Decision, ...]) -> dict[str, Any]:
    values = {row.path: row.value for row in decisions}
    problems = []
    for path in values:
        above = path
        while above := above.rpartition(".")[0]:
            if above in values and not isinstance(values[above], dict):
                what = f"{above.rpartition('.')[2]} is set to {values[above]!r} and to a mapping"
                problems.append(Diagnostic(f"engine_config.{path}", what, "keep one"))
    if problems:
        raise BadInput(problems)
    return nested(values)
