"""The release that a file names is the one that it is checked against, line by line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from builder import lint
from builder.facts import images
from builder.facts.release import load
from builder.lint.releases import Pins as Stated
from builder.rules.validation import agreed, checked, validate
from tests.tables import by_table, tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))


# An option that came with 1.3.0rc23, one that came with rc24, and one that nobody has.
MARLIN = "moe_config: {backend: MARLIN}\n"
REUSE = "kv_cache_config: {block_reuse_config: {policy: per_request}}\n"
BOGUS = "kv_cache_config: {dtyp: fp8}\n"


def check(folder: Path, text: str, name: str = "f.yaml", *releases: str) -> lint.Report:
    file = folder / name
    file.write_text(text)
    return lint.check([file], lint.CheckOptions(releases), lambda path, overrides: [])


def severities(report: lint.Report) -> list[str]:
    rows = [row for row in report.findings if row.rule != "vulnerable-version"]
    return [f"{row.severity} {row.location.line}" for row in rows]


# What a line names, and the releases that are meant.
NAMES = TABLES["NAMES"]


@pytest.mark.parametrize(("line", "releases"), NAMES)
def test_a_line_names_a_release(line: str, releases: list[str]) -> None:
    (row,) = Stated(line, ()).statements
    assert list(row.releases) == releases


@by_table
def test_other_lines_name_none(line: str) -> None:
    assert not [row for row in Stated(line, ()).statements if row.releases]


def test_every_tag_of_a_carrier_stands_for_a_release_that_can_be_judged() -> None:
    for line in (f"image: tensorrtllm-runtime:{tag}" for tag in ("1.0.1", "1.2.1", "1.5.0")):
        (found,) = images.engine_releases(line)
        assert load(found.releases[0]).judges


@by_table
def test_an_option_is_judged_by_the_release_of_the_image(
    release: str, marlin: str, reuse: str, tmp_path: Path
) -> None:
    for text, severity in ((MARLIN, marlin), (REUSE, reuse), (BOGUS, "error")):
        plain = f"max_batch_size: 8\n{text}"
        named = f"# runs in nvcr.io/nvidia/tensorrt-llm/release:{release}\n{plain}"
        for report in (check(tmp_path, named), check(tmp_path, plain, "f.yaml", release)):
            assert {row.split()[0] for row in severities(report)} == {severity} - {""}, text
            assert report.files[0].releases == (release,) and not report.files[0].assumed


def test_a_warning_says_which_neighbour_refuses(tmp_path: Path) -> None:
    (row,) = check(tmp_path, f"max_batch_size: 8\n{MARLIN}", "f.yaml", "1.3.0rc17").findings
    assert row.message.startswith("1.2.1 refuses it, 1.3.0rc23 not: MARLIN is not allowed")


DRAFTS = "speculative_config: {decoding_type: MTP, max_draft_len: 3}\n"


def test_so_does_a_warning_that_only_one_neighbour_has(tmp_path: Path) -> None:
    text = f"max_batch_size: 8\n{DRAFTS}"
    (row,) = check(tmp_path, text, "f.yaml", "1.3.0rc17").findings
    assert row.message.startswith("1.2.1 warns of it, 1.3.0rc23 not: 3 is ignored")


def test_a_warning_of_the_assumed_release_alone_says_so_where_a_later_one_is_meant(
    tmp_path: Path,
) -> None:
    text = f"max_batch_size: 8\n{DRAFTS}kv_cache_config: {{use_kv_cache_manager_v2: true}}\n"
    rows = {row.rule.id: row for row in check(tmp_path, text, "f.yaml").findings}
    assert rows["mtp-len-old"].message.endswith("(release 1.2.1 is assumed)")


def test_how_a_release_without_a_table_is_judged_is_said_once(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("# tensorrt_llm==1.3.0rc17\nmax_batch_size: 8\n")
    report = lint.check([tmp_path], lint.CheckOptions(), lambda path, overrides: [])
    assert report.notes == [load("1.3.0rc17").statement]


def test_the_assumed_release_is_said_once_and_first(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(f"max_batch_size: 8\n{REUSE}")
    report = lint.check([tmp_path], lint.CheckOptions(), lambda path, overrides: [])
    assert report.notes[0].startswith("2 files name no engine release: 1.2.1, the newest stable")
    assert sum("is assumed" in note for note in report.notes) == 1
    assert all("it came with release 1.3.0rc24" in row.fix for row in report.findings)


CONTAINERS = TABLES["CONTAINERS"]


def test_a_containers_own_image_counts_for_its_own_command(tmp_path: Path) -> None:
    report = check(tmp_path, CONTAINERS)
    assert severities(report) == ["error 10", "warning 13"]
    assert report.files[0].releases == ("1.2.1", "1.3.0rc19", "1.3.0rc24")
    assert report.files[0].named_by[1] == "line 12: tensorrtllm-runtime:1.3.1"


def test_a_chart_writes_an_image_and_its_tag_apart(tmp_path: Path) -> None:
    text = (
        "image: {repository: nvcr.io/nvidia/tensorrt-llm/release, tag: 1.3.0rc24}\n"
        f"max_batch_size: 8\nmax_num_tokens: 8\n{REUSE}"
    )
    assert check(tmp_path, text).files[0].releases == ("1.3.0rc24",)


def test_a_comment_counts_only_where_nothing_else_names_a_release() -> None:
    text = "# was tensorrt_llm==1.0.0\nimage: nvcr.io/nvidia/tensorrt-llm/release:1.2.1\n"
    assert [row.releases for row in Stated(text, ()).statements] == [("1.2.1",)]
    assert [row.releases for row in Stated(text.split("\n")[0], ()).statements] == [("1.0.0",)]


@by_table
def test_a_remark_of_its_own_line_tells_what_a_file_is_for(remark: str, named: str | None) -> None:
    found = [name for row in Stated(f"{remark}\n", ()).statements for name in row.releases]
    assert found == [named] * bool(named)


def test_a_stage_of_a_dockerfile_counts_for_what_follows_it() -> None:
    text = (
        "FROM nvcr.io/nvidia/tensorrt-llm/release:1.2.1 AS one\nRUN one\n"
        "FROM nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc24\nRUN two\n"
    )
    stated = Stated(text, ())
    tables = [stated.tables(line) for line in (2, 4)]
    assert [row.releases[0].name for row in tables if row] == ["1.2.1", "1.3.0rc24"]


def test_what_a_release_older_than_all_tables_may_have_is_only_warned_of(tmp_path: Path) -> None:
    text = f"# image: nvcr.io/nvidia/tensorrt-llm/release:0.20.0\nmax_batch_size: 8\n{MARLIN}"
    report = check(tmp_path, text)
    assert severities(report) == ["warning 3"] and "older than 1.0.0" in report.notes[-1]
    assert report.files[0].releases == ("0.20.0",)


def test_an_image_that_tells_no_release_is_named_beside_the_one_that_is_assumed(
    tmp_path: Path,
) -> None:
    report = check(
        tmp_path, "# image: tensorrtllm-runtime:1.3.0-some-model-dev.1\nmax_batch_size: 8\n"
    )
    (note,) = report.notes
    assert "names tensorrtllm-runtime:1.3.0-some-model-dev.1, whose engine release" in note


@pytest.mark.parametrize("name", ["1.3.0rc17", "1.2.0rc6", "1.3.0rc25", "1.3.0rc28"])
def test_an_error_stays_one_only_where_both_neighbours_refuse(name: str) -> None:
    options: Mapping[str, Any] = {
        "moe_config": {"backend": "MARLIN", "bogus": 1},
        "kv_cache_config": {"block_reuse_config": {"policy": "no"}, "dtype": 3},
        "generation_config": "auto",
        "max_batch_size": "many",
    }
    both = [
        {row.where for row in validate(table, options) if row.severity == "error"}
        for table in load(name).judges
    ]
    found = checked(load(name), lambda table: validate(table, options))
    errors = {row.where for row in found if row.severity == "error"}
    shared = both[0] & both[1]
    assert shared <= errors
    for where in errors - shared:  # one refuses what the other refuses as a part of more
        above = {where, where.rpartition(".")[0]}
        assert all(above & refused for refused in both)
    assert {row.where for row in found} >= both[0] | both[1]


def test_one_release_is_judged_as_it_is() -> None:
    found = list(validate(load("1.2.1"), {"bogus": 1}))
    assert agreed({"1.2.1": found}) == found
