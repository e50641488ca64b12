"""Options and commands inside files of other formats, each read for what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builder.lint.test_check_files import checked
from tests.builder.lint.test_public_forms import errors
from tests.conftest import Run
from tests.tables import by_table, tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

COMPOSE = TABLES["COMPOSE"]

CHART = TABLES["CHART"]

LAUNCHER = TABLES["LAUNCHER"]

GRAPH = TABLES["GRAPH"]

VALUES = TABLES["VALUES"]

WORKERS = TABLES["WORKERS"]

# The kind that a file is taken for, its text, and the line and path of each error.
FORMATS = TABLES["FORMATS"]


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_wrong_in_another_format_is_found_at_its_line(
    kind: str, builder: Run, tmp_path: Path
) -> None:
    text, places = FORMATS[kind]
    report = of_file(builder, tmp_path, text)
    assert kind.endswith(report["files"][0]["kind"])
    assert [[row["line"], row["path"]] for row in errors(report["findings"])] == places
    assert report["checked"] == 1


def test_flags_of_a_launcher_are_judged_with_its_options(builder: Run, tmp_path: Path) -> None:
    """Its `tp_size` is the engine's tensor_parallel_size, wherever the rest stands."""
    text = "tp_size: 8\nllm_api_args:\n  moe_expert_parallel_size: 3\n  max_num_tokens: 64\n"
    (row,) = errors(of_file(builder, tmp_path, text)["findings"])
    assert row["path"] == "llm_api_args.moe_expert_parallel_size"


@by_table
def test_options_of_other_engines_and_plain_text_are_not_judged(
    text: str, builder: Run, tmp_path: Path
) -> None:
    report = of_file(builder, tmp_path, text)
    assert (report["checked"], errors(report["findings"])) == (0, [])


def test_braces_in_one_value_leave_the_others_judged(builder: Run, tmp_path: Path) -> None:
    text = "max_batch_size: 8\ntokenizer: '{{ messages }}'\nmax_num_token: 8\n"
    (row,) = errors(of_file(builder, tmp_path, text)["findings"])
    assert (row["line"], row["path"]) == (3, "max_num_token")


def test_variables_of_a_template_are_listed(builder: Run, tmp_path: Path) -> None:
    (file,) = of_file(builder, tmp_path, CHART)["files"]
    assert file["variables"] == ["tensor_parallel_size"]
    assert json.dumps(file)


def of_file(builder: Run, folder: Path, text: str) -> dict[str, Any]:
    (folder / "f.yaml").write_text(text)
    return checked(builder("check", "f.yaml", "--release", "1.2.1", "--json"))


SERVER = "command: [bash, -c, trtllm-serve {model} --tp_size {size}]"
BESIDE = TABLES["BESIDE"]


@pytest.mark.parametrize("name", BESIDE)
def test_a_container_is_judged_by_its_own_model(name: str, builder: Run, tmp_path: Path) -> None:
    (tmp_path / "servers.yaml").write_text(BESIDE[name])
    done = builder("check", tmp_path / "servers.yaml")
    assert "64 ranks do not share the 32 attention heads of Qwen/Qwen3-30B-A3B" in done.stdout
    assert ": 2 commands" in done.stdout
