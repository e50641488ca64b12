"""Gathers the rules that `check` can report from the modules that check them.

SARIF, code quality reports and the table in docs/linting.md take titles and severities from here.
Rules that are defined in data files, for engines and for job scripts, keep their texts there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from ... import general_rules
from ...facts import engines
from ...general_rules import Rule, rules_in
from ...rules import constraints
from ...rules.constraints import Constraint
from .. import rules, suppressions, tables
from . import (
    files,
    gpus,
    model,
    model_config,
    model_repository,
    names,
    options,
    ports,
    references,
    sides,
    starts,
    triton,
    triton_commands,
    triton_fields,
    triton_parameters,
    variables,
)
from .jobs import job_rules

MODULES = (
    general_rules,
    rules,
    suppressions,
    tables,
    triton_fields,
    files,
    gpus,
    model,
    model_config,
    triton_parameters,
    model_repository,
    names,
    options,
    ports,
    references,
    sides,
    starts,
    triton,
    triton_commands,
    variables,
)
RULES: Final[Mapping[str, Rule]] = {
    rule.id: rule for module in MODULES for rule in rules_in(vars(module).values())
}
"""The rules that are implemented in code, by id."""


@cache
def every() -> Mapping[str, Rule]:
    """Every rule that `check` can report, by id."""
    found = {**RULES, **job_rules()}
    rows: dict[str, list[Constraint]] = {}
    for name in engines.names():
        for row in constraints.every(engines.load(name)):
            rows.setdefault(row.id, []).append(row)
    for id, each in rows.items():
        rule = found.get(id, each[0].rule)
        own = (rule.docs,) if id in found else ()
        docs = "\n".join(dict.fromkeys((*own, *(row.rule.docs for row in each))))
        found[id] = Rule(id, rule.title, rule.severity, docs)
    return found


def markdown() -> Iterator[str]:
    """The lines of the table of rules that are not about single options."""
    yield "| rule | usually | what is wrong |"
    yield "|---|---|---|"
    for id, rule in sorted({**RULES, **job_rules()}.items()):
        yield f"| `{id}` | {rule.severity} | {rule.title} |"
