"""Newer bulletins: CSAF 2.0 files of NVIDIA's shape, taken into the advisories."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.facts import advisories
from tests import prefork
from tests.conftest import Run

Csaf = dict[str, Any]
TRITON, ENGINE = "Triton Inference Server", "TensorRT-LLM"


def leaf(name: str, version: str) -> Csaf:
    product = {"name": version, "product_id": f"linux {name} {version}"}
    return {"category": "product_version", "name": name, "product": product}


def csaf(number: str, day: str, *rows: tuple[str, str, str, str | None, float]) -> Csaf:
    """A bulletin; a row is CVE, product, the versions affected, the one with the fix, score."""
    versions = [leaf(name, text) for _, name, *both, _ in rows for text in both if text]
    names = {name for _, name, *_ in rows}
    family = [
        {"category": "product_name", "name": name, "product": {"name": name, "product_id": name}}
        for name in names
    ]
    branches = [
        {"category": "product_family", "name": "NVIDIA Product Family", "branches": family},
        {"category": "architecture", "name": "Linux", "branches": versions},
    ]
    return {
        "document": {
            "category": "csaf_security_advisory",
            "csaf_version": "2.0",
            "publisher": {"name": "NVIDIA Product Security"},
            "title": f"Security Bulletin: {number}",
            "tracking": {
                "id": number,
                "initial_release_date": f"{day}T00:00:00.000Z",
                "current_release_date": f"{day}T00:00:00Z",
                "status": "final",
            },
        },
        "product_tree": {
            "branches": [{"category": "vendor", "name": "NVIDIA", "branches": branches}]
        },
        "vulnerabilities": [vulnerability(*row) for row in rows],
    }


def vulnerability(cve: str, name: str, affected: str, fixed: str | None, score: float) -> Csaf:
    status = {"known_affected": [f"linux {name} {affected}"]}
    if fixed:
        status["fixed"] = [f"linux {name} {fixed}"]
    return {
        "cve": cve,
        "cwe": {"id": "CWE-22", "name": "Path Traversal"},
        "product_status": status,
        "scores": [{"cvss_v3": {"baseScore": score}, "products": status["known_affected"]}],
    }


NEW = csaf("5890", "2026-11-10", ("CVE-2026-70001", TRITON, "0.0-26.08", "26.09", 9.8))
RELEASE_CANDIDATE = csaf(
    "5891", "2026-11-12", ("CVE-2026-70002", ENGINE, "0.0 to v1.3.0 rc18", "v1.3.0 rc19", 8.1)
)
FIXED_LATER = csaf("5883", "2026-11-20", ("CVE-2026-65119", ENGINE, "0.0 to 1.3.1", "1.3.2", 8.4))


@pytest.fixture
def script(tmp_path: Path) -> Run:
    """The maintainer's script, run in the test's folder."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = [*map(str, arguments)]
        return prefork.shared().run(words, tmp_path, "maintenance.update_advisories").done

    return run


@pytest.fixture
def update(script: Run, tmp_path: Path) -> Callable[..., Any]:
    """The script with these documents, into the folder `new`."""

    def run(*documents: Any, to: str = "new") -> Any:
        for index, document in enumerate(documents):
            text = document if isinstance(document, str) else json.dumps(document)
            (tmp_path / f"{index}.json").write_text(text)
        names = [f"{index}.json" for index in range(len(documents))]
        base = ("--advisories", "new") if (tmp_path / "new").exists() else ()
        return script(*base, *names, "-o", to)

    return run


def listed(builder: Run, *more: str) -> dict[str, Any]:
    rows = json.loads(builder("advisories", "--json", *more).stdout)
    return {row["product"]: row for row in rows}


