"""An engine that exists nowhere is checked by its records alone: names, formats and one table."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from builder.documents import DATA
from builder.lint.engine import formats, recorded
from tests.conftest import ROOT

HERE = Path(__file__).parent / "invented_engine"
TABLE = DATA / "releases" / "vllm" / "0.32.0.json"
# Runs a check with the records of an engine in a folder.
CHECK = """\
import json, sys
from pathlib import Path
from builder import lint, pipeline
from builder.facts import engines
from builder.lint import engine
folder, files = map(Path, sys.argv[1:])
engines.ENGINES, engine.FORMATS = folder / "engines", folder / "formats"
engines.names.cache_clear()
report = lint.check([files], lint.CheckOptions(), pipeline.deployment_diagnostics)
print(json.dumps(report.document()["findings"]))
"""


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str, int, str]]:
    folder = tmp_path_factory.mktemp("records")
    for kind in ("engines", "formats"):
        (folder / kind).mkdir()
        for path in (DATA / kind).glob("*.yaml"):
            (folder / kind / path.name).symlink_to(path)
        text = (HERE / f"{kind}.yaml").read_text().replace("FOLDER", str(folder))
        (folder / kind / "acme.yaml").write_text(text)
    for name in ("published.yaml", "rules.yaml"):
        (folder / name).symlink_to(HERE / name)
    (folder / "releases").mkdir()
    table = json.loads(TABLE.read_text()) | json.loads((HERE / "release.json").read_text())
    (folder / "releases" / "1.0.0.json").write_text(json.dumps(table))
    words = [sys.executable, "-c", CHECK, str(folder), str(HERE / "files")]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        (Path(row["file"]).name, row["rule"], row["line"], row["fix"])
        for row in json.loads(result.stdout)
    }


def test_faults_of_an_invented_engine_are_found(findings: set[tuple[str, str, int, str]]) -> None:
    ranks = "ask for 4 GPUs, or make the parallel sizes multiply to 2"
    assert findings == {
        ("flag.sh", "unknown-flag", 2, "did you mean --most-requests?"),
        ("options.yaml", "unknown-key", 2, "did you mean most-requests?"),
        ("pod.yaml", "missing-option-file", 9, "did you mean options.yaml?"),
        ("pod.yaml", "gpus-below-ranks", 15, ranks),
        ("ports.sh", "port-taken", 3, "give it another port"),
    }


def words() -> set[str]:
    """Programs, modules, images and flags in the records of all engines."""
    found: set[str] = set()
    for known in map(formats, recorded()):
        found |= {known.program, known.mode_flag, *known.modules, *known.workers, *known.tools}
        found |= {*known.programs, *known.images, *known.extended_images, *known.bare_images}
        found |= {*known.file_flags, *known.memory_flags, *known.server_flags, *known.marks}
        found |= set().union(*known.size_flags.values())
    return {word for word in found if len(word) > 2} - {"--config"}  # a flag of many programs


def test_no_module_has_a_word_of_a_record() -> None:
    known = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(words())))})(?![\w-])")
    found = []
    for path in sorted((ROOT / "builder" / "lint").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        docs = {node.value for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if not isinstance(node, ast.Constant) or node in docs:
                continue
            if known.search(str(node.value)):
                found.append(f"{path.name}:{node.lineno}: {node.value!r}")
    assert found == []
