"""Faults that need more than one option to be seen: each row of `semantic_faults.yaml` is reported
at its line, with the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from builder import lint, pipeline
from builder.diagnostics import Diagnostic
from builder.documents import load_yaml
from builder.lint.report import code_quality, sarif

DOCUMENT: Mapping[str, Any] = load_yaml(
    Path(__file__).with_name("semantic_faults.yaml").read_text(encoding="utf-8")
)
BASES: Mapping[str, Any] = DOCUMENT["bases"]
FAULTS: list[Mapping[str, Any]] = DOCUMENT["faults"]

SURROUNDINGS = ("cross-field", "model", "gpu", "structure", "here-document")


def _text(row: Mapping[str, Any]) -> str:
    text: str = BASES[row["base"]]["text"]
    for old, new in (("old", "new"), ("old2", "new2")):
        if old in row:
            assert text.count(row[old]) == 1, f"{row['is']}: {text.count(row[old])} x {row[old]}"
            text = text.replace(row[old], row[new])
    return text


def _report(text: str, row: Mapping[str, Any], folder: Path) -> lint.Report:
    """What check says of a text, with the model, GPU and release of the row or its base."""
    base = BASES[row["base"]]
    path = folder / base["file"]
    path.write_text(text, encoding="utf-8")
    known = {name: row.get(name, base.get(name)) for name in ("model", "gpu", "release")}
    options = lint.CheckOptions(
        (known["release"],) if known["release"] else (), None, known["gpu"], known["model"]
    )
    return lint.check([path], options, pipeline.deployment_diagnostics)


def _findings(text: str, row: Mapping[str, Any], folder: Path) -> list[Diagnostic]:
    return _report(text, row, folder).findings


def fault_findings(row: Mapping[str, Any], folder: Path) -> list[Diagnostic]:
    """What check finds in a row's text."""
    return _findings(_text(row), row, folder)


@cache
def base_findings(name: str, folder: Path) -> list[Diagnostic]:
    return _findings(BASES[name]["text"], {"base": name}, folder)


def _said(row: Diagnostic) -> tuple[str, str, str]:
    return row.rule, row.path, row.message


def _is_found(row: Mapping[str, Any], report: lint.Report, folder: Path) -> bool:
    """Whether a finding that the base has not stands at the right line and names the remedy."""
    lines = _text(row).splitlines()
    before = {_said(found) for found in base_findings(row["base"], folder)}
    places = row.get("at") or [row["new"].strip().splitlines()[0]]
    for found in report.findings:
        line = lines[found.location.line - 1] if found.location.line else ""
        said = f"{found.message}; {found.fix}"
        if (
            _said(found) not in before
            and any(place in line for place in places)
            and all(word in said for word in row["says"])
        ):
            return True
    return False


def _assert_reviewed(report: lint.Report, folder: Path) -> None:
    """SARIF has each finding with the words of its rule, code quality has each finding."""
    rules = [row.rule for row in report.findings]
    (run,) = sarif(report, folder)["runs"]
    words = run["tool"]["driver"]["rules"]
    assert [result["ruleId"] for result in run["results"]] == rules
    for result in run["results"]:
        known = words[result["ruleIndex"]]
        assert known["id"] == result["ruleId"]
        assert known["shortDescription"]["text"] and known["help"]["markdown"]
    assert [row["check_name"] for row in code_quality(report, folder)] == rules


def test_faults_are_found_with_line_and_remedy(tmp_path: Path) -> None:
    missed, reviewed = [], set[str]()
    for row in FAULTS:
        report = _report(_text(row), row, tmp_path)
        if not _is_found(row, report, tmp_path):
            missed.append(row["is"])
        if new := {found.rule for found in report.findings} - reviewed:
            _assert_reviewed(report, tmp_path)
            reviewed |= new
    print(f"{len(FAULTS) - len(missed)} of {len(FAULTS)} found; missed: {missed}")
    assert missed == []


def test_most_faults_need_more_than_one_option_to_be_seen() -> None:
    kinds = [row["kind"] for row in FAULTS]
    assert len(kinds) >= 120
    assert sum(kind in SURROUNDINGS for kind in kinds) >= len(kinds) / 2


@pytest.mark.parametrize("name", BASES)
def test_a_base_has_no_error(name: str, tmp_path: Path) -> None:
    found = base_findings(name, tmp_path)
    assert [row for row in found if row.rule != "vulnerable-version"] == []
