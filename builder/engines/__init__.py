"""The engines that can be deployed: a plan in the options of one release of an engine.

An engine's module offers `translate(plan)`. What else is known of it is its record in
`builder/facts/engines.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..diagnostics import Diagnostic
from ..planning import Decision, Plan


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Decisions with the release's own option paths, and the nested options that they make up.

    The one value set that every server renders.
    """

    decisions: tuple[Decision, ...]
    options: Mapping[str, Any]
    warnings: tuple[Diagnostic, ...] = ()


def translate(plan: Plan) -> EngineConfig:
    """The plan in the options of its engine release.

    Raises `BadInput` naming each option that the release rejects or ignores.
    """
    module = import_module(f"{__name__}.{plan.deployment.engine.name}")
    config: EngineConfig = module.translate(plan)
    return config
