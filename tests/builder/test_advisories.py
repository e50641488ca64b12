"""Known vulnerabilities: which versions are open to them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from builder.facts import advisories, release
from builder.facts.release.version import order
from tests.tables import by_table

ASCENDING = [
    *("0.18.2", "1.0.0", "1.1.0", "1.2.0rc2", "1.2.0rc6", "1.2.0rc6.post1", "1.2.0rc8", "1.2"),
    *("1.2.1", "1.3.0.dev1", "1.3.0rc9", "1.3.0rc17", "1.3.0", "1.3.0.post1", "2.51.0"),
    *("24.04", "25.10", "26.04", "26.07"),
]


@pytest.mark.parametrize(("older", "newer"), [*itertools.pairwise(ASCENDING)])
def test_versions_have_an_order(older: str, newer: str) -> None:
    one, two = order(older), order(newer)
    assert one is not None and two is not None and one < two


@pytest.mark.parametrize("same", ["1.2.0", "v1.2", "1.2-trtllm-python-py3", " 1.2.0 "])
def test_zeros_and_tags_do_not_change_a_version(same: str) -> None:
    assert order(same) == order("1.2")


@pytest.mark.parametrize("name", ["main-00043967", "", "latest", "rc1"])
def test_a_name_without_a_version_has_no_order(name: str) -> None:
    assert order(name) is None


@pytest.mark.parametrize("product", advisories.products())
def test_every_advisory_can_be_judged_and_stands_once(product: str) -> None:
    rows = advisories.all_of(product)
    assert len({row.cve for row in rows}) == len(rows)
    for row in rows:
        assert row.fixed_in is None or order(row.fixed_in) is not None
        assert row.cvss is None or 0 <= row.cvss <= 10
        assert row.verified or row.fixed_in is None


@pytest.mark.parametrize(
    ("product", "version"), [("tensorrt_llm", "1.3.0rc17"), ("triton", "26.07")]
)
def test_one_version_has_every_known_fix(product: str, version: str) -> None:
    assert advisories.closes_all(product) == version
    rows = advisories.open_for(product, version)
    assert all(row.fixed_in is None for row in rows)
    found = advisories.diagnostic(product, version, "release")
    assert (found is not None) == bool(rows), "what nobody has fixed is said too"
    assert found is None or (found.severity, "no version fixes" in found.fix) == ("warning", True)


@by_table
def test_a_version_is_open_until_the_one_that_fixes_it(
    version: str, cve: str, is_open: bool
) -> None:
    assert (cve in {row.cve for row in advisories.open_for("tensorrt_llm", version)}) is is_open


def test_a_development_build_is_open_only_to_what_nobody_has_fixed() -> None:
    found = advisories.open_for("tensorrt_llm", "main-00043967")
    assert found and all(row.fixed_in is None for row in found)


def test_a_server_version_is_judged_by_its_container() -> None:
    as_server = advisories.open_for("triton", "2.51.0")
    assert as_server == advisories.open_for("triton", "24.10")
    assert "CVE-2024-0116" not in {row.cve for row in as_server}  # fixed in 24.09


def test_the_minimum_is_what_the_data_says_and_why() -> None:
    engine, server = map(advisories.minimum, ("tensorrt_llm", "triton"))
    assert (engine.version, server.version) == (release.newest_stable(), "26.07")
    assert "stable" in engine.reason and "every known fix" in server.reason


@by_table
def test_versions_below_the_minimum_are_refused(
    product: str, version: str, is_refused: bool
) -> None:
    assert advisories.is_refused(product, version) is is_refused
    found = advisories.diagnostic(product, version, "image")
    assert (found is not None and found.severity == "error") is is_refused


def test_a_refusal_names_the_worst_advisories_and_where_all_are_and_the_version_to_take() -> None:
    found = advisories.diagnostic("triton", "26.06-py3", "image")
    assert found is not None and (found.where, found.rule) == ("image", "vulnerable-version")
    assert "1 known" in found.message and "CVE-2026-16497 (7.5)" in found.message
    assert found.fix.startswith("upgrade to 26.07 or later")
    worse = advisories.diagnostic("triton", "25.06", "image")
    assert worse is not None
    first, *_, last = advisories.open_for("triton", "25.06")
    assert f"{first.cve} ({first.cvss})" in worse.message and last.cve not in worse.message
    assert "more (as of 2026-10-27; all are in advisories/triton.yaml)" in worse.message


def test_a_warning_names_count_score_the_worst_and_the_version_that_closes_all() -> None:
    found = advisories.diagnostic("tensorrt_llm", "1.2.1", "release")
    assert found is not None and found.severity == "warning"
    for part in ("15 known", "CVSS 8.4", "CVE-2026-24233", "and 12 more", "2026-10-27"):
        assert part in found.message
    assert found.fix.startswith("upgrade to 1.3.0rc17 or later; CVE-2026-65119 (8.4), ")
    assert found.fix.endswith("stay open: no version fixes them yet")


def test_advisories_of_another_folder_are_read_only_where_they_are_asked_for(
    tmp_path: Path,
) -> None:
    shipped = advisories.all_of("tensorrt_llm")
    for file in advisories.files():
        text = file.read_text()
        (tmp_path / file.name).write_text(f"{text.partition('advisories:')[0]}advisories: []\n")
    with advisories.of_folder(tmp_path):
        assert advisories.all_of("tensorrt_llm") == ()
    assert advisories.all_of("tensorrt_llm") == shipped != ()
