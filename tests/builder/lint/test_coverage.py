"""What a check says of how much it judged: nothing reads as right that nobody read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builder.lint.test_check_files import checked
from tests.builder.lint.test_public_forms import POD, SHELL_FORM
from tests.conftest import Run

IMAGE = "nvcr.io/nvidia/tritonserver:25.04-trtllm-python-py3"
WITHOUT_OPTIONS = {
    "CHANGELOG.md": f"# Changes\n\n- images: from {IMAGE}\n",
    "notes.txt": f"we ran {IMAGE} with trtllm-serve model --tp_sise 4\n",
    "pod.yaml": POD,
    "prices.yaml": "apples: 3\npears: 4\n",
    "list.json": "[1, 2]\n",
    "sleep.sh": "#!/bin/bash\nsleep 1\n",
}


@pytest.mark.parametrize("name", WITHOUT_OPTIONS)
def test_a_named_file_with_nothing_to_judge_says_so(
    name: str, builder: Run, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(WITHOUT_OPTIONS[name])
    report = checked(builder("check", name, "--json"))
    assert (report["checked"], report["judged"]["files"]) == (0, 0)
    (skipped,) = report["skipped"]
    assert skipped["file"] == name and skipped["reason"]
    (row,) = report["findings"]
    assert row["rule"] in ("unknown-kind", "nothing-to-judge")
    said = builder("check", name).stdout
    assert said.count(f"{name}: ") == 1, "a finding has it, and its words are enough"
    assert "note: " not in said
    assert said.splitlines()[-1].startswith("checked 0 files: ")
    assert said.splitlines()[-1].endswith(", 1 file not checked")


def test_a_missing_file_is_named_once(builder: Run) -> None:
    said = builder("check", "no/such.yaml").stdout.splitlines()
    assert said[0].startswith("no/such.yaml: error[unreadable] cannot be read: no such file")
    assert said[1:] == ["", "checked 0 files: 1 error, 0 warnings, 1 file not checked"]


def test_files_of_a_folder_that_were_not_judged_have_a_line_each_with_the_reason(
    builder: Run, tmp_path: Path
) -> None:
    for name, text in {**WITHOUT_OPTIONS, "a.py": "", "b.py": ""}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "config.yaml").write_text("max_batch_size: 8\n")
    report = checked(builder("check", ".", "--json"))
    read = {name for name in WITHOUT_OPTIONS if not name.endswith((".md", ".txt"))}
    assert {row["file"] for row in report["skipped"]} == read
    assert (report["checked"], report["findings"]) == (1, [])
    assert report["unread"] == {".md": 1, ".py": 2, ".txt": 1}
    assert "not read: 1 x .md, 2 x .py, 1 x .txt" in builder("check", ".").stdout


def test_sections_and_commands_that_were_judged_are_counted(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(SHELL_FORM)
    report = checked(builder("check", "pod.yaml", "--json"))
    assert (report["files"][0]["sections"], report["files"][0]["commands"]) == (1, 1)
    assert report["judged"] == {"files": 1, "sections": 1, "commands": 1, "images": 0}
    assert ": 1 section, 1 command\n" in builder("check", "pod.yaml").stdout


def test_a_code_review_is_told_of_files_that_were_not_judged(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    builder("check", "pod.yaml", "--sarif", "found.sarif")
    (run,) = json.loads((tmp_path / "found.sarif").read_text())["runs"]
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["level"] == "note" and note["message"]["text"].startswith("nothing was checked: ")
