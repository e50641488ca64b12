"""Programs of the LLM API: the options that they construct an engine with. None of them is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import lint, pipeline
from builder.facts import release
from builder.lint.read import python
from tests.tables import by_table, tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

TABLE = release.load("1.2.1")
CONFIGS = "from tensorrt_llm.llmapi import KvCacheConfig, EagleDecodingConfig\n"

# A program, and the options of each engine that it constructs.
READ = TABLES["READ"]


@pytest.mark.parametrize("case", READ)
def test_options_are_read_from_the_text(case: str) -> None:
    text, expected = READ[case]
    sections = python.sections(text, TABLE)
    assert sections is not None
    assert [section.options for section in sections] == expected


def test_a_program_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = tmp_path / "a.py"
    path.write_text(
        f"from tensorrt_llm import LLM\nopen({str(mark)!r}, 'w')\nLLM(max_batch_size=8)\n"
    )
    _check(path)
    assert not mark.exists()


@pytest.mark.parametrize("text", ["LLM(", "LLM(a=" + "(" * 5000 + ")" * 5000 + ")", "LLM(\0)"])
def test_what_is_no_python_is_said_not_to_be_judged(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(f"from tensorrt_llm import LLM\n{text}\n")
    report = _check(path)
    assert report.checked == 0 and len(report.skipped) == 1


def test_more_options_than_are_seen_keep_rules_of_several_silent(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    graphs = "cuda_graph_config={'enable_padding': True, 'batch_sizes': [1, 640]}"
    path.write_text(f"from tensorrt_llm import LLM\nLLM(max_batch_size=64, {graphs})\n")
    assert [row.rule for row in _check(path).findings]
    path.write_text(f"from tensorrt_llm import LLM\nLLM(max_batch_size=64, {graphs}, **more())\n")
    assert _check(path).findings == []


def test_programs_of_a_folder_are_read_if_they_construct_an_engine(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text("from tensorrt_llm import LLM\nLLM(max_bach_size=8)\n")
    (tmp_path / "other.py").write_text("print('tensorrt_llm')\n")
    report = _check(tmp_path)
    assert [row.path for row in report.findings] == ["max_bach_size"]
    assert report.unread == {".py": 1} and report.skipped == []


CLIENT = 'client.chat.completions.create(response_format={"type": "%s"})\n'


@by_table
def test_a_client_that_asks_for_structured_output_needs_a_backend_beside_it(
    kind: str, options: str, count: int, tmp_path: Path
) -> None:
    (tmp_path / "client.py").write_text(CLIENT % kind)
    (tmp_path / "config.yaml").write_text(options)
    found = [row for row in _check(tmp_path).findings if row.rule == "guide-ignored"]
    assert [(Path(row.where).name, row.location.line) for row in found] == [
        ("client.py", 1)
    ] * count


def _check(path: Path) -> lint.Report:
    return lint.check([path], lint.CheckOptions(("1.2.1",)), pipeline.deployment_diagnostics)
