"""What a Triton model repository means: a good one passes, each fault is found at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import lint, pipeline
from builder.diagnostics import Diagnostic
from tests.tables import by_table, tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))
MODELS = TABLES["MODELS"]
RANKS = '{"model": "m", "tensor_parallel_size": 2}'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in MODELS.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(text)
    (tmp_path / "llama" / "1" / "model.json").write_text(RANKS)
    (tmp_path / "bert" / "1" / "model.onnx").touch()
    return tmp_path


def found(path: Path) -> list[Diagnostic]:
    report = lint.check([path], lint.CheckOptions(), pipeline.deployment_diagnostics)
    return report.findings


def test_a_good_repository_has_no_finding(repository: Path) -> None:
    assert found(repository) == []


@by_table
def test_a_fault_of_a_model_is_found(
    model: str, old: str, new: str, line: int, rule: str, path: str, fix: str, repository: Path
) -> None:
    file, text = repository / model / "config.pbtxt", MODELS[model]
    assert old in text
    file.write_text(text.replace(old, new, 1))
    rows = found(file)
    kept = [row for row in rows if (row.location.line, row.rule, row.path) == (line, rule, path)]
    assert kept and fix in kept[0].fix, rows


def test_what_a_backend_completes_is_not_missed(repository: Path) -> None:
    """The model's own code may add the output that the ensemble takes."""
    (repository / "prep" / "config.pbtxt").write_text('backend: "python"\nmax_batch_size: 8\n')
    (repository / "bert" / "config.pbtxt").write_text('platform: "onnxruntime_onnx"\n')
    code = "class TritonPythonModel:\n    def auto_complete_config(config): ...\n"
    (repository / "prep" / "1" / "model.py").write_text(code)
    assert found(repository) == []


def test_a_folder_of_templates_is_only_a_warning(repository: Path) -> None:
    for name in MODELS:
        text = '\nname: "x"\nbackend: "python"\nmax_batch_size: ${n}\n'
        text += 'parameters { key: "tokenizer_dir" value: { string_value: "${tokenizer_dir}" } }\n'
        (repository / name / "config.pbtxt").write_text(text.replace("x", name))
    rows = [row for row in found(repository) if row.rule == "triton-template"]
    assert {row.severity for row in rows} == {"warning"}
    assert {row.location.line for row in rows} == {4, 5}


def test_a_configuration_in_a_folder_of_a_version_is_not_read(repository: Path) -> None:
    file = repository / "pipe" / "1" / "config.pbtxt"
    (repository / "pipe" / "config.pbtxt").rename(file)
    assert [(row.rule, row.severity) for row in found(file)] == [("triton-model-file", "warning")]


def test_a_folder_that_is_no_version_is_named(repository: Path) -> None:
    (repository / "seq" / "1").rename(repository / "seq" / "v1")
    (row,) = found(repository / "seq" / "config.pbtxt")
    assert (row.rule, row.fix) == ("triton-versions", "rename it to 1")


def test_a_step_takes_the_responses_of_one_decoupled_model(repository: Path) -> None:
    """Results of one decoupled model belong together; an input of the ensemble does not."""
    for name in ("prep", "bert"):
        file = repository / name / "config.pbtxt"
        file.write_text(MODELS[name] + "model_transaction_policy { decoupled: true }\n")
    assert found(repository / "pipe" / "config.pbtxt") == []
    both = MODELS["pipe"].replace('"TEXT" data_type: TYPE_STRING dims: [ 1 ]', '"TEXT"', 1)
    both = both.replace('key: "mask" value: "m"', 'key: "mask" value: "TEXT"')
    (repository / "pipe" / "config.pbtxt").write_text(both)
    rows = found(repository / "pipe" / "config.pbtxt")
    assert "takes responses of different decoupled models" in {row.message for row in rows}
