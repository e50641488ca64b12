"""Commands of Triton's own programs: good ones pass, and each fault is found at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import lint, pipeline
from builder.diagnostics import Diagnostic
from tests.tables import by_table, tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))
SCRIPT = TABLES["SCRIPT"]
COMPOSE = TABLES["COMPOSE"]
POD = TABLES["POD"]
DOCKERFILE = TABLES["DOCKERFILE"]
OTHERS = TABLES["OTHERS"]
PORTS = TABLES["PORTS"]
TWO = TABLES["TWO"]
EXPOSED = TABLES["EXPOSED"]
GOOD = {
    "SCRIPT": ("a.sh", SCRIPT),
    "COMPOSE": ("a.yaml", COMPOSE),
    "POD": ("b.yaml", POD),
    "DOCKERFILE": ("Dockerfile", DOCKERFILE),
    "PORTS": ("c.yaml", PORTS),
    "TWO": ("c.sh", TWO),
    "EXPOSED": ("Dockerfile", EXPOSED),
}


def found(folder: Path, name: str, text: str) -> list[Diagnostic]:
    (folder / name).write_text(text)
    report = lint.check([folder / name], lint.CheckOptions(), pipeline.deployment_diagnostics)
    return [row for row in report.findings if row.rule != "vulnerable-version"]


@pytest.mark.parametrize("base", GOOD)
def test_a_good_command_has_no_finding(base: str, tmp_path: Path) -> None:
    assert found(tmp_path, *GOOD[base]) == []


def test_names_of_containers_are_no_commands(tmp_path: Path) -> None:
    rows = found(tmp_path, "a.sh", OTHERS)
    assert [row for row in rows if row.rule not in ("unknown-kind", "nothing-to-judge")] == []


@by_table
def test_a_fault_of_a_command_is_found(
    base: str, old: str, new: str, line: int, rule: str, path: str, fix: str, tmp_path: Path
) -> None:
    name, text = GOOD[base]
    assert old in text
    rows = found(tmp_path, name, text.replace(old, new, 1))
    kept = [row for row in rows if (row.location.line, row.rule, row.path) == (line, rule, path)]
    assert kept and fix in kept[0].fix, rows
