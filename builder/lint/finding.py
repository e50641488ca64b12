"""A finding: one fault at its place in a file, as it is printed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..diagnostics import Severity
from ..documents import Fault


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One fault. Line and column count from 1; 0 stands for the whole file.

    `release` is set where a file was checked for several ones, `within` where the path is one of a
    file that this one holds or writes.
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
    within: str = ""

    @classmethod
    def of(cls, fault: Fault, file: str, release: str = "") -> Finding:
        return cls(
            file,
            *fault.place,
            path=fault.path,
            rule=fault.rule or "invalid",
            severity=fault.severity,
            message=_one_line(fault.message),
            fix=_one_line(fault.fix),
            release=release,
            within=fault.within,
        )

    @property
    def where(self) -> str:
        """The path, and the file inside the file that it is one of."""
        within = f"in {self.within}" if self.within else ""
        return " ".join(filter(None, (self.path, within)))

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        text = f"{place}: {self.severity}[{self.rule}]"
        text += f" {self.where}: {self.message}" if self.where else f" {self.message}"
        text += f"; {self.fix}" if self.fix else ""
        return f"{text} ({self.release})" if self.release else text

    def document(self) -> dict[str, Any]:
        """The finding as `--json` prints it."""
        optional = ("release", "within")
        return {key: row for key, row in asdict(self).items() if row or key not in optional}


def _one_line(text: str) -> str:
    return " ".join(text.split())
