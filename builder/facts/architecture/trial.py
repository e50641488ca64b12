"""A trial of what an architecture computes from a config, which tells the field that spoils it.

Which optional fields a family reads, and in which form, stands in its own functions only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .fields import Config

MAX_SIZE = 1 << 40  # values of one tensor


class _Fields(Mapping[str, Any]):
    """The fields of a config; `seen` are those that were read, in their order."""

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


def spoiled_field(fields: Config, readers: Iterable[Callable[[Config], Any]]) -> str | None:
    """The field with which the first of `readers` cannot go on, or of which it makes a size that is
    no whole number in reason; `None` if all of them can."""
    for read in readers:
        trial = _Fields(fields)
        try:
            found = read(trial)
        except KeyError as missing:
            inside = missing.args[0] not in trial.seen  # of a mapping that a field holds
            return _strangest(trial) if inside else str(missing.args[0])
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return _strangest(trial)  # of a file that somebody wrote, whatever it holds
        if not _is_plausible(found):
            return _strangest(trial)
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


def _strangest(trial: _Fields) -> str:
    """The field that is read and is the most likely to blame; of equally strange ones the last."""
    read = dict.fromkeys(reversed(trial.seen))
    there = [name for name in read if name in trial]
    return max(there, key=lambda name: _strangeness(trial, name), default="")


def _strangeness(trial: _Fields, name: str) -> tuple[int, float]:
    """How far a value is from the count that most fields hold."""
    value = dict(trial)[name]
    if isinstance(value, bool | str):
        return 0, 0
    if isinstance(value, int):
        return (0, 0) if 0 < value < MAX_SIZE else (1, abs(value))
    return (2 if isinstance(value, list) else 3), 0
