"""What a sweep makes of the results of its parts, whole ones and others."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from builder import bundle as bundles
from builder import pipeline
from builder.errors import ChecksFailed
from launch.slurm import sweep
from launch.slurm.submission import Submission
from launch.slurm.sweep import ServiceSweep
from supervisor.state import ServiceFolder
from tests.conftest import ROOT
from tests.launch.slurm.test_odd_answers import program

SAMPLE = ROOT / "tests/launch/bench/sample_bench.json"
URL = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> bundles.Bundle:
    folder = tmp_path_factory.mktemp("sweep") / "bundle"
    return bundles.read(pipeline.render("llama-tiny", folder).folder)


def measured_here(bundle: bundles.Bundle, folder: Path) -> ServiceSweep:
    order = Submission(bundle.folder, bundle, {}, ServiceFolder(folder, "svc"), (), {})
    return ServiceSweep(order, URL, folder / "results")


@pytest.mark.parametrize("part", [SAMPLE.read_text(), None], ids=["points", "nothing"])
def test_what_was_measured_is_kept_whatever_failed(
    bundle: bundles.Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str | None
) -> None:
    """`launch bench` ends with 6 where most requests of a point failed."""
    one = measured_here(bundle, tmp_path)
    (tmp_path / "bench.json").write_text(part or "")
    (tmp_path / "requests.jsonl").write_text("{}\n")
    keep = f"mkdir -p {one.folder}/0; cp {tmp_path}/*.json* {one.folder}/0; exit 6"
    monkeypatch.setattr(
        sys, "executable", str(program(tmp_path, "bench", keep if part else "exit 6"))
    )
    with pytest.raises(ChecksFailed) as fault:
        sweep.here(one, lambda _: None)
    report = one.folder / "report.html"
    said = (
        f"was measured with exit code 6; see {report}" if part else "was not measured: exit code 6"
    )
    assert str(fault.value.diagnostics[0]) == f"{URL}: {said}"
    assert report.is_file() == bool(part)


@pytest.mark.parametrize(
    ("parts", "outcome", "failure"),
    [
        ([("complete", None), ("complete", None)], "complete", None),
        ([("complete", None), ("interrupted", None)], "interrupted", None),
        ([("interrupted", None), ("failed", "a"), ("failed", "b")], "failed", "a; b"),
    ],
)
def test_a_sweep_ends_as_the_worst_of_its_parts(
    bundle: bundles.Bundle, parts: list[tuple[str, str | None]], outcome: str, failure: str | None
) -> None:
    document: dict[str, Any] = json.loads(SAMPLE.read_text())
    documents = [{**document, "outcome": word, "failure": why} for word, why in parts]
    found = sweep.merged(documents, bundle, URL)
    assert (found["outcome"], found["failure"]) == (outcome, failure)
