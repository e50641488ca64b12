"""The measured rows: a strict file, repairs that are counted, and factors fitted to these bytes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from math import log
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from builder.documents import load_yaml
from builder.errors import BadFacts
from builder.estimates import Estimator, fits, measurements, names
from builder.estimates.cells import point_of
from builder.estimates.interpolation import Field, Kernel
from builder.estimates.measurements import (
    AGGREGATED,
    DISAGGREGATED,
    DISAGGREGATED_FIELDS,
    MEASUREMENTS,
    OTHERS,
    Row,
)
from builder.facts import hardware
from maintenance import fit_estimates, import_measurements, infer_drafting, left_out
from tests.conftest import ABSENT, ROOT
from tests.tables import by_table

PUBLIC = ROOT.parent / "shared" / "facts" / "measured-rows.csv"
NEWER = PUBLIC.with_name("measured-rows-2026-11.csv")
CONFIGURATIONS = PUBLIC.with_name("inferencex-configurations-2026-11.csv")


class TestFiles:
    def test_every_row_is_of_a_known_model_gpu_and_source(self) -> None:
        rows, _ = measurements.read()
        assert len({row.id for row in rows}) == len(rows)
        apart = [row.server for row in measurements.read_disaggregated()]
        named = {(row.model, row.gpu, row.source) for row in (*rows, *apart)}
        assert {model for model, _, _ in named} == names.measured_models().keys()
        others, _ = measurements.read(OTHERS)
        assert not {row.model for row in others} & names.measured_models().keys()
        for _, gpu, source in named | {(row.model, row.gpu, row.source) for row in others}:
            assert gpu in hardware.known()
            assert source

    def test_the_index_has_digests_and_counts(self) -> None:
        index = load_yaml((MEASUREMENTS / "index.yaml").read_text())
        for path in (AGGREGATED, OTHERS, DISAGGREGATED):
            text = path.read_text()
            assert index["files"][path.name] == {
                "rows": text.count("\n") - 1,
                "sha256": measurements.digest(text),
            }
        assert index["repairs"].keys() == import_measurements.REPAIRS.keys()
        assert index["left_out"].keys() == import_measurements.LEFT_OUT.keys()

    def test_no_server_spans_more_gpus_than_a_node_of_these_sources(self) -> None:
        rows, _ = measurements.read()
        assert max(row.num_gpus for row in rows) <= 8
        assert all(row.ep <= row.num_gpus for row in rows)

    @by_table
    def test_a_wrong_cell_is_named_with_its_line(
        self, tmp_path: Path, old: str, new: str, words: str
    ) -> None:
        head, first = AGGREGATED.read_text().splitlines()[:2]
        file = tmp_path / "rows.csv"
        assert old in first
        file.write_text(f"{head}\n{first.replace(old, new, 1)}\n")
        with pytest.raises(BadFacts) as error:
            measurements.read(file)
        assert words in str(error.value)

    def test_rows_are_written_as_they_are_read(self, tmp_path: Path) -> None:
        rows, _ = measurements.read()
        assert measurements.write(rows, Row._fields) == AGGREGATED.read_text()
        apart = (row.cells() for row in measurements.read_disaggregated())
        assert measurements.write(apart, DISAGGREGATED_FIELDS) == DISAGGREGATED.read_text()

    def test_factors_of_other_rows_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fitted = replace(fits.load(), rows_sha256="0" * 64)
        monkeypatch.setattr(fits, "load", lambda: fitted)
        with pytest.raises(BadFacts, match="fit_estimates"):
            Estimator.load()


class TestFactors:
    def test_the_command_gives_the_same_bytes(self) -> None:
        text = fits.FACTORS.read_text()
        rows, digest = measurements.read()
        assert fit_estimates.fit(rows, digest, json.loads(text)) == text


class TestImport:
    @by_table
    def test_layouts_are_repaired(
        self, written: tuple[int, int, int, int], is_listing: bool, run: list[int], repair: str
    ) -> None:
        assert import_measurements.layout_of(*written, is_listing) == (tuple(run), repair)

    def test_drafting_is_inferred_from_runs_at_the_same_points(self) -> None:
        rows, _ = measurements.read()
        known = next(row for row in rows if row.model == "DeepSeek-R1")
        loads = (1, 2, 4, 8, 16)

        def run(date: str, factor: float) -> list[Row]:
            return [
                known._replace(
                    id=f"{date}-{load}",
                    date=date,
                    drafting="",
                    concurrency=load,
                    tpot_ms=factor * (5 + load),
                )
                for load in loads
            ]

        found = infer_drafting.infer([*run("2026-01-01", 1), *run("2026-01-09", 0.6)])
        assert Counter((row.date, row.drafting) for row in found) == {
            ("2026-01-01", "off"): 5,
            ("2026-01-09", "on"): 5,
        }
        alike = infer_drafting.infer([*run("2026-01-01", 1), *run("2026-01-09", 0.9)])
        assert {row.drafting for row in alike} == {""}

    @pytest.mark.skipif(not PUBLIC.is_file(), reason=ABSENT)
    def test_the_files_are_what_the_command_makes_of_the_public_table(self) -> None:
        files = map(import_measurements.raw, (PUBLIC, NEWER, CONFIGURATIONS))
        found = import_measurements.take(*files)
        assert measurements.write(found.rows, Row._fields) == AGGREGATED.read_text()
        assert measurements.write(found.others, Row._fields) == OTHERS.read_text()
        apart = (row.cells() for row in found.disaggregated)
        assert measurements.write(apart, DISAGGREGATED_FIELDS) == DISAGGREGATED.read_text()


class TestWidths:
    def test_a_cell_whose_rows_agree_has_narrower_ends_than_one_whose_rows_do_not(self) -> None:
        found = fits.load()
        agreeing, differing = (
            "Qwen3-235B-A22B h100 fp8 tensorrt_llm",
            "gpt-oss-120b h100 fp4 vllm",
        )
        for ends in (found.intervals, found.promises):
            one, other = (
                fits.of_cell(ends, cell.split(), False)[0] for cell in (agreeing, differing)
            )
            assert other > 3 * one

    def test_a_cell_that_nobody_fitted_has_those_of_its_engine(self) -> None:
        ends = fits.load().promises
        cell = ("new-model", "b200", "fp4", "vllm")
        assert fits.of_cell(ends, cell, True) == ends["with_release"]["vllm"]

    def test_a_curve_is_told_without_its_own_rows(self) -> None:
        """As a field of all other rows tells each load of it."""
        rows, _ = measurements.read()
        some = [row for row in rows if row.model == "Llama-3.3-70B"][:80]
        values = [log(row.tpot_ms) for row in some]
        scales = fits.load().tpot.without_release
        crowd = left_out.Crowd(some, np.array(values), with_release=False)
        _, of_curves = crowd.standardized(asdict(scales))
        points = [point_of(row, with_release=False) for row in some]
        curves = [left_out.curve_of(row) for row in some]
        for curve in set(curves):
            others = [index for index, other in enumerate(curves) if other != curve]
            field = Field(
                Kernel(scales),
                [points[index] for index in others],
                [values[index] for index in others],
                median(values),
            )
            for index in set(range(len(some))) - set(others):
                mean, deviation = field.at(points[index])
                told = (values[index] - mean) / deviation
                assert of_curves[index] == pytest.approx(told, abs=1e-6)
