"""Files that cannot be read as what they are meant to be: each gets a line, and templates none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder import lint, pipeline

OPTIONS = "max_batch_size: 8\nkv_cache_config: {dtyp: fp8}\n"
MANIFEST = "apiVersion: v1\nkind: Pod\nmetadata: {name: x\n"


def rows(path: Path) -> list[tuple[str, int, str, str]]:
    report = lint.check([path], lint.CheckOptions(), pipeline.deployment_diagnostics)
    return [
        (Path(row.where).name, row.location.line, row.severity, row.rule) for row in report.findings
    ]


@pytest.mark.parametrize(
    "text", [MANIFEST, "services:\n  a: {image: 'x\n", 'a: "open\n', "a: b\n- c\n", "a: [1, 2\n"]
)
def test_a_manifest_that_is_no_yaml_is_an_error_in_a_folder_and_alone(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "pod.yaml").write_text(text)
    for path in (tmp_path, tmp_path / "pod.yaml"):
        ((name, _, severity, rule),) = rows(path)
        assert (name, severity, rule) == ("pod.yaml", "error", "syntax")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("templates/service.yaml", MANIFEST),
        ("chart/templates/deep/service.yaml", MANIFEST),
        ("service.yaml", 'a: b\n{{ include "x" . }}\n - c: d\n'),
        ("service.yaml", "a: {{ .Values.x }}\n b: {{ .Values.y }}\n"),
        ("data.json", "{'a': // a remark\n"),
    ],
)
def test_a_template_is_no_broken_file(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert [row for row in rows(tmp_path) if row[2] == "error"] == []
    if path.suffix != ".json":
        assert [row for row in rows(path) if row[2] == "error"] == []


@pytest.mark.parametrize("before", ["---\n---\n---\n", "# a remark\n---\n---\n"])
def test_options_behind_empty_documents_are_checked(before: str, tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text(f"{before}{OPTIONS}")
    line = before.count("\n") + 2
    assert ("options.yaml", line, "error", "unknown-key") in rows(path)
    # The engine reads one document only, and refuses the file.
    assert "syntax" in {row[3] for row in rows(path)}
    path.write_text(f"{before.replace('---', '#')}---\n{OPTIONS}")
    assert {row[3] for row in rows(path)} == {"unknown-key"}


def test_empty_documents_of_manifests_are_right(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(
        "---\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"
        "data:\n  config.yaml: |\n    max_batch_size: 8\n---\n"
    )
    assert rows(path) == []


@pytest.mark.parametrize("text", ["a: &x [1, *x]\n", "a: &x {b: *x}\n", "a: &x {<<: *x, b: 1}\n"])
def test_what_an_anchor_names_cannot_hold_itself(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    report = lint.check([tmp_path], lint.CheckOptions(), pipeline.deployment_diagnostics)
    (row,) = report.findings
    assert "would contain itself" in row.message and row.location.line == 1


def test_an_alias_of_another_anchor_is_none_of_itself(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: &x {b: 1}\nc: &y [*x, *x]\nd: *y\ne: &x [*x]\nf: *x\n")
    assert [row for row in rows(tmp_path) if row[2] == "error"] == [
        ("a.yaml", 4, "error", "syntax")
    ]


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "lost.sh").symlink_to("nothing.sh")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "other").symlink_to("nothing")
    (tmp_path / "options.yaml").write_text("max_batch_size: 8\n")
    assert rows(tmp_path) == [
        (name, 0, "warning", "unreadable") for name in ("loop.yaml", "lost.sh", "pipe.yaml")
    ]


@pytest.mark.parametrize("name", ["make.sh", "make.sbatch", "make"])
def test_a_script_that_writes_a_models_configuration_is_a_script(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(
        "#!/bin/bash\nmkdir -p models/m\ncat >> models/m/config.pbtxt <<EOF\n"
        "instance_group [\n  { count: 2 kind: KIND_CPU }\n]\nEOF\n"
        "trtllm-serve some/model --tp_size two\n"
    )
    assert [row[1:] for row in rows(tmp_path / name) if row[2] == "error"] == [
        (8, "error", "flag-value")
    ]


def test_a_value_of_many_is_told_with_a_few(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("vllm serve m --attention-backend foo\n")
    report = lint.check([tmp_path], lint.CheckOptions(), pipeline.deployment_diagnostics)
    (row,) = [row for row in report.findings if row.rule == "unknown-value"]
    assert "46 known names" in row.fix and row.fix.count("_") < 20 and len(row.fix) < 200