def test_the_list_names_products_dates_minimums_and_what_is_open(builder: Run) -> None:
    rows = listed(builder)
    assert {name: row["minimum"]["version"] for name, row in rows.items()} == {
        "tensorrt_llm": "1.2.1",
        "triton": "26.07",
        "vllm": "0.14.0",
    }
    assert rows["tensorrt_llm"]["closes_all"] == "1.3.0rc17"
    versions = {row["version"]: row for row in rows["triton"]["versions"]}
    assert versions["26.02"]["refused"] and not versions["26.07"]["refused"]
    assert versions["26.02"]["open"][0]["cvss"] == 9.8 and versions["26.07"]["open"] == []
    text = builder("advisories").stdout
    for part in ("as of 2026-10-27", "1.2.1: allowed, 15 open", "CVE-2026-24207 (9.8)"):
        assert part in text


def test_a_new_advisory_is_named_dated_and_refuses_what_it_is_in(
    builder: Run, tmp_path: Path, update: Callable[..., Any]
) -> None:
    done = update(NEW)
    assert done.returncode == 0, done.stderr
    assert "new: CVE-2026-70001 (9.8), fixed in 26.09, bulletin 5890" in done.stdout
    assert "as of 2026-10-27 -> 2026-11-10" in done.stdout
    assert "minimum: 26.07 -> 26.09" in done.stdout
    assert listed(builder, "--advisories", "new")["triton"]["minimum"]["version"] == "26.09"
    refused = builder("render", "llama-tiny", "--advisories", "new", "-o", "b")
    assert refused.returncode == 2 and "CVE-2026-70001 (9.8)" in refused.stderr
    assert builder("render", "llama-tiny", "-o", "b").returncode == 0


def test_a_bundle_names_the_advisories_that_it_was_judged_by(
    builder: Run, tmp_path: Path, update: Callable[..., Any]
) -> None:
    update(RELEASE_CANDIDATE)
    for name, more in {"old": (), "new-bundle": ("--advisories", "new")}.items():
        assert builder("render", "llama-tiny", *more, "-o", name).returncode == 0
    inputs = [
        json.loads((tmp_path / name / "manifest.json").read_text())["inputs"]["files"]
        for name in ("old", "new-bundle")
    ]
    key = "data/advisories/tensorrt_llm.yaml"
    assert inputs[0][key] != inputs[1][key]
    assert builder("verify", "new-bundle").returncode == 0  # by whatever advisories ship


def test_a_minimum_that_was_decided_stays(builder: Run, update: Callable[..., Any]) -> None:
    """TensorRT-LLM's is a stable release; a release candidate with more fixes changes nothing."""
    done = update(RELEASE_CANDIDATE)
    assert "new: CVE-2026-70002 (8.1), fixed in 1.3.0rc19" in done.stdout
    row = listed(builder, "--advisories", "new")["tensorrt_llm"]
    assert (row["minimum"]["version"], row["closes_all"]) == ("1.2.1", "1.3.0rc19")


def test_a_fix_that_becomes_known_changes_its_row(update: Callable[..., Any], builder: Run) -> None:
    done = update(FIXED_LATER)
    assert "changed: CVE-2026-65119:" in done.stdout and "fixed_in None -> 1.3.2" in done.stdout
    assert listed(builder, "--advisories", "new")["tensorrt_llm"]["closes_all"] == "1.3.2"


@pytest.mark.parametrize("name", ["NVIDIA TensorRT-LLM", "TensorRT LLM", "NVIDIA® TensorRT-LLM"])
def test_a_product_is_known_by_any_of_its_spellings(name: str, update: Callable[..., Any]) -> None:
    found = csaf("5894", "2026-11-12", ("CVE-2026-70005", name, "all before 1.4", "v1.4", 6.0))
    assert "new: CVE-2026-70005 (6.0), fixed in 1.4," in update(found).stdout


def test_an_older_bulletin_changes_nothing(update: Callable[..., Any]) -> None:
    old = csaf("5000", "2024-01-01", ("CVE-2026-47627", TRITON, "0.0-25.01", "25.02", 1.0))
    assert update(old).stdout.count("nothing new") == len(advisories.files())


def test_a_server_version_becomes_its_container(update: Callable[..., Any]) -> None:
    found = csaf("5892", "2026-11-11", ("CVE-2026-70003", TRITON, "all before 2.69", "2.69", 7.0))
    assert "CVE-2026-70003 (7.0), fixed in 26.05" in update(found).stdout


