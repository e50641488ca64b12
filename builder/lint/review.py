"""Findings as tools for code review take them: SARIF 2.1.0, and GitLab's code quality report.

Specifications: OASIS SARIF 2.1.0, and GitLab's documentation of its Code Quality report format.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .. import __version__
from ..diagnostics import Diagnostic
from ..documents import DATA, load_yaml
from ..errors import BadInput
from ..rules.constraints import rules
from .report import subject
from .sbatch import table

WORDS = DATA / "findings.yaml"
SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
TOOL = "trtllm-deployment-toolkit"
# Findings keep their identity when lines above them come and go.
FINGERPRINT = "finding/v1"
# The words of GitLab for ours.
_SEVERITIES = {"error": "major", "warning": "minor"}


def sarif(findings: Sequence[Diagnostic], root: Path) -> dict[str, Any]:
    """The findings as one run; files below `root` are named from there."""
    ids = sorted({row.rule for row in findings})
    results = [
        _result(row, ids.index(row.rule), print_, root)
        for row, print_ in zip(findings, _fingerprints(findings, root), strict=True)
    ]
    driver = {"name": TOOL, "version": __version__, "rules": [_rule(each) for each in ids]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def code_quality(findings: Sequence[Diagnostic], root: Path) -> list[dict[str, Any]]:
    """The findings as GitLab shows them in a merge request."""
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
    """A report, replaced as a whole."""
    new = path.with_name(f"{path.name}.new")
    try:
        new.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        new.replace(path)
    except OSError as fault:
        what = f"cannot be written: {fault.strerror}"
        raise BadInput(Diagnostic(str(path), what, "choose another place")) from None


def describe(rule: str) -> tuple[str, str]:
    """What a rule is about and how to follow it, in Markdown."""
    own: str | None = _words().get(rule)
    if own is not None:
        return own, own
    if rule in table()["rules"]:
        row = table()["rules"][rule]
        source = f"\n\nSource: {row['source']}" if "source" in row else ""
        return f"A job script of Slurm: {row['fix']}.", f"{row['fix']}{source}"
    found = [row for section in rules.SECTIONS for row in rules.rows(section) if row.id == rule]
    if not found:
        raise ValueError(f"no words for the rule {rule}")
    lines = dict.fromkeys(f"- {row.message}; {row.fix}. Source: {row.source}" for row in found)
    return f"Options that do not fit together: {rule}.", "\n".join(lines)


@cache
def _words() -> Mapping[str, str]:
    document: Mapping[str, Any] = load_yaml(WORDS.read_text(encoding="utf-8"))
    words: Mapping[str, str] = document["findings"]
    return words


def _rule(rule: str) -> dict[str, Any]:
    short, text = describe(rule)
    return {
        "id": rule,
        "shortDescription": {"text": short},
        "help": {"text": text, "markdown": text},
        "properties": {"tags": ["security"] if rule == "vulnerable-version" else ["deployment"]},
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
    """A file as a relative address, or as an absolute one if it lies elsewhere."""
    path = Path(root, file).absolute()
    if not path.is_relative_to(root):
        return path.as_uri()
    return quote(path.relative_to(root).as_posix())


def _fingerprints(findings: Iterable[Diagnostic], root: Path) -> list[str]:
    """One for each finding, of what it says and not of its line; equal ones are numbered."""
    seen: Counter[str] = Counter()
    prints = []
    for row in findings:
        key = json.dumps([_uri(row.where, root), row.rule, subject(row), row.message, row.release])
        seen[key] += 1
        prints.append(hashlib.sha256(f"{key}{seen[key]}".encode()).hexdigest())
    return prints
