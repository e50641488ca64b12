"""Holds what an engine says of its options and memory against the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .log import Line
from .signatures import Quantity, readings
from .watch import Seen

AUTO = "auto"  # a planned value that leaves the choice to the engine


@dataclass(frozen=True, slots=True)
class InForce:
    """A quantity with its planned value and the one in force, and the line that tells it.

    `difference` is what is in force beyond the plan, `differs` whether that is more than the
    quantity may differ.
    """

    name: str
    planned: str
    in_force: str
    difference: str
    unit: str
    differs: bool
    line: Line


def held_against(logs: Sequence[Seen], planned: Mapping[str, Any]) -> Iterator[InForce]:
    """Each quantity that a log tells and the plan has; `planned` are values by path."""
    told: dict[str, tuple[str, Line]] = {}
    serves = False
    for seen in logs:
        told |= seen.readings
        serves |= any(mark.step.phase == "serving" for mark in seen.marks)
    for name, quantity in readings().quantities.items():
        path = next((path for path in quantity.planned if planned.get(path) is not None), None)
        if name not in told or path is None or (quantity.final and not serves):
            continue
        value, line = told[name]
        wanted = planned[path]
        if isinstance(wanted, Sequence) and not isinstance(wanted, str):
            wanted = len(wanted)
        yield _compared(name, quantity, wanted, value, line)


def _compared(name: str, quantity: Quantity, wanted: Any, value: str, line: Line) -> InForce:
    shown: float | str = value
    if isinstance(wanted, bool) or not isinstance(wanted, int | float):
        differs = str(wanted).lower() not in (value.lower(), AUTO)
        difference = "differs" if differs else ""
    else:
        text = value.replace(",", "")
        shown = float(text) if "." in text else int(text)
        differs = _differs(quantity, wanted, shown)
        difference = "" if shown == wanted else f"{shown - wanted:+,.6g}"
    return InForce(name, _shown(wanted), _shown(shown), difference, quantity.unit, differs, line)


def _differs(quantity: Quantity, wanted: float, number: float) -> bool:
    if quantity.at_least is not None:
        return number < quantity.at_least * wanted
    if quantity.at_most is not None:
        return number > quantity.at_most * wanted
    return number != wanted


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
