"""Finds the config field that makes an architecture's sizes wrong or impossible to compute.

Only the functions of a family show which optional fields it reads, and in which form. So they are
run on the config, and again without each field that they read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .fields import Config

MAX_SIZE = 1 << 40  # values of one tensor

# What a reader raises over fields of a file that somebody wrote, whatever they hold.
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Spoiled(ValueError):
    """A reader's word that a field cannot be what it is."""

    def __init__(self, field: str) -> None:
        super().__init__(f"field {field} cannot be what it is")
        self.field = field


class _Fields(Mapping[str, Any]):
    """The fields of a config; `seen` lists the ones that were read, in order."""

    def __init__(self, fields: Config) -> None:
        self._fields = fields
        self.seen: list[str] = []

    def __getitem__(self, name: str) -> Any:
        self.seen.append(name)
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def is_negative(self, name: str) -> bool:
        """What sizes are computed from counts something: none of it can be below zero."""
        value = self._fields.get(name)
        return isinstance(value, int | float) and value < 0


def spoiled_field(fields: Config, readers: Iterable[Callable[[Config], Any]]) -> str | None:
    """The first field that stops one of `readers`, gives an impossible size, or is negative.

    `None` if the config has no such field.
    """
    for read in readers:
        trial = _Fields(fields)
        try:
            if not _is_plausible(read(trial)):
                return _to_blame(trial, read)
        except Spoiled as told:
            return told.field
        except KeyError as missing:
            inside = missing.args[0] not in trial.seen  # of a mapping that a field holds
            return _to_blame(trial, read) if inside else str(missing.args[0])
        except _UNREADABLE:
            return _to_blame(trial, read)
        if (negative := next(filter(trial.is_negative, trial.seen), None)) is not None:
            return negative
    return None


def _is_plausible(found: Any) -> bool:
    """Whether a number of layers, or all sizes of tensors, are whole numbers in reason."""
    if isinstance(found, int):
        return 0 < found <= MAX_SIZE
    if not isinstance(found, list):
        return True
    return all(
        isinstance(size, int) and 0 < size <= MAX_SIZE
        for tensors in found
        for size in (*tensors.shape, tensors.experts + 1)
    )


def _to_blame(trial: _Fields, read: Callable[[Config], Any]) -> str:
    """The strangest field that spoils it alone, or of all that were read; of equally strange ones
    the last."""
    there = [name for name in dict.fromkeys(reversed(trial.seen)) if name in trial]
    there.sort(key=lambda name: _strangeness(trial, name), reverse=True)
    return next((name for name in there if _spoils(trial, name, read)), there[0] if there else "")


def _spoils(trial: _Fields, name: str, read: Callable[[Config], Any]) -> bool:
    """Whether the reader goes on without a field, or with a plain count in its place."""
    others = {key: value for key, value in dict(trial).items() if key != name}
    for fields in (others, {**others, name: 1}):
        try:
            if _is_plausible(read(fields)):
                return True
        except _UNREADABLE:
            continue
    return False


def _strangeness(trial: _Fields, name: str) -> tuple[int, float]:
    """How far a value is from the count that most fields hold."""
    value = dict(trial)[name]
    if isinstance(value, bool | str):
        return 0, 0
    if isinstance(value, int):
        return (0, 0) if 0 < value < MAX_SIZE else (1, abs(value))
    return (2 if isinstance(value, list) else 3), 0
