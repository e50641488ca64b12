"""The known defects of what is served, checked against the packages and driver of its machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from builder.diagnosis.state import flat
from builder.documents import load_yaml_mapping
from builder.errors import ToolkitError
from builder.facts import engines

if TYPE_CHECKING:  # planning is slow to import, and most logs are diagnosed without a plan
    from builder.pipeline import KnownDefect

    from .diagnose import Found

_DRIVER = Path("/proc/driver/nvidia/version")
_VERSION = re.compile(r"Kernel Module .*?(\d+\.\d+(?:\.\d+)?)")


def of_bundle(folder: Path, state: Mapping[str, str]) -> list[KnownDefect]:
    """The known defects of a bundle on a machine; none for one that cannot be planned again."""
    from builder import pipeline

    try:
        planned = pipeline.plan(str(folder / "deployment.yaml"))
    except ToolkitError:  # such as one whose facts are elsewhere
        return []
    return pipeline.known_defects(planned, state)


def of_failure(found: Found) -> list[KnownDefect]:
    """The known defects that the state files beside logs allow; without a bundle, only what
    they confirm, as most options are not known."""
    state = flat(found.facts)
    for path in found.states:
        state |= flat(load_yaml_mapping(path))
    if found.bundle:
        return of_bundle(found.bundle, state)
    if not any(name.startswith("pip.") for name in state):
        return []
    from builder import pipeline

    return [row for row in pipeline.known_defects_in(state) if row.is_certain]


def machine(engine: str) -> dict[str, str]:
    """The driver of this machine, and the packages of this Python if the engine is one of them."""
    state: dict[str, str] = {}
    if _DRIVER.is_file() and (found := _VERSION.search(_DRIVER.read_text())):
        state["driver"] = found[1]
    packages = {f"pip.{row.name.lower()}": row.version for row in distributions() if row.name}
    is_here = f"pip.{engines.load(engine).package}" in packages
    return {**state, **packages} if is_here else state


def lines(found: Iterable[KnownDefect]) -> list[str]:
    """Defects of engines as lines of text: certain ones first.

    What a server does under conditions that no machine tells is in the plan.
    """
    products = {engines.load(name).product for name in engines.names()}
    shown = [row for row in found if row.is_certain or row.product in products]
    shown.sort(key=lambda row: not row.is_certain)
    return [f"known defect {row.row.id}: {row.text}" for row in shown]
