"""The accuracy of prefill and decode servers in the documentation is that of the shipped rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import pools
from builder.estimates import measurements

FIGURES: dict[str, Any] = json.loads(pools.PAGE.figures.read_text())


def test_figures_and_page_are_of_the_rows_that_ship_and_within_bounds() -> None:
    """Run `python -m benchmarks.pools --write` after a change of them."""
    text = measurements.DISAGGREGATED.read_text()
    assert FIGURES["rows_sha256"] == measurements.digest(text)
    assert pools.PAGE.with_table(pools.table(FIGURES)) == pools.PAGE.path.read_text()
    assert not list(pools.misses(FIGURES))


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("rows", "e2e_p90_percent", 20.5), ("choice", "kept_percent", 91.0), ("models", "answers", 1)],
)
def test_a_value_beyond_its_bound_is_missed(part: str, name: str, value: float) -> None:
    worse = {**FIGURES, part: {**FIGURES[part], name: value}}
    (line,) = pools.misses(worse)
    assert line.startswith(f"{part}: {name} is")
