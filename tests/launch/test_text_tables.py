"""Tables of 80 columns: nothing that a reader needs is cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launch.cli import text_tables
from launch.smoke.results import CheckResult

SAMPLE = Path(__file__).parent / "bench" / "sample_bench.json"
LONG = "no/such/path/" * 8


def result(outcome: Any, evidence: str) -> CheckResult:
    return CheckResult("P10", "Own answers of some", "why", "grpc", outcome, evidence, 0.1)


@pytest.mark.parametrize("outcome", ["skipped", "failed", "warned"])
@pytest.mark.parametrize("words", [f"the server has no {LONG}", LONG, "eight at once " * 9])
def test_a_reason_is_there_in_full(outcome: str, words: str) -> None:
    text = text_tables.check_lines([result(outcome, words.strip())])
    assert max(map(len, text.splitlines())) <= 80
    assert words.replace(" ", "") in text.replace(" ", "").replace("\n", "")


def test_a_reason_that_fits_stays_on_the_line() -> None:
    assert text_tables.check_lines([result("skipped", "no metrics port")]).count("\n") == 0


@pytest.mark.parametrize("words", [LONG, f"{LONG} and more"])
def test_evidence_of_what_passed_is_never_cut_to_nothing(words: str) -> None:
    [line] = text_tables.check_lines([result("passed", words)]).splitlines()
    assert len(line) <= 80
    assert "no/such/path/" in line
    assert line.endswith("...")


def test_failures_are_told_with_their_reason() -> None:
    document = json.loads(SAMPLE.read_text())
    document["points"][6]["errors"] = {"timeout": {"count": 119, "example": "no end within 600 s"}}
    text = text_tables.bench_table(document)
    assert "c64: 119 of 640 requests failed, timeout: no end within 600 s" in text.splitlines()


def test_an_interrupted_benchmark_says_so_in_its_table() -> None:
    document = json.loads(SAMPLE.read_text())
    assert "interrupted" not in text_tables.bench_table(document)
    document["outcome"] = "interrupted"
    text = text_tables.bench_table(document)
    assert "interrupted: the last point here may have fewer requests" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "interrupted before the first point" in text_tables.bench_table(
        {**document, "points": []}
    )
