"""Comments suppress the findings of a rule on their line, below it, or in the whole file."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import lint, pipeline
from builder.lint.report import Report, sarif

COMMAND = "tritonserver --model-repositry=/m --http-port=x"


def checked(folder: Path, text: str) -> Report:
    (folder / "a.sh").write_text(text)
    return lint.check([folder], lint.CheckOptions(), pipeline.deployment_diagnostics)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"{COMMAND}\n", ["flag-value", "unknown-flag"]),
        (f"set -e\n{COMMAND} # builder: ignore[unknown-flag]\n", ["flag-value"]),
        (f"set -e\n# builder: ignore[unknown-flag, flag-value]\n{COMMAND}\n", []),
        (f"#!/bin/bash\n# builder: ignore[flag-value]\nset -e\n{COMMAND}\n", ["unknown-flag"]),
        (f"set -e\n# builder: ignore[flag-value]\n\n{COMMAND}\n", ["flag-value", "unknown-flag"]),
    ],
    ids=["none", "line", "below", "file", "elsewhere"],
)
def test_a_comment_suppresses_its_rules_where_it_is(
    text: str, left: list[str], tmp_path: Path
) -> None:
    report = checked(tmp_path, text)
    rules = {row.rule for row in report.findings} - {"triton-repository"}
    assert sorted(rules - {"unused-suppression"}) == left
    assert ("unused-suppression" in rules) == ("\n\n" in text)


def test_suppressed_findings_are_marked_in_sarif_and_listed_in_json(tmp_path: Path) -> None:
    text = f"set -e\n{COMMAND} # builder: ignore[unknown-flag]\n"
    report = checked(tmp_path, text)
    results = sarif(report, tmp_path)["runs"][0]["results"]
    marked = [row["ruleId"] for row in results if row.get("suppressions") == [{"kind": "inSource"}]]
    assert marked == [row["rule"] for row in report.document()["suppressed"]] == ["unknown-flag"]
