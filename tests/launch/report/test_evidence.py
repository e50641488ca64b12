"""What is read from run folders and documents, and how faults in them are reported."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.errors import BadInput
from launch.report import evidence, page
from tests.conftest import ROOT
from tests.launch.report import samples

Saved = Callable[..., Path]


def test_the_documents_of_the_benchmark_are_read() -> None:
    (run,) = evidence.gather([ROOT / "tests/launch/bench/sample_bench.json"])
    assert [point.concurrency for point in run.bench.points] == [1, 2, 4, 8, 16, 32, 64]
    assert not run.bench.imported
    assert run.bench.failed == 1


def test_a_run_folder_brings_its_checks_and_its_bundle(
    tmp_path: Path, rendered: samples.Json
) -> None:
    (run,) = evidence.gather([samples.run_folder(tmp_path / "run", samples.bench(bundle=rendered))])
    assert [one.outcome for one in run.smoke] == ["passed", "warned", "passed"]
    assert run.start and run.start.ready_after_s == 12.5
    assert run.manifest and run.manifest["decisions"]
    assert run.notes == ()


def test_a_run_that_measured_nothing_still_has_its_checks(
    tmp_path: Path, rendered: samples.Json
) -> None:
    folder = samples.run_folder(tmp_path / "run", samples.bench(bundle=rendered, rehearsal=True))
    (folder / "bench.json").unlink()
    (run,) = evidence.gather([folder])
    assert run.smoke and run.manifest
    text = page.text([run])
    assert "Nothing was measured" in text
    assert "2 of 3 smoke checks passed" in text


def test_a_bundle_that_changed_since_is_not_shown(tmp_path: Path, rendered: samples.Json) -> None:
    older = {**rendered, "digest": "0" * 64}
    (run,) = evidence.gather([samples.run_folder(tmp_path / "run", samples.bench(bundle=older))])
    assert run.manifest is None
    assert "has changed since it was measured" in run.notes[0]


def test_a_bundle_that_is_gone_is_said(tmp_path: Path) -> None:
    gone = {"name": "b", "folder": str(tmp_path / "gone"), "digest": "0" * 64}
    (run,) = evidence.gather([samples.run_folder(tmp_path / "run", samples.bench(bundle=gone))])
    assert "The bundle is not shown" in run.notes[0]
    assert "The bundle is not shown" in page.text([run])


def test_runs_of_one_name_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    documents = [samples.bench(), samples.bench(), samples.bench("other")]
    documents[1]["subject"]["precision"] = "fp8"
    folders = [samples.run_folder(tmp_path / str(n), d) for n, d in enumerate(documents)]
    files = [folder / "bench.json" for folder in folders]
    titles = [run.title for run in evidence.gather(files)]
    name = "deepseek-v3.2-nvfp4-gb200"
    assert titles == [f"{name}, nvfp4", f"{name}, fp8", "other"]


def test_the_same_run_twice_gets_a_number(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run", samples.bench("one"))
    assert [run.title for run in evidence.gather([folder, folder])] == ["one", "one (2)"]


def test_all_faults_are_reported_at_once(tmp_path: Path, saved: Saved) -> None:
    document = samples.bench()
    document["points"][0]["ttft_ms"]["p50"] = "fast"
    document["client"]["marked"] = "yes"
    with pytest.raises(BadInput) as fault:
        evidence.gather([saved(document), tmp_path / "nowhere"])
    text = str(fault.value)
    assert 'bench.json: points[0].ttft_ms.p50: is "fast"; a number is expected; write' in text
    assert 'bench.json: client.marked: is "yes"; true or false is expected' in text
    assert "nowhere: does not exist; give a run folder" in text


def test_a_wrong_object_is_reported_once(saved: Saved) -> None:
    document = samples.bench()
    document["subject"]["engine"] = 3
    with pytest.raises(BadInput) as fault:
        evidence.gather([saved(document)])
    assert str(fault.value).count("subject.engine: is 3; an object is expected") == 1


def test_an_own_document_never_counts_as_imported(saved: Saved) -> None:
    document = samples.bench(imported=True)
    del document["client"]
    (run,) = evidence.gather([saved(document)])
    assert not run.bench.imported


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "neither JSON nor lines of JSON"),
        ("[1, 2", "neither JSON nor lines of JSON"),
        ("[" * 100_000, "neither JSON nor lines of JSON"),
        ("[]", "has no known result format"),
        ('{"kind": "bench"}', "format: is None; this version reads 1"),
        ('{"kind": "bench", "format": 2}', "format: is 2; this version reads 1; measure again"),
        ('{"kind": "bench", "format": 1}', "subject: is missing"),
        ('{"kind": "bench", "format": 1, "subject": 3, "points": {}}', "points: is {}; a list"),
    ],
)
def test_what_is_no_result_is_refused(saved: Saved, text: str, fault: str) -> None:
    with pytest.raises(BadInput) as raised:
        evidence.gather([saved(text)])
    assert fault in str(raised.value)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no run; give a run folder"):
        evidence.gather([tmp_path])


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00{}")
    with pytest.raises(BadInput, match="is not UTF-8 text"):
        evidence.gather([tmp_path / "x.json"])


VALUES: tuple[Any, ...] = (None, "", "x", -1, 0, 1e308, 10**400, True, [], {}, [[]], [1], {"a": 1})


def test_whatever_stands_in_a_document_ends_in_a_page_or_a_clear_fault(saved: Saved) -> None:
    """Every value of a document, replaced by every kind of value."""
    sample = samples.bench(points=[samples.point(1, failed=1), samples.point(2)])
    pages = 0
    for changed in _changed(sample):
        try:
            runs = evidence.gather([saved(changed)])
        except BadInput as fault:
            assert "bench.json" in str(fault)
        else:
            pages += 1
            if pages % 29 == 0:  # a page takes longer than the rest of this test
                assert page.text(runs).endswith("</html>\n")
    assert pages > 500


def test_whatever_stands_in_the_summary_of_a_run_ends_in_a_page_or_a_clear_fault(
    tmp_path: Path,
) -> None:
    pages = 0
    for changed in _changed(samples.FAILED_START):
        (tmp_path / "run.json").write_text(json.dumps(changed))
        try:
            assert page.text(evidence.gather([tmp_path])).endswith("</html>\n")
            pages += 1
        except BadInput as fault:
            assert "run.json" in str(fault)
    assert pages > 50


def _changed(document: Any) -> Iterator[Any]:
    for path in _paths(document):
        for value in VALUES:
            changed = copy.deepcopy(document)
            holder = changed
            for part in path[:-1]:
                holder = holder[part]
            holder[path[-1]] = value
            yield changed


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places below the first of each list."""
    parts: Any = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value[:1])
    for key, below in parts:
        yield (*at, key)
        yield from _paths(below, (*at, key))


def test_numbers_that_are_none_are_not_known(saved: Saved) -> None:
    text = json.dumps(samples.bench()).replace(
        '"output_tokens_per_s": ', '"output_tokens_per_s": NaN, "x": ', 1
    )
    (run,) = evidence.gather([saved(text)])
    assert run.bench.points[0].rate("output_tokens_per_s") is None
    assert page.text([run])
