"""A file that `check` fails on, or cannot read, hides none of the others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from builder import lint, pipeline
from builder.cli.main import main
from builder.lint.file_check import check_file as validate

WRONG = "max_batch_sise: 64\nmax_num_tokens: 8192\n"
BROKEN_TEMPLATE = "  a: b\n - c: d\n{{- with .Values.m }}\n"


def checked(*paths: Path) -> lint.Report:
    return lint.check(list(paths), lint.CheckOptions(), pipeline.deployment_diagnostics)


def rules(report: lint.Report, name: str) -> list[str]:
    """The rules that a file breaks."""
    return [row.rule for row in report.findings if row.where.startswith(name)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files with a fault, and a bug that strikes at the second one."""
    for name in "abc":
        (tmp_path / f"{name}.yaml").write_text(WRONG)

    def with_bug(source: Any, *rest: Any) -> Any:
        if source.path.name == "b.yaml":
            raise KeyError("a bug of ours")
        return validate(source, *rest)

    monkeypatch.setattr("builder.lint.driver.check_file", with_bug)
    return tmp_path


def test_a_bug_in_one_file_is_reported_and_the_others_are_checked(folder: Path) -> None:
    report = checked(folder)
    assert rules(report, f"{folder}/b.yaml") == ["internal-error"]
    for name in "ac":
        assert "unknown-key" in rules(report, f"{folder}/{name}.yaml")
    assert [row.file for row in report.skipped] == [f"{folder}/b.yaml"]


def test_the_whole_report_is_written_before_the_command_ends_as_for_a_bug(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sarif = folder / "out.sarif"
    assert main(["check", str(folder), "--sarif", str(sarif)]) == 1
    printed = capsys.readouterr()
    assert "c.yaml:1:1: error" in printed.out
    assert "b.yaml: error[internal-error] could not be checked: KeyError" in printed.out
    assert "a bug in this toolkit, KeyError" in printed.err
    assert '"internal-error"' in sarif.read_text()


def test_a_bug_in_what_reads_commands_stops_no_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "serve.sh").write_text("trtllm-serve m --config a.yaml\n")
    (tmp_path / "a.yaml").write_text(WRONG)

    def with_bug(path: Path) -> Any:
        raise IndexError(path.name)

    monkeypatch.setattr(sys.modules["builder.lint.links"], "_in_file", with_bug)
    report = checked(tmp_path)
    assert "unknown-key" in rules(report, f"{tmp_path}/a.yaml")
    assert "internal-error" in rules(report, f"{tmp_path}/serve.sh")


def test_a_template_that_is_no_yaml_is_named_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text(BROKEN_TEMPLATE)
    (tmp_path / "a.yaml").write_text(WRONG)
    report = checked(tmp_path)
    assert "unknown-key" in rules(report, f"{tmp_path}/a.yaml")
    assert [row.file for row in report.skipped] == [f"{tmp_path}/template.yaml"]
    assert report.bugs == {}
    alone = checked(tmp_path / "template.yaml")
    (found,) = alone.findings
    assert found.message == "is a template, which is not YAML until it is filled in"


MANIFEST = """\
apiVersion: v1
kind: Pod
spec:
  containers:
    - name: server
      image: nvcr.io/nvidia/tensorrt-llm/release:1.2.1
      {{- if .Values.two }}
      command: [trtllm-serve, org/model, --tp_size, "2"]
      {{- else }}
      command: [trtllm-serve, org/model, --tp_sise, "1"]
      {{- end }}
"""


def test_a_key_in_two_branches_of_a_template_is_not_given_twice(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(MANIFEST)
    report = checked(path)
    assert "duplicate-key" not in rules(report, str(path))
    assert "unknown-flag" in rules(report, str(path))
    assert [row.judged.unread for row in report.files] == [
        ("line 10: spec.containers.0.command in the branches before this one",)
    ]


def test_a_key_given_twice_in_one_branch_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(MANIFEST.replace("{{- else }}", "# {{ .Values.other }}"))
    assert "duplicate-key" in rules(checked(path), str(path))


def test_what_can_be_read_of_a_template_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(f"{MANIFEST}---\n{BROKEN_TEMPLATE}")
    report = checked(path)
    assert "unknown-flag" in rules(report, str(path))
    (file,) = report.files
    assert any("is not YAML until the template is filled in" in row for row in file.judged.unread)
