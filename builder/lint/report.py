"""Holds the report of a check and prints it as text, JSON, SARIF 2.1.0 and GitLab code quality."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import __version__
from ..diagnostics import NOWHERE, Diagnostic, located
from ..errors import ToolkitError
from ..files import reported, write_text
from ..general_rules import UNKNOWN_VERSION, VULNERABLE_VERSION, Rule
from .model import NOTHING, Checked, Judged
from .rules import INTERNAL_ERROR


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that was not checked, with the reason."""

    file: str
    reason: str


@dataclass
class Report:
    """What was checked, what was found, and what was skipped. `notes` are not about errors, and
    comments in the files suppress the `suppressed` findings.

    `unread` counts unsupported files of folders by suffix. `bugs` are bugs of the toolkit, by the
    file whose check failed.
    """

    files: list[Checked] = field(default_factory=list)
    findings: list[Diagnostic] = field(default_factory=list)
    suppressed: list[Diagnostic] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)
    bugs: dict[str, Exception] = field(default_factory=dict)

    @property
    def errors(self) -> int:
        return sum(row.severity == "error" for row in self.findings)

    @property
    def checked(self) -> int:
        """The number of files in which something was checked."""
        return sum(bool(row.judged) for row in self.files)

    @property
    def judged(self) -> Judged:
        """The sum of what was checked in all files."""
        return sum((row.judged for row in self.files), NOTHING)

    @contextmanager
    def isolated(self, file: str) -> Iterator[None]:
        """Reports a bug of the toolkit for one file, so that other files are still checked."""
        try:
            yield
        except (ToolkitError, OSError, MemoryError):
            raise
        except Exception as bug:
            if file in self.bugs:
                return
            self.bugs[file] = bug
            what = f"could not be checked: {type(bug).__name__}: {bug}"
            fix = (
                "this is a bug in the toolkit; report it with the output of the command's last line"
            )
            found = located(NOWHERE, "", what, fix, INTERNAL_ERROR)
            self.findings.append(found.in_file(file))
            self.skipped.append(Skipped(file, "a bug in the toolkit"))

    def say_once(self, notes: Iterable[str]) -> None:
        """Adds notes that several files may cause; each is added once."""
        self.notes += [note for note in dict.fromkeys(notes) if note and note not in self.notes]

    def say_images_once(self) -> None:
        """Reports a warning about an image version once, where the image first appears."""
        places = Counter(row.message for row in self.findings if _is_image(row))
        kept: list[Diagnostic] = []
        for row in self.findings:
            if _is_image(row):
                more = places.pop(row.message, 0) - 1
                if more < 0:
                    continue
                if more:
                    where = f"(and in {more} more place{'s' * (more != 1)})"
                    row = replace(row, message=f"{row.message} {where}")
            kept.append(row)
        self.findings = kept

    def say_assumed_releases(self) -> None:
        """Adds notes, before all others, on the releases assumed for files without a pin."""
        guessed: dict[tuple[str, str], list[str]] = {}
        for row in self.files:
            for name in row.releases if row.assumed else ():
                guessed.setdefault((name, ", ".join(row.unclear)), []).append(row.file)
        self.notes[:0] = [_assumed(*key, files) for key, files in guessed.items()]

    def document(self) -> dict[str, Any]:
        """Returns the report as `--json` prints it."""
        judged = self.judged
        return {
            "checked": self.checked,
            "findings": [as_document(row) for row in self.findings],
            "suppressed": [as_document(row) for row in self.suppressed],
            "files": [
                {
                    "file": row.file,
                    "kind": row.kind,
                    "releases": list(row.releases),
                    "release_assumed": row.assumed,
                    "release_named_by": list(row.named_by),
                    "sections": row.judged.sections,
                    "commands": row.judged.commands,
                    "variables": list(row.judged.variables),
                    "not_read": list(row.judged.unread),
                }
                for row in self.files
            ],
            "judged": {
                "files": self.checked,
                "sections": judged.sections,
                "commands": judged.commands,
                "images": judged.images,
            },
            "skipped": [{"file": row.file, "reason": row.reason} for row in self.skipped],
            "unread": dict(sorted(self.unread.items())),
            "notes": self.notes,
        }


def _is_image(row: Diagnostic) -> bool:
    is_version = row.rule in (VULNERABLE_VERSION, UNKNOWN_VERSION)
    return is_version and not row.path and row.severity == "warning"


def _assumed(name: str, unclear: str, files: Sequence[str]) -> str:
    count = f"{len(files)} files name" if len(files) > 1 else f"{files[0]} names"
    what = f"{unclear}, whose engine release is not known" if unclear else "no engine release"
    return (
        f"{count} {what}: {name}, the newest stable one, is assumed; "
        "give --release if the server has another"
    )


