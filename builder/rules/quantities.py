"""The number that a text means which an option cannot have: `8k`, `90 GiB`, `80%`, `9,300`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import isfinite

_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d+)?)[ _]?([a-zA-Z%]+)")
_GROUPED = re.compile(r"\d{1,3}(?:[, '_]\d{3})+")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}


def remedy(text: str, name: str, kinds: Iterable[str]) -> str:
    """What to write for a text where a number of one of these kinds is wanted; empty if it says
    none. `name` is the option's, which tells its unit."""
    wanted = set(kinds) & {"int", "float"}
    given = text.strip()
    if not wanted:
        return ""
    if _GROUPED.fullmatch(given):
        return f"write {re.sub(r'[^0-9]', '', given)}"
    if re.fullmatch(r"[+-]?\d+,\d{1,2}", given) and "float" in wanted:
        return f"write {given.replace(',', '.')}"
    if not (found := _QUANTITY.fullmatch(given)):
        return ""
    number, unit = float(found[1]), found[2].lower()
    numbers = [each for each in dict.fromkeys(_numbers(number, unit, name)) if isfinite(each)]
    if wanted == {"int"}:
        numbers = [each for each in numbers if each.is_integer()]
    return f"write {' or '.join(map(_written, numbers))}" if numbers else ""


def _numbers(number: float, unit: str, name: str) -> list[float]:
    """The meanings of a number with a unit, the more common one first."""
    if unit == "%":
        return [number / 100]
    last = name.rpartition("_")[2]
    if last in _SECONDS or last == "seconds":
        seconds = number * _SECONDS[unit] if unit in _SECONDS else None
        scale = _SECONDS.get(last, 1)
        return [] if seconds is None else [round(seconds / scale, 9)]
    if (power := _POWERS.get(unit[0])) is None:
        return [number] if unit in ("tokens", "bytes", "b") else []
    binary, decimal = number * 1024**power, number * 1000**power
    if unit[1:] in ("ib", "i"):
        return [binary]
    if unit[1:] == "b":
        return [decimal, binary]
    return [binary, decimal] if len(unit) == 1 else []


def _written(number: float) -> str:
    return str(int(number)) if number.is_integer() else f"{number:g}"
