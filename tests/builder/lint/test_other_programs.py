"""Arguments, code and files of other programs, which are no options of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import lint, pipeline
from tests.tables import by_table, tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

MODEL = "vllmConfig: {maxModelLen: 1024, gpuMemoryUtilization: 0.9}"
CHART = TABLES["CHART"]
DOCKER = TABLES["DOCKER"]
WORKFLOW = TABLES["WORKFLOW"]
CODE = TABLES["CODE"]
POD = TABLES["POD"]
# Files whose arguments, words and keys are for another program.
OTHERS = TABLES["OTHERS"]


def errors(folder: Path, name: str, text: str) -> list[tuple[int, str, str]]:
    (folder / name).write_text(text)
    report = lint.check([folder / name], lint.CheckOptions(), pipeline.deployment_diagnostics)
    rows = (row for row in report.findings if row.severity == "error" or "unknown" in row.rule)
    return [(row.location.line, row.rule, row.path) for row in rows if row.rule != "unknown-kind"]


@pytest.mark.parametrize("case", OTHERS)
def test_nothing_of_another_program_is_taken_for_the_engines(case: str, tmp_path: Path) -> None:
    assert errors(tmp_path, *OTHERS[case]) == []


@by_table
def test_what_is_for_the_engine_is_read_as_before(
    name: str, text: str, path: str, tmp_path: Path
) -> None:
    assert path in {row[2] for row in errors(tmp_path, name, text)}
