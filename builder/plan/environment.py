"""The environment variables of the engine's processes."""

from __future__ import annotations

from collections.abc import Iterator

from .. import practice
from .case import Case, Decision


def environment(case: Case) -> Iterator[Decision]:
    """What the practice sets for this release, GPU and role; the deployment's own values win."""
    situation, given = case.situation(), dict(case.deployment.environment)
    for rule in practice.environment():
        path = f"environment.{rule.option}"
        row = next(rule.fitting(situation), None)
        if rule.option in given:
            reason = "Set in the deployment."
            if row and not row.leaves:
                reason = f"{reason} The rule would give {row.value}: {row.reason}"
            yield Decision(path, given.pop(rule.option), reason, "override", "deployment")
        elif row and not row.leaves:
            yield Decision(path, row.value, row.reason, row.evidence, row.source)
    for name, value in given.items():
        reason = "Set in the deployment; no rule decides it."
        yield Decision(f"environment.{name}", value, reason, "override", "deployment")
