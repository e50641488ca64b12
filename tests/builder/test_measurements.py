"""The measured rows: a strict file, repairs that are counted, and factors fitted to these bytes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from builder.documents import load_yaml
from builder.errors import BadFacts
from builder.estimates import Estimator, fits, measurements, models
from builder.estimates.measurements import AGGREGATED, DISAGGREGATED, MEASUREMENTS, Row
from builder.facts import hardware
from maintenance import fit_estimates, import_measurements, infer_drafting
from tests.conftest import ROOT

PUBLIC = ROOT.parent / "shared" / "facts" / "measured-rows.csv"
NEWER = PUBLIC.with_name("measured-rows-2026-11.csv")


class TestFiles:
    def test_every_row_is_of_a_known_model_gpu_and_source(self) -> None:
        rows, _ = measurements.read()
        assert len({row.id for row in rows}) == len(rows)
        named = {(row.model, row.gpu, row.source) for row in rows}
        named |= {(row.model, row.gpu, row.source) for row in measurements.read_disaggregated()}
        for model, gpu, source in named:
            assert model in models.measured_models()
            assert gpu in hardware.known()
            assert source

    def test_the_index_has_digests_and_counts(self) -> None:
        index = load_yaml((MEASUREMENTS / "index.yaml").read_text())
        for path in (AGGREGATED, DISAGGREGATED):
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

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            (",sglang,", ",sgl,", ":2: engine: 'sgl' is not one of tensorrt_llm"),
            (",fp4,", ",fp5,", "precision"),
            ("1024,1024,4,", "1024,1024,-4,", "concurrency: '-4' is not a whole number"),
            ("9.08932", "nan", "tpot_ms: 'nan' is not a number above 0"),
            (",1024,1024,", ",1024,", "cells"),
        ],
    )
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

    def test_factors_of_other_rows_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fitted = fits.Fits("0" * 64, fits.load().tpot, fits.load().ttft)
        monkeypatch.setattr(fits, "load", lambda: fitted)
        with pytest.raises(BadFacts, match="fit_estimates"):
            Estimator.load()


class TestFactors:
    def test_the_command_gives_the_same_bytes(self) -> None:
        text = fits.FACTORS.read_text()
        rows, digest = measurements.read()
        assert fit_estimates.fit(rows, digest, json.loads(text)) == text


class TestImport:
    @pytest.mark.parametrize(
        ("written", "is_listing", "run", "repair"),
        [
            ((64, 1, 8, 8), True, (8, 1, 8), "square"),
            ((16, 1, 4, 4), True, (4, 1, 4), "square"),
            ((1, 64, 8, 8), True, (1, 8, 8), "square"),
            ((1, 4, 2, 2), True, (1, 2, 2), "square"),
            ((4, 4, 1, 16), True, (1, 4, 4), "dp_twice"),
            ((2, 2, 1, 4), True, (1, 2, 2), "dp_twice"),
            ((1, 0, 2, 1), False, (1, 2, 1), "dp_missing"),
            ((8, 1, 8, 1), True, (8, 1, 1), ""),
            ((8, 1, 1, 8), True, (8, 1, 8), ""),
            ((1, 8, 1, 8), True, (1, 8, 8), ""),
            ((4, 0, 2, 2), False, (4, 1, 2), ""),
            ((2, 0, 0, 0), False, (2, 1, 1), ""),
        ],
    )
    def test_layouts_are_repaired(
        self,
        written: tuple[int, int, int, int],
        is_listing: bool,
        run: tuple[int, int, int],
        repair: str,
    ) -> None:
        assert import_measurements.layout_of(*written, is_listing) == (run, repair)

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

    @pytest.mark.skipif(not PUBLIC.is_file(), reason="needs the public table of measured rows")
    def test_the_files_are_what_the_command_makes_of_the_public_table(self) -> None:
        found = import_measurements.take(
            import_measurements.raw(PUBLIC), import_measurements.raw(NEWER)
        )
        assert measurements.write(found.rows, Row._fields) == AGGREGATED.read_text()
