"""Checks pinned versions of Python packages against the known defects of the pinned engines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...diagnostics import Diagnostic, located
from ...errors import BadInput
from ...facts import engines, release
from ...rules import constraints
from ...rules.context import RuleContext
from ...rules.rule_inputs import RuleInputs
from ..read.yaml_text import places

_PIN = re.compile(
    r"(?<![\w.-])(?P<name>[A-Za-z][\w.-]*)(?:\[[\w,. -]*\])?[ \t]*==[ \t]*(?P<version>\d[\w.+]*)"
)
_SEPARATORS = re.compile(r"[-_.]+")


def pins_engine(text: str) -> bool:
    """Whether a text pins the package of an engine to an exact version."""
    return not _packages().isdisjoint(_pins(text))


def package_diagnostics(text: str) -> Iterator[Diagnostic]:
    """Reports defects of a pinned engine that need another package in the version pinned here."""
    pins = _pins(text)
    if _packages().isdisjoint(pins):
        return
    state = {f"pip.{name}": found["version"] for name, found in pins.items()}
    place = places(text)
    for engine in map(engines.load, engines.names()):
        version = state.get(f"pip.{engine.package}", "")
        try:
            table = release.load(version, engine=engine).judges[0]
        except BadInput:  # not pinned, or too old to be known
            continue
        inputs = RuleInputs({}, RuleContext(table))
        for found in constraints.known_defects(engine.product, version, inputs, state):
            needs = [path.removeprefix("pip.") for path in found.row.only_if or {}]
            if needs and found.is_certain:
                at, said = place(pins[needs[0]].start()), found.problem
                yield located(at, needs[0], said.message, said.fix, said.rule, "warning")


def _packages() -> frozenset[str]:
    return frozenset(engines.load(name).package for name in engines.names())


def _pins(text: str) -> dict[str, re.Match[str]]:
    """The exact pins of a text by the name of the package; the last one counts."""
    if "==" not in text:
        return {}
    found = {}
    for row in _PIN.finditer(text):
        before = text[text.rfind("\n", 0, row.start()) + 1 : row.start()]
        if "#" not in before:
            found[_SEPARATORS.sub("-", row["name"]).lower()] = row
    return found
