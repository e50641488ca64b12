"""A finding: one fault at its place in a file, as it is printed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from ..documents import Fault, Severity


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One fault. Line and column count from 1; 0 stands for the whole file.

    `release` is set where a file was checked for several ones.
    """

    file: str
    line: int
    column: int
    path: str
    rule: str
    severity: Severity
    message: str
    fix: str
    release: str = ""

    @classmethod
    def of(cls, fault: Fault, file: str, release: str = "") -> Finding:
        message, fix = _one_line(fault.what), _one_line(fault.remedy)
        rule = fault.rule or "invalid"
        place = fault.place
        return cls(
            file, place.line, place.column, fault.path, rule, fault.severity, message, fix, release
        )

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        text = f"{place}: {self.severity}[{self.rule}]"
        text += f" {self.path}: {self.message}" if self.path else f" {self.message}"
        text += f"; {self.fix}" if self.fix else ""
        return f"{text} ({self.release})" if self.release else text

    def document(self) -> dict[str, Any]:
        """The finding as `--json` prints it."""
        document = asdict(self)
        if not self.release:
            del document["release"]
        return document


FIELDS = tuple(row.name for row in fields(Finding))


def _one_line(text: str) -> str:
    return " ".join(text.split())
