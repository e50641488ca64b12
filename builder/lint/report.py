"""The report of a check: which files were read as what, and everything found in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..diagnostics import Diagnostic


@dataclass(frozen=True, slots=True)
class Checked:
    """A file, what it was taken for, and the releases that it was judged by."""

    file: str
    kind: str
    releases: tuple[str, ...]
    assumed: bool = False


@dataclass
class Report:
    """What was checked and found. `notes` are for the reader, not about faults."""

    files: list[Checked] = field(default_factory=list)
    findings: list[Diagnostic] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def errors(self) -> int:
        return sum(row.severity == "error" for row in self.findings)

    def document(self) -> dict[str, Any]:
        """The report as `--json` prints it."""
        return {
            "checked": len(self.files),
            "findings": [as_document(row) for row in self.findings],
            "files": [
                {"file": row.file, "kind": row.kind, "releases": list(row.releases)}
                for row in self.files
            ],
            "notes": self.notes,
        }


def subject(row: Diagnostic) -> str:
    """The path that a finding is about, and the file inside the file that it is one of."""
    within = f"in {row.within}" if row.within else ""
    return " ".join(filter(None, (row.path, within)))


def as_line(row: Diagnostic) -> str:
    """A finding as it is printed."""
    line, column = row.location
    place = f"{row.where}:{line}:{column}" if line else row.where
    about = f" {subject(row)}:" if subject(row) else ""
    fix = f"; {row.fix}" if row.fix else ""
    release = f" ({row.release})" if row.release else ""
    return f"{place}: {row.severity}[{row.rule}]{about} {row.message}{fix}{release}"


def as_document(row: Diagnostic) -> dict[str, Any]:
    """A finding as `--json` prints it. Line and column count from 1; 0 is the whole file."""
    line, column = row.location
    optional = {"release": row.release, "within": row.within}
    return {
        "file": row.where,
        "line": line,
        "column": column,
        "path": row.path,
        "rule": row.rule,
        "severity": row.severity,
        "message": row.message,
        "fix": row.fix,
        **{key: value for key, value in optional.items() if value},
    }
