"""The state of a machine beside a log: values by dotted path, and conditions on them.

A condition is a value, or one of `>=`, `>`, `<=`, `<`, `!=`, `contains` and `any` before a value,
which may be the name of another one; `any` has several. Versions are compared by their numbers.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any

_SIGNS = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
}
STALL_S = 600.0  # of silence of a live process that starts, from which on it is called a stall

State = Mapping[str, str]


def flat(data: Any, path: str = "") -> dict[str, str]:
    """Values by dotted path; a list is also its items joined by lines."""
    if isinstance(data, Mapping):
        found: dict[str, str] = {}
        for key, value in data.items():
            found |= flat(value, f"{path}.{key}" if path else str(key))
        return found
    if isinstance(data, list):
        return {path: "\n".join(str(item) for item in data)}
    if isinstance(data, bool):
        return {path: str(data).lower()}
    return {} if data is None else {path: str(data)}


def agrees(state: State, conditions: Mapping[str, str]) -> bool | None:
    """Whether all conditions hold; `None` if none is broken and one has no value."""
    known = True
    for path, condition in conditions.items():
        if path not in state:
            known = False
        elif not _holds(state[path], condition, state):
            return False
    return True if known else None


def _holds(value: str, condition: str, state: State) -> bool:
    sign, _, other = condition.partition(" ")
    if sign == "contains":
        return other in value
    if sign == "any":
        return value in other.split()
    if sign == "!=":
        return value.lower() != other.lower()
    if sign in _SIGNS:
        return bool(_SIGNS[sign](_numbers(value), _numbers(state.get(other, other))))
    return value.lower() == condition.lower()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def silence_s(state: State) -> float:
    """How long a live process has written nothing; 0 where that is not known."""
    if state.get("process_alive", "true") != "true":
        return 0.0
    from datetime import datetime  # a state file is rare

    try:
        now = datetime.fromisoformat(state["now"])
        return (now - datetime.fromisoformat(state["last_write"])).total_seconds()
    except (KeyError, ValueError, TypeError):
        return 0.0