def test_the_same_bulletin_again_changes_no_byte(
    tmp_path: Path, update: Callable[..., Any]
) -> None:
    update(NEW, RELEASE_CANDIDATE)
    before = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    done = update(NEW, RELEASE_CANDIDATE)
    assert done.stdout.count("nothing new") == len(advisories.files())
    assert {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()} == before


def test_no_bulletin_keeps_the_files_byte_for_byte(
    tmp_path: Path, update: Callable[..., Any]
) -> None:
    old = csaf("5000", "2024-01-01", ("CVE-2026-47627", TRITON, "0.0-25.01", "25.02", 1.0))
    update(old)
    for path in advisories.files():
        assert (tmp_path / "new" / path.name).read_bytes() == path.read_bytes()


def test_a_folder_of_bulletins_is_taken_but_for_what_is_not_ours(
    script: Run, tmp_path: Path
) -> None:
    """As the publisher keeps them: records of single vulnerabilities lie beside the bulletins."""
    other = csaf("5893", "2026-11-11", ("CVE-2026-70004", "GPU Display Driver", "R580", "590", 7.0))
    folder = tmp_path / "2026" / "5890"
    folder.mkdir(parents=True)
    record = {"dataType": "CVE_RECORD", "containers": {}}
    for name, document in {"5890": NEW, "5893": other, "CVE-2026-70001": record}.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    done = script("--from", "2026", "-o", "new")
    assert done.returncode == 0 and "CVE-2026-70001" in done.stdout
    assert "CVE-2026-70004" not in done.stdout


def broken(change: Callable[[Csaf], object]) -> Csaf:
    document = copy.deepcopy(NEW)
    change(document)
    return document


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "is no CSAF 2.0 file"),
        ({"dataType": "CVE_RECORD"}, "is no CSAF 2.0 file"),
        (broken(lambda d: d["document"].update(csaf_version="2.1")), "is CSAF 2.1, not 2.0"),
        (broken(lambda d: d["document"].pop("tracking")), "KeyError 'tracking'"),
        (broken(lambda d: d["vulnerabilities"][0].update(cve="x\ny: 1")), "name no vulnerability"),
        (broken(lambda d: d["vulnerabilities"][0].pop("product_status")), "'product_status'"),
        (
            broken(lambda d: d["vulnerabilities"][0]["scores"][0]["cvss_v3"].update(baseScore=99)),
            "score",
        ),
        (broken(lambda d: d["document"]["tracking"].update(id="x")), "is a broken CSAF file"),
        (
            broken(lambda d: d["document"]["tracking"].update(current_release_date="soon")),
            "no days",
        ),
        (
            csaf("1", "2026-11-11", ("CVE-2026-1111", TRITON, "all", "the next one", 7.0)),
            "not a version",
        ),
        (csaf("1", "2026-11-11", ("CVE-2026-1111", "CUDA", "all", "13", 7.0)), "is about neither"),
    ],
)
def test_a_file_that_is_no_bulletin_of_ours_is_refused_and_nothing_written(
    document: Any, said: str, tmp_path: Path, update: Callable[..., Any]
) -> None:
    done = update(RELEASE_CANDIDATE, document)
    assert done.returncode == 2 and done.stdout == ""
    assert "1.json" in done.stderr and said in done.stderr
    assert not (tmp_path / "new").exists()


def test_nothing_to_take_in_is_a_fault(script: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments in ((), ("--from", "empty"), ("absent.json",)):
        assert script(*arguments, "-o", "new").returncode == 2


def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, update: Callable[..., Any]
) -> None:
    (tmp_path / "file").write_text("")
    done = update(NEW, to="file/below")
    assert done.returncode == 2 and "file/below: cannot be written" in done.stderr


def test_a_folder_without_advisories_is_refused(builder: Run, tmp_path: Path) -> None:
    done = builder("render", "llama-tiny", "--advisories", "absent", "-o", "b")
    assert done.returncode == 2 and "cannot be read" in done.stderr