def subject(row: Diagnostic) -> str:
    """Returns the path of a finding and the embedded file that contains it."""
    within = f"in {row.within}" if row.within else ""
    return " ".join(filter(None, (row.path, within)))


def as_line(row: Diagnostic) -> str:
    """Returns a finding as a line of text."""
    line, column = row.location
    place = f"{row.where}:{line}:{column}" if line else row.where
    return f"{place}: {row.severity}[{row.rule}] {_message(row)}"


def as_document(row: Diagnostic) -> dict[str, Any]:
    """Returns a finding as `--json` prints it. Line and column count from 1; 0 is the whole
    file."""
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


SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
TOOL = "trtllm-deployment-toolkit"
# A finding keeps its fingerprint when lines above it are added or removed.
FINGERPRINT = "finding/v1"
# GitLab's severities.
_SEVERITIES = {"error": "major", "warning": "minor"}


def sarif(report: Report, root: Path) -> dict[str, Any]:
    """Returns the findings as one SARIF run, with a notification for each file that was not
    checked. Files below `root` have relative paths."""
    from .rules.registry import every  # only for SARIF

    findings = [*report.findings, *report.suppressed]
    ids = sorted({row.rule for row in findings})
    results = [
        _result(row, ids.index(row.rule), print_, root)
        for row, print_ in zip(findings, _fingerprints(findings, root), strict=True)
    ]
    for result in results[len(report.findings) :]:
        result["suppressions"] = [{"kind": "inSource"}]
    driver = {"name": TOOL, "version": __version__, "rules": [_rule(every()[each]) for each in ids]}
    skipped = [_notification(row, root) for row in report.skipped]
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": skipped}],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _notification(row: Skipped, root: Path) -> dict[str, Any]:
    place = {"physicalLocation": {"artifactLocation": {"uri": _uri(row.file, root)}}}
    text = f"nothing was checked: {row.reason}"
    return {"level": "note", "message": {"text": text}, "locations": [place]}


def code_quality(report: Report, root: Path) -> list[dict[str, Any]]:
    """Returns the findings in the format that GitLab shows in a merge request."""
    findings = report.findings
    return [
        {
            "description": _message(row),
            "check_name": row.rule,
            "fingerprint": print_,
            "severity": _SEVERITIES[row.severity],
            "location": {
                "path": _uri(row.where, root),
                "lines": {"begin": max(row.location.line, 1)},
            },
        }
        for row, print_ in zip(findings, _fingerprints(findings, root), strict=True)
    ]


def write(path: Path, document: object) -> None:
    """Writes a report and replaces the old file atomically."""
    with reported(path, "cannot be written", "choose another place"):
        write_text(path, json.dumps(document, indent=2) + "\n")


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "help": {"text": rule.docs, "markdown": rule.docs},
        "defaultConfiguration": {"level": rule.severity},
        "properties": {"tags": ["security"] if rule == VULNERABLE_VERSION else ["deployment"]},
    }


def _result(row: Diagnostic, index: int, print_: str, root: Path) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(row.where, root)}}
    if row.location.line:
        place["region"] = {
            "startLine": row.location.line,
            "startColumn": max(row.location.column, 1),
        }
    location: dict[str, Any] = {"physicalLocation": place}
    if subject(row):
        location["logicalLocations"] = [{"fullyQualifiedName": subject(row)}]
    return {
        "ruleId": row.rule,
        "ruleIndex": index,
        "level": row.severity,
        "message": {"text": _message(row)},
        "locations": [location],
        "partialFingerprints": {FINGERPRINT: print_},
    }


def _message(row: Diagnostic) -> str:
    text = f"{subject(row)}: {row.message}" if subject(row) else row.message
    text += f"; {row.fix}" if row.fix else ""
    return f"{text} ({row.release})" if row.release else text


def _uri(file: str, root: Path) -> str:
    """Returns a file as a relative URI, or an absolute one if it is outside `root`."""
    path = Path(root, file).absolute()
    if not path.is_relative_to(root):
        return path.as_uri()
    from urllib.parse import quote  # only for SARIF

    return quote(os.fsencode(path.relative_to(root)))


def _fingerprints(findings: Iterable[Diagnostic], root: Path) -> list[str]:
    """Returns a fingerprint per finding, from its content but not its line; equal ones are
    numbered."""
    seen: Counter[str] = Counter()
    prints = []
    for row in findings:
        key = json.dumps([_uri(row.where, root), row.rule, subject(row), row.message, row.release])
        seen[key] += 1
        prints.append(hashlib.sha256(f"{key}{seen[key]}".encode()).hexdigest())
    return prints
