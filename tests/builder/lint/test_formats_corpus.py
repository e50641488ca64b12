"""How much of the real files is judged, by format, and why the others are not.

`python -m pytest -s tests/builder/lint/test_formats_corpus.py` prints it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from builder import lint, pipeline
from tests.builder.lint.test_check_corpus import CORPUS, FOREIGN, GENUINE
from tests.conftest import ABSENT

RECIPES = CORPUS.parent / "corpus-inferencex"

pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason=ABSENT)

# Indexes and tables of the collections themselves, and a manifest that downloads a model.
WITHOUT_OPTIONS = (*FOREIGN, "index.json", "engine-configs.json")


def test_every_file_that_holds_options_is_judged() -> None:
    report = lint.check([CORPUS, RECIPES], lint.CheckOptions(), pipeline.deployment_diagnostics)
    files, sections = Counter[str](), Counter[str]()
    for row in report.files:
        files[row.kind] += bool(row.judged)
        sections[row.kind] += row.judged.sections
    for kind, count in files.most_common():
        print(f"{kind:<44} {count:>4} files {sections[kind]:>5} sections")
    for skipped in report.skipped:
        print(f"not judged: {skipped.file}: {skipped.reason}")
    assert files["SLURM recipe"] == sum(
        1 for folder in (CORPUS / "srt-slurm", RECIPES) for _ in folder.rglob("*.yaml")
    )
    overlooked = [
        row.file for row in report.skipped if not any(part in row.file for part in WITHOUT_OPTIONS)
    ]
    assert overlooked == []
    assert sum(sections.values()) >= 2 * files["SLURM recipe"] * 0.9
    errors = {
        (Path(row.where).name, row.path) for row in report.findings if row.severity == "error"
    }
    assert errors == {(Path(name).name, path) for name, rows in GENUINE.items() for path, _ in rows}


def test_recipes_that_name_their_release_have_no_error() -> None:
    report = lint.check([RECIPES], lint.CheckOptions(), pipeline.deployment_diagnostics)
    assert [str(row) for row in report.findings if row.severity == "error"] == []
