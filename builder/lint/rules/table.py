"""Lists all rules, including those defined in data, for reports and docs/linting.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from ...facts import engines
from ...general_rules import Rule
from ...rules import constraints
from ...rules.constraints import Constraint
from . import RULES
from .jobs import job_rules


@cache
def every() -> Mapping[str, Rule]:
    """Every rule that `check` can report, by id."""
    found = {**RULES, **job_rules()}
    rows: dict[str, list[Constraint]] = {}
    for name in engines.names():
        for row in constraints.load(engines.load(name)).every:
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
