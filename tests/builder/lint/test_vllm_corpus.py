"""Public recipes of vLLM: none that a release from its minimum on accepts has an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import lint as check
from builder import pipeline
from tests.conftest import ABSENT, ROOT

SHARED = ROOT.parent / "shared"
RECIPES = SHARED / "corpus-vllm"
OTHERS = (SHARED / "corpus" / "vllm", SHARED / "peers" / "vllm_backend" / "samples")

pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason=ABSENT)

# Errors that are true: the engine's own parser refuses them too.
GENUINE = {
    # The flag is --tool-parser-plugin, in every release.
    ("nvidia/NVIDIA-Nemotron-Nano-9B-v2.yaml", "--tool-call-parser-plugin")
}
# What holds nothing of the engine: lists of platforms, words and strategies without flags.
FOREIGN = ("index.json", "platforms.yaml", "taxonomy.yaml", "strategies__")


def flags(data: Any) -> Iterator[str]:
    """The flags in all lists of a document."""
    rows = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for row in rows:
        if isinstance(data, list) and isinstance(row, str) and row.startswith("--"):
            yield row
        yield from flags(row)


def test_no_recipe_has_an_error_that_is_not_true(
    record_property: Callable[[str, object], None],
) -> None:
    paths = [RECIPES, *(path for path in OTHERS if path.is_dir())]
    report = check.check(paths, check.CheckOptions(), pipeline.deployment_diagnostics)
    wrong = {
        (Path(row.where).relative_to(RECIPES).as_posix(), row.path)
        for row in report.findings
        if row.severity == "error"
    }
    assert wrong == GENUINE
    skipped = [row.file for row in report.skipped if not any(word in row.file for word in FOREIGN)]
    assert [name for name in skipped if list(flags(yaml.safe_load(Path(name).read_text())))] == []
    kinds = Counter(row.kind for row in report.files if row.judged)
    record_property("files", report.checked)
    record_property("kinds", dict(kinds))
    print(f"{report.checked} files, {report.judged.commands} commands judged; {dict(kinds)}")
    assert kinds["vLLM recipe"] >= 100
    assert report.judged.commands >= 5 * kinds["vLLM recipe"]
