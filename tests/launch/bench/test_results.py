"""The results on disk: complete at any time, and known for what they are."""

from __future__ import annotations

import csv
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from builder.errors import BadInput
from launch.bench import point_metrics, results
from launch.bench.load import LoadPlan
from launch.bench.point_metrics import MetricOptions
from tests.launch.bench.records import failed, seen, stream

SAMPLE = Path(__file__).parent / "sample_bench.json"


@pytest.fixture
def sample() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SAMPLE.read_text())
    return found


def test_the_sample_has_what_a_measured_point_has(sample: dict[str, Any]) -> None:
    measured = point_metrics.measure(
        stream(2, 4), LoadPlan("concurrency", concurrency=2), MetricOptions()
    )
    around = {"load", "label", "started", "ended", "server"}
    for point in sample["points"]:
        assert set(point) == set(measured) | around
    assert results.read(SAMPLE) == sample


def test_what_is_written_is_read_again(sample: dict[str, Any], tmp_path: Path) -> None:
    files = results.create(tmp_path, "any")
    files.write(sample)
    files.close()
    assert results.read(tmp_path) == results.read(tmp_path / "bench.json") == sample
    assert {file.name for file in tmp_path.iterdir()} == {
        "bench.json", "points.csv", "requests.jsonl"
    }  # fmt: skip


def test_nobody_else_reads_what_was_asked_and_answered(tmp_path: Path) -> None:
    results.create(tmp_path / "results", "any").close()
    assert stat.filemode((tmp_path / "results").stat().st_mode) == "drwx------"


def test_every_row_of_the_table_says_what_was_measured(
    sample: dict[str, Any], tmp_path: Path
) -> None:
    sample["subject"]["engine"] |= {"used": "reference", "rehearsal": True}
    files = results.create(tmp_path, "any")
    files.write(sample)
    files.close()
    with (tmp_path / "points.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == ["c1", "c2", "c4", "c8", "c16", "c32", "c64"]
    for row in rows:
        assert (row["engine"], row["rehearsal"]) == ("reference", "True")
        assert row["bundle_digest"] == sample["subject"]["bundle"]["digest"]
        assert row["date"] == sample["started"]
        assert float(row["ttft_ms.p99"]) > 0


def test_every_request_has_a_line_as_soon_as_it_ended(tmp_path: Path) -> None:
    files = results.create(tmp_path, "any")
    for one in (seen(0), failed(1)):
        files.request("c8", one)
    rows = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    files.close()
    assert (rows[0]["point"], rows[0]["ttft_ms"], rows[0]["tpot_ms"]) == ("c8", 50, 5)
    assert rows[1]["failure"]["kind"] == "timeout"
    assert "e2e_ms" not in rows[1]


def test_a_folder_with_results_is_kept(tmp_path: Path) -> None:
    (tmp_path / "bench.json").touch()
    with pytest.raises(BadInput, match=r"holds a bench\.json already"):
        results.create(tmp_path, "any")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: no such file"),
        ("{", "is not JSON"),
        ('{"kind": "other"}', "is not a bench.json"),
        ('{"kind": "bench", "format": 99}', "has format 99; this toolkit reads 1"),
    ],
)
def test_what_is_no_result_is_bad_input(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "bench.json").write_text(content)
    with pytest.raises(BadInput, match=message):
        results.read(tmp_path)
