"""Rounds become medians, ratios within a round, and verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks import results
from benchmarks.results import Samples, Spread


def samples(**tokens_per_s: Sequence[float]) -> Samples:
    """Rounds of the overload at 64 streams by variant; everything else is 1."""
    ones = dict.fromkeys((*results.RATIO_FIELDS, "offered_tokens_per_s"), 1.0)
    return {
        ("overload", 64, variant): [ones | {"tokens_per_s": value} for value in values]
        for variant, values in tokens_per_s.items()
    }


def test_a_row_has_the_median_and_the_range() -> None:
    [row] = results.rows(samples(sse=(30.0, 10.0, 20.0)))
    assert (row["case"], row["streams"], row["variant"]) == ("overload", 64, "sse")
    assert row["tokens_per_s"] == 20
    assert row["range"]["tokens_per_s"] == [10, 30]


def test_a_ratio_is_taken_within_a_round() -> None:
    """The machine was four times as slow in the second round, and equally for both."""
    measured = samples(model=(800.0, 200.0, 900.0), per_token=(200.0, 50.0, 300.0))
    ratio = results.spread(measured, "overload", 64, "tokens_per_s", "per_token")
    assert ratio == Spread(4, 3, 4)


@pytest.mark.parametrize(
    ("per_token", "missed"), [(100.0, []), (101.0, ["tokens_per_s is 3.96 of per_token's"])]
)
def test_a_bound_holds_up_to_its_limit(per_token: float, missed: list[str]) -> None:
    measured = samples(model=[400.0], per_token=[per_token])
    bounds = [bound for bound in results.MUST_HOLD if bound.against == "per_token"]
    violations = [violation.message for bound in bounds if (violation := bound.violation(measured))]
    assert [what.partition(";")[0] for what in violations] == missed


def test_the_least_rate_is_a_bound_on_the_engine_itself() -> None:
    measured = samples(model=[400.0])
    violations = filter(None, (bound.violation(measured) for bound in results.MUST_HOLD))
    assert [one.message for one in violations] == [
        "offered_tokens_per_s is 1; it must be at least 40000"
    ]
