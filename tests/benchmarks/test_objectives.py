"""What a choice is worth is what the command measured on these rows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import objectives
from benchmarks.objectives import Objective, Point
from builder.estimates import Estimate, Estimator, Question, Refusal, fits, measurements
from builder.estimates.cells import Key, key_of
from builder.estimates.intervals import NO_LIMITS, Limits
from maintenance.left_out import curve_of

FIGURES: dict[str, Any] = json.loads(objectives.PAGE.figures.read_text())
CELL = Key("Llama-3.3-70B", "h100", "fp8", "vllm")  # nine curves that agree


def test_the_figures_are_of_the_rows_that_ship() -> None:
    """Run `python -m benchmarks.objectives --write` after a change of them."""
    assert FIGURES["rows_sha256"] == measurements.read()[1]


def test_the_page_has_the_table_of_the_figures() -> None:
    table = objectives.table(FIGURES)
    page = objectives.PAGE.path.read_text()
    assert table in page
    assert objectives.PAGE.with_table(table) == page


def test_every_bound_holds() -> None:
    assert not list(objectives.misses(FIGURES))


@pytest.mark.parametrize(
    ("measure", "value"), [("kept_percent", 95.9), ("ratio_median", 0.89), ("chosen", 200)]
)
def test_a_missed_bound_is_named(measure: str, value: float) -> None:
    worse = json.loads(json.dumps(FIGURES))
    worse["choosers"][objectives.OWN][measure] = value
    assert len(list(objectives.misses(worse))) == 1


@pytest.fixture(scope="module")
def some() -> list[measurements.Row]:
    rows, _ = measurements.read()
    return [row for row in rows if (row.model, row.gpu) == ("Qwen3.5-397B-A17B", "b300")]


def test_a_point_is_told_without_its_curve(
    some: list[measurements.Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[bool] = []

    class Watched(Estimator):
        def promise(self, question: Question, limits_ms: Limits = NO_LIMITS) -> Estimate | Refusal:
            layout = (question.tp, question.attention_dp, question.ep)
            lengths = (question.isl, question.osl)
            curves = {(*row.layout, row.isl, row.osl) for row in self.rows if row.gpu == "b300"}
            known.append((*layout, *lengths) in curves)
            return super().promise(question, limits_ms)

    monkeypatch.setattr(objectives, "Estimator", Watched)
    # In this cell one layout at some lengths is one curve of each precision.
    one = [row for row in some if row.precision == "fp8"]
    found = list(objectives.points(one, [fits.load()] * 2))
    assert len(found) == len(known) == len(one)
    assert not any(known)


def point(estimator: Estimator, question: Question, tpot_ms: float, ttft_ms: float) -> Point:
    row = measurements.read()[0][0]._replace(
        **{name: getattr(question, name) for name in ("tp", "isl", "osl", "concurrency")},
        tpot_ms=tpot_ms,
        ttft_ms=ttft_ms,
    )
    return Point(row, estimator.estimate(question), estimator.promise(question))


def test_the_fastest_whose_promised_end_keeps_the_objective_is_chosen() -> None:
    estimator = Estimator.load()
    gpt = Question("gpt-oss-120b", "b200", "fp4", "tensorrt_llm", 4, 1, 1, 1024, 1024, 16)
    slow, fast = (
        point(estimator, replace(gpt, concurrency=load), tpot_ms, 60)
        for load, tpot_ms in ((8, 2.7), (16, 2.7))
    )
    assert isinstance(slow.promised, Estimate) and isinstance(fast.promised, Estimate)
    assert slow.promised.tpot_ms.high < fast.promised.tpot_ms.high
    loose = Objective([slow, fast], itl_ms=10, ttft_ms=1000)
    tight = replace(loose, itl_ms=slow.promised.tpot_ms.high)
    none = replace(loose, itl_ms=slow.promised.tpot_ms.high * 0.99)
    assert objectives.by_promise(loose) is fast
    assert objectives.by_promise(tight) is slow
    assert objectives.by_promise(none) is None
    assert objectives.refusals([loose, tight, none]) == {"no promised end keeps it": 1}
    found = objectives.outcome([loose, tight, none], objectives.by_promise)
    assert (found["chosen"], found["kept_percent"]) == (2, 100)
    # Of the tight one the fast point kept the limit too, which nothing promised.
    assert found["ratio_median"] < 1


def test_the_promise_of_a_cell_does_not_know_the_curve_that_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A curve that is far off widens the promises of its cell for all others, not for itself."""
    some = [row for row in measurements.read()[0] if key_of(row) == CELL]
    curve = curve_of(some[0])
    off = [
        row._replace(tpot_ms=row.tpot_ms * 1.8) if curve_of(row) == curve else row for row in some
    ]

    def promises(rows: list[measurements.Row]) -> dict[tuple[object, ...], float]:
        """What is promised of TPOT where a curve is asked, in standard deviations."""
        found: dict[tuple[object, ...], float] = {}

        class Watched(Estimator):
            def promise(self, question: Question, limits_ms: Limits = NO_LIMITS) -> Refusal:
                layout = (question.tp, question.attention_dp, question.ep)
                ends = fits.of_cell(self.fits.promises, CELL, with_release=False)
                found[(*CELL, *layout, question.isl, question.osl)] = ends[0]
                return Refusal(question, "wide", "not asked here", ())

        monkeypatch.setattr(objectives, "Estimator", Watched)
        assert len(list(objectives.points(rows, [fits.load()] * 2))) == len(rows)
        return found

    before, after = promises(some), promises(off)
    assert after.pop(curve) == before.pop(curve)
    assert len(before) > 5
    assert all(after[other] > 2 * before[other] for other in before)
