"""What is an error only where a file names a release, or an image of the engine's publisher."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import lint, pipeline
from builder.facts import engines, release
from builder.lint.releases import Pins as Stated
from tests.tables import by_table, tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))


def severities(folder: Path, name: str, text: str, *releases: str) -> set[tuple[str, str]]:
    file = folder / name
    file.write_text(text)
    report = lint.check([file], lint.CheckOptions(releases), pipeline.deployment_diagnostics)
    return {(row.severity, row.rule) for row in report.findings if "version" not in row.rule}


VLLM = "#!/bin/bash\nvllm serve some/model {}\n"
TRT = "max_batch_size: 8\n{}\n"

# What a former release takes: its table has it, or it was gone before the first table.
FORMER = TABLES["FORMER"]


@pytest.mark.parametrize("name", FORMER)
def test_what_a_former_release_takes_is_an_error_only_for_a_release_that_is_named(
    name: str, tmp_path: Path
) -> None:
    file, text, newest = FORMER[name]
    assert {severity for severity, _ in severities(tmp_path, file, text)} == {"warning"}
    assert "error" in {severity for severity, _ in severities(tmp_path, file, text, newest)}


@by_table
def test_what_no_release_takes_is_an_error_for_an_assumed_one_too(
    file: str, text: str, tmp_path: Path
) -> None:
    assert "error" in {severity for severity, _ in severities(tmp_path, file, text)}


# What an image names: its release, and whether it may have other options than that.
IMAGES = TABLES["IMAGES"]
NO_IMAGES = TABLES["NO_IMAGES"]


@pytest.mark.parametrize("line", IMAGES)
def test_the_tag_of_any_image_with_the_engine_in_its_name_names_the_release(line: str) -> None:
    (row,) = Stated(line, (), engines.load("vllm")).statements
    version, is_fork = IMAGES[line]
    assert (row.releases, row.is_fork) == ((version,) if version else (), is_fork)


@pytest.mark.parametrize("line", NO_IMAGES)
def test_a_line_without_an_image_names_none(line: str) -> None:
    assert not Stated(line, (), engines.load("vllm")).statements
    assert not Stated(line.replace("vllm", "tensorrt_llm"), ()).statements


@by_table
def test_so_it_is_for_the_other_engine(line: str, version: str, is_fork: bool) -> None:
    rows = Stated(line, ()).statements
    assert (rows[0].releases, rows[0].is_fork) == ((version,) if version else (), is_fork)


CHART = TABLES["CHART"]


@by_table
def test_what_a_table_refuses_of_a_fork_is_a_warning(
    repository: str, tag: str, severity: str, tmp_path: Path
) -> None:
    found = severities(tmp_path, "values.yaml", CHART.format(repository=repository, tag=tag))
    assert {row[0] for row in found if row[1] in ("unknown-flag", "flag-value")} == {severity}


def test_what_is_wrong_with_every_engine_stays_an_error_in_a_fork(tmp_path: Path) -> None:
    text = (
        "services:\n  a:\n    image: acme/vllm-openai:v0.20.0\n"
        "    command: [--model, some/model, --tensor-parallel-size, '4']\n"
        "    deploy: {resources: {reservations: {devices: "
        "[{driver: nvidia, count: 2, capabilities: [gpu]}]}}}\n"
    )
    assert ("error", "gpus-below-ranks") in severities(tmp_path, "compose.yaml", text)


def test_a_line_without_a_release_is_judged_by_all_beside_one_that_names_one(
    tmp_path: Path,
) -> None:
    text = (
        "services:\n"
        "  a: {image: 'vllm/vllm-openai:v0.32.0', command: [--model, m/m, --swap-space, '4']}\n"
        "  b: {image: 'vllm/vllm-openai:latest', command: [--model, m/m, --swap-space, '4']}\n"
    )
    (tmp_path / "compose.yaml").write_text(text)
    report = lint.check(
        [tmp_path / "compose.yaml"], lint.CheckOptions(), pipeline.deployment_diagnostics
    )
    rows = [(row.location.line, row.severity) for row in report.findings if "flag" in row.rule]
    assert rows == [(2, "error"), (3, "warning")]


def test_the_oldest_tables_are_those_that_these_cases_need() -> None:
    vllm = engines.load("vllm")
    assert "calculate_kv_scales" in release.load("0.14.1", engine=vllm).top_level
    assert "enable_trtllm_sampler" in release.load("1.0.0").top_level
