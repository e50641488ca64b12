"""Commands as people write them: those that are no fault, and faults in unusual places."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.lint import CheckOptions, check
from tests.tables import tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

DYNAMO = "python3 -m dynamo.trtllm --model-path m"
CONTAINER = TABLES["CONTAINER"]
SERVICE = """\
services:
  engine:
    image: example/engine
    ipc: host
    deploy: {resources: {reservations: {devices: [{count: 4, capabilities: [gpu]}]}}}
"""
VALUES = TABLES["VALUES"]
SIZES = "tensor_parallel_size: 4\n"

SOUND = TABLES["SOUND"]
FAULTY = TABLES["FAULTY"]


def rules(folder: Path, suffix: str, text: str) -> set[tuple[str, str]]:
    (folder / f"f.{suffix}").write_text(text)
    (folder / "o.yaml").write_text(SIZES)
    found = check([folder], CheckOptions(), lambda path, overrides: []).findings
    return {(row.rule, row.severity) for row in found}


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_wrong_with(name: str, tmp_path: Path) -> None:
    assert rules(tmp_path, *SOUND[name]) - {("vulnerable-version", "warning")} == set()


@pytest.mark.parametrize("name", FAULTY)
def test_the_fault_is_found_in(name: str, tmp_path: Path) -> None:
    suffix, text, found = FAULTY[name]
    assert tuple(found) in rules(tmp_path, suffix, text)


def test_two_words_in_one_are_refused_and_count_for_what_they_mean(tmp_path: Path) -> None:
    path = tmp_path / "serve.sh"
    path.write_text('trtllm-serve Qwen/Qwen3-235B-A22B-FP8 "--tp_size 8" --ep_size 8\n')
    found = check([path], CheckOptions(gpu="h200"), lambda path, overrides: []).findings
    [error] = [row for row in found if row.severity == "error"]
    assert "two words in one" in error.fix
