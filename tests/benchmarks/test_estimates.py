"""The accuracy that the documentation states is what the command measured on these rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import estimates, halves
from builder.estimates import Estimate, Estimator, Question, Refusal, fits, measurements
from builder.estimates.measurements import Row
from maintenance import fit_estimates

FIGURES: dict[str, Any] = json.loads(estimates.PAGE.figures.read_text())


def test_the_figures_are_of_the_rows_and_factors_that_ship() -> None:
    """Run `python -m benchmarks.estimates --write` after a change of either."""
    assert FIGURES["rows_sha256"] == measurements.read()[1]
    assert FIGURES["factors_sha256"] == measurements.digest(fits.FACTORS.read_text())


def test_the_page_has_the_table_of_the_figures() -> None:
    table = estimates.table(FIGURES)
    page = estimates.PAGE.path.read_text()
    assert table in page
    assert estimates.PAGE.with_table(table) == page


def test_every_bound_holds() -> None:
    assert not list(estimates.misses(FIGURES))


@pytest.mark.parametrize(
    ("group", "measure", "value"),
    [
        ("between", "e2e_median_percent", 2.1),
        ("answered", "answered_percent", 79.0),
        ("answered", "covered_percent", 91.0),
        ("tensorrt_llm", "covered_percent", 60.0),
    ],
)
def test_a_missed_bound_is_named(group: str, measure: str, value: float) -> None:
    worse = json.loads(json.dumps(FIGURES))
    worse["accuracy"][group][measure] = value
    (missed,) = estimates.misses(worse)
    assert missed.startswith(group)


def test_a_row_that_is_asked_about_is_not_among_those_that_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The folds part measurements of a point and a day: none is told by its own copy."""
    rows, _ = measurements.read()
    some = [row for row in rows if (row.model, row.gpu) == ("gpt-oss-120b", "h100")]
    known: list[bool] = []

    class Watched(Estimator):
        def estimate(self, question: Question) -> Estimate | Refusal:
            sizes = (question.tp, question.isl, question.osl, question.concurrency)
            asked = [row for row in some if (row.tp, row.isl, row.osl, row.concurrency) == sizes]
            known.append(all(row in self.rows for row in asked))
            return super().estimate(question)

    monkeypatch.setattr(estimates, "Estimator", Watched)
    fitted = [fits.load()] * len(halves.HALVES)
    (found,) = estimates.cross_validate(some, fitted, (estimates.question_of,))
    assert len(found) == len(some)
    assert not any(known)


def test_both_halves_have_runs_of_every_engine_and_a_run_is_in_one() -> None:
    rows, _ = measurements.read()
    assert {(row.engine, halves.half(row)) for row in rows} == {
        (engine, half) for engine in measurements.ENGINES for half in halves.HALVES
    }
    some = rows[0]
    loads = [some._replace(id=str(load), concurrency=load) for load in (1, 2, 4, 8, 16)]
    assert len({halves.half(row) for row in loads}) == 1


def test_an_answer_comes_from_what_the_other_half_of_the_runs_was_fitted_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitted: list[list[int]] = []

    def fit(rows: list[Row], digest: str, before: None) -> str:
        fitted.append(sorted({halves.half(row) for row in rows}))
        return fits.FACTORS.read_text()

    monkeypatch.setattr(fit_estimates, "fit", fit)
    assert len(halves.fitted(measurements.read()[0])) == len(halves.HALVES)
    assert fitted == [[1], [0]]
