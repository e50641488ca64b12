"""The environment variables of the engine's processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..diagnostics import Diagnostic
from ..facts import heuristics as practice
from .case import Case
from .decision import Decision

_IN_THE_OPTION_FILE = "env_overrides"


def environment(case: Case) -> Iterator[Decision]:
    """What the practice sets for this release, GPU and role; the deployment's own values win.

    Over those the engine puts what `engine_config.env_overrides` sets.
    """
    situation, given = case.situation(), dict(case.deployment.environment)
    written = _env_overrides(case)
    reads = case.facts.release.environment
    for name, value in written.items():
        if given.get(name, value) != value:
            what = f"{given[name]} is lost: engine_config.env_overrides sets {value}, and it wins"
            problem = Diagnostic(f"environment.{name}", what, "keep one", severity="warning")
            case.warnings.append(problem)
    for rule in practice.environment():
        path = f"environment.{rule.option}"
        known = rule.everywhere or rule.option in reads
        row = next(rule.fitting(situation), None) if known else None
        rules_value = row and not row.leaves
        if rule.option in given or rule.option in written:
            reason = _reason(rule.option in written, "")
            if row and rules_value:
                reason = f"{reason} The rule would give {row.value}: {row.reason}"
            set_here = given.pop(rule.option, "")
            value = written.get(rule.option, set_here)
            yield Decision(path, value, reason, "override", "deployment")
        elif row and rules_value:
            yield Decision(path, row.value, row.reason, row.evidence, row.source)
    for name, value in given.items():
        reason = _reason(name in written, "; no rule decides it")
        value = written.get(name, value)
        yield Decision(f"environment.{name}", value, reason, "override", "deployment")


def _env_overrides(case: Case) -> Mapping[str, str]:
    """Variables that the option file sets: mostly one mapping, or single ones by path."""
    whole: Any = case.overrides.get(_IN_THE_OPTION_FILE)
    prefix = f"{_IN_THE_OPTION_FILE}."
    single = {
        path.removeprefix(prefix): value
        for path, value in case.overrides.items()
        if path.startswith(prefix)
    }
    return {name: str(value) for name, value in (whole or single).items()}


def _reason(written: bool, rest: str) -> str:
    if written:
        return f"Set in engine_config.env_overrides, which the engine puts over this{rest}."
    return f"Set in the deployment{rest}."
